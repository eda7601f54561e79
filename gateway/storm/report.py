"""A run as files for people: `summary.md`, and with the extra `lab` the plots (SVG, PNG) and one page with it all."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.storm.compare import read_run
from gateway.storm.recording import Recording
from gateway.storm.summary import summary

__all__ = ["PlotsUnavailable", "write_report"]


class PlotsUnavailable(Exception):
    """matplotlib is not installed. The message says how to get it."""


_STYLE = """
:root { color-scheme: light; } body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto;
padding: 0 1rem; color: #1a1a1a; background: #fff; } h1 { font-size: 1.6rem; line-height: 1.2; }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } code { background: #f2f2f2; padding: 0 .2em; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; } li { margin: .2rem 0; }
"""


def write_report(folder: Path, *, plots: bool = True) -> Path:
    """Write the report of the run in a folder; return the file to look at first.

    Raises:
        PlotsUnavailable: plots are wanted and matplotlib is not there.
        OSError, ValueError: the folder holds no run.
    """
    document = read_run(folder)
    text = summary(document)
    (folder / "summary.md").write_text(text)
    if not plots:
        return folder / "summary.md"
    images = _plots(folder, document)
    page = _page(document, text, images)
    (folder / "report.html").write_text(page)
    return folder / "report.html"


def _plots(folder: Path, document: Mapping[str, Any]) -> dict[str, str]:
    try:
        from gateway.storm.plots import draw
    except ImportError:
        raise PlotsUnavailable("plots need matplotlib: pip install 'seawall[lab]'; the figures are written") from None
    seed = document["seeds"][0]
    recordings = {name: Recording.read(folder / "events" / f"{name}-{seed}.jsonl.gz") for name in document["figures"]}
    images = {}
    for kind in document["scenario"]["plots"]:
        figure = draw(kind, document["scenario"], recordings)
        name = f"{document['scenario']['name']}-{kind}"
        figure.savefig(folder / f"{name}.png")
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        (folder / f"{name}.svg").write_text(drawn.getvalue())
        images[kind] = drawn.getvalue()
    return images


def _page(document: Mapping[str, Any], text: str, images: Mapping[str, str]) -> str:
    title = html.escape(document["scenario"]["title"])
    drawn = "".join(f"<figure>{_inline(svg, kind)}</figure>" for kind, svg in images.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{_STYLE}</style>{_html(text, drawn)}</html>\n"
    )


def _inline(svg: str, kind: str) -> str:
    """Return an SVG for a page: without its XML head, and with ids that no other plot on the page has."""
    body = svg[svg.index("<svg") :]
    return re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{kind}-", body)


def _html(text: str, drawn: str) -> str:
    """Return the few kinds of Markdown that `summary` writes as HTML; the plots come before the verdicts."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith("# "):
            blocks.append(f"<h1>{_spans(block[2:])}</h1>")
        elif block.startswith("|"):
            blocks.append(_table(block))
        elif block.startswith("* "):
            blocks.append("<ul>" + "".join(f"<li>{_spans(line[2:])}" for line in block.splitlines()) + "</ul>")
        else:
            blocks.append(f"<p>{_spans(block)}</p>")
    lists = next((index for index, block in enumerate(blocks) if block.startswith("<ul>")), len(blocks))
    return "".join([*blocks[:lists], drawn, *blocks[lists:]])


def _table(block: str) -> str:
    heads, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
    body = "".join("<tr>" + "".join(f"<td>{_spans(cell)}" for cell in row) for row in rows)
    return "<table><tr>" + "".join(f"<th>{_spans(head)}" for head in heads) + body + "</table>"


def _spans(text: str) -> str:
    safe = html.escape(text, quote=False)
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", re.sub(r"`(.+?)`", r"<code>\1</code>", safe))
