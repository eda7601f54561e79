"""The pages of docs/clients as scripts: each section is what a reader would type, one block after the other."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DOCS", "Section", "manifest_of", "run", "sections"]

DOCS = Path(__file__).parents[2] / "docs" / "clients"
GATEWAY = "127.0.0.1:8080"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it, as (language, text)."""

    page: str
    heading: str
    blocks: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        return f"{self.page}: {self.heading}"


def sections(page: str) -> list[Section]:
    """Return the sections of a page that have something to run. What stands before the first heading goes before each."""
    preface, *parts = re.split(r"^## ", (DOCS / f"{page}.md").read_text(), flags=re.MULTILINE)
    before = _blocks(preface)
    found = []
    for part in parts:
        heading, _, text = part.partition("\n")
        if blocks := _blocks(text):
            found.append(Section(page, heading, (*before, *blocks)))
    return found


def _blocks(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((kind, body) for kind, body in _BLOCK.findall(text) if kind in ("sh", "python"))


def manifest_of(page: str) -> str:
    """Return the manifest that a page shows."""
    return next(body for kind, body in _BLOCK.findall((DOCS / f"{page}.md").read_text()) if kind == "yaml")


async def run(section: Section, folder: Path, replacements: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Run a section in a folder, as one shell script that stops at the first failure; return what it printed."""
    script = [_seawall(folder)]
    for number, (kind, text) in enumerate(section.blocks):
        for old, new in replacements.items():
            text = text.replace(old, new)
        if kind == "python":
            (folder / f"block{number}.py").write_text(text)
            text = f'"{sys.executable}" -W error block{number}.py\n'
        script.append(text)
    (folder / "script.sh").write_text("\n".join(script))
    process = await asyncio.create_subprocess_exec(
        "sh", "-eu", "script.sh",
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(45):
            out, error = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, f"{section.id}\n{out.decode()}\n{error.decode()}"
    return out.decode()


def _seawall(folder: Path) -> str:
    """A function that stands for the installed command."""
    root = Path(__file__).parents[2]
    return f'seawall() {{ PYTHONPATH="{root}" "{sys.executable}" -m gateway "$@"; }}\n'
