"""Shows the demo's events: coloured in a terminal, plain lines elsewhere, or one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from gateway.demo.events import Event

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["JsonTimeline", "PlainTimeline", "RichTimeline", "Timeline", "choose_timeline"]

QUIET = frozenset({"answered", "undo_received", "step_state", "done"})
SIGNS = {
    "step": "→", "answer": "←", "received": "•", "retry": "↻", "breaker": "⚡", "undo": "↶",
    "link_cut": "✂", "link_down": "✗", "link_up": "✓", "gave_up": "✗", "run": "◆", "error": "!",
}  # fmt: skip
STYLES = {
    "step": "bold", "answer": "default", "received": "dim", "retry": "yellow", "breaker": "magenta",
    "undo": "cyan", "link_cut": "red", "link_down": "red", "link_up": "green", "gave_up": "bold red", "run": "blue",
    "error": "bold red", "note": "italic",
}  # fmt: skip
ACTOR_WIDTH = 9


class Timeline(Protocol):
    """Where events are shown."""

    def show(self, offset_s: float, event: Event) -> None:
        """Show one event, `offset_s` seconds after the start."""


class JsonTimeline:
    """One JSON object a line: `event`, `t` in seconds, `actor`, `text` and the event's facts under `data`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, offset_s: float, event: Event) -> None:
        """Write the event as a line."""
        fields = {"event": event.kind, "t": round(offset_s, 3), "actor": event.actor, "text": event.text}
        print(json.dumps(fields | {"data": dict(event.data)}, ensure_ascii=False), file=self._out, flush=True)


class PlainTimeline:
    """Lines of text without colour, for pipes and logs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, offset_s: float, event: Event) -> None:
        """Write the event as a line, or as its table."""
        match event.kind:
            case kind if kind in QUIET:
                return
            case "scene":
                self._write(f"\n== {event.text}")
            case "proof":
                self._write(*_proof_lines(event))
            case "verdict":
                self._write(*_verdict_lines(event))
            case _:
                self._write(_line(offset_s, event))

    def _write(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._out, flush=True)


class RichTimeline:
    """Rows for a person at a terminal. rich itself honours NO_COLOR."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, offset_s: float, event: Event) -> None:
        """Print the event as a row, or as its table."""
        match event.kind:
            case kind if kind in QUIET:
                return
            case "scene":
                self._console.print()
                self._console.rule(f"[bold]{event.text}", align="left")
            case "proof":
                self._print_proof(event)
            case "verdict":
                self._print_verdict(event)
            case _:
                style = STYLES.get(event.kind, "default")
                self._console.print(_line(offset_s, event), style=style, markup=False, highlight=False, soft_wrap=True)

    def _print_proof(self, event: Event) -> None:
        from rich.table import Table

        table = Table("", "before", "after", "", title=event.text, title_justify="left", title_style="bold")
        for what, before, after, holds in _proof_rows(event):
            table.add_row(what, before, after, "[green]✓[/]" if holds else "[bold red]✗[/]")
        self._console.print(table)

    def _print_verdict(self, event: Event) -> None:
        for line in _verdict_lines(event):
            style = "red" if line.lstrip().startswith("✗") else "green" if line.lstrip().startswith("✓") else "bold"
            self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def choose_timeline(*, is_json: bool, out: TextIO | None = None) -> Timeline:
    """Return the timeline that fits: JSON if asked for, rich at a terminal, plain lines elsewhere."""
    out = out or sys.stdout
    if is_json:
        return JsonTimeline(out)
    if not out.isatty():
        return PlainTimeline(out)
    from rich.console import Console

    return RichTimeline(Console(file=out))


def _line(offset_s: float, event: Event) -> str:
    sign = SIGNS.get(event.kind, " ")
    return f"{offset_s:7.2f}s  {event.actor:<{ACTOR_WIDTH}} {sign} {event.text}"


def _proof_rows(event: Event) -> list[tuple[str, str, str, bool]]:
    rows: Any = event.data["rows"]
    return [(row["what"], row["before"], row["after"], row["holds"]) for row in rows]


def _proof_lines(event: Event) -> list[str]:
    lines = [event.text]
    for what, before, after, holds in _proof_rows(event):
        lines.append(f"  {'✓' if holds else '✗'} {what:<16} {before}" + ("" if before == after else f"  =>  {after}"))
    return lines


def _verdict_lines(event: Event) -> list[str]:
    checks: Any = event.data["checks"]
    lines = [f"{'✓' if check['holds'] else '✗'} {check['claim']}" + _because(check) for check in checks]
    return ["", *lines, event.text]


def _because(check: Mapping[str, Any]) -> str:
    return "" if check["holds"] or not check["found"] else f" (found: {check['found']})"
