"""The same events for eyes and for programs."""

import io
import json

import pytest
from rich.console import Console

from gateway.demo.events import Event
from gateway.demo.timeline import JsonTimeline, PlainTimeline, RichTimeline, Timeline, choose_timeline

ROWS = [
    {"what": "volumes", "before": "a", "after": "a", "holds": True},
    {"what": "names", "before": "none", "after": "left-over", "holds": False},
]
CHECKS = [
    {"claim": "the sky is up", "holds": True, "found": "up"},
    {"claim": "the world is as before", "holds": False, "found": "name left-over is new"},
]
EVENTS = [
    Event(actor="demo", kind="scene", text="A run"),
    Event(actor="agent", kind="step", text="hold [red]the[/] money", data={"step": "hold"}),
    Event(actor="payments", kind="answered", text="not for eyes"),
    Event(actor="tools", kind="proof", text="They say", data={"rows": ROWS}),
    Event(actor="demo", kind="verdict", text="1 of 2 checks do not hold", data={"ok": False, "checks": CHECKS}),
]


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def shown(timeline: Timeline) -> None:
    for event in EVENTS:
        timeline.show(1.5, event)


def test_json_is_one_object_a_line_with_every_event_and_the_verdict_last() -> None:
    """Scripts read this; nothing is hidden from them."""
    out = io.StringIO()
    shown(JsonTimeline(out))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [event.kind for event in EVENTS]
    assert all(line.keys() == {"event", "t", "actor", "text", "data"} for line in lines)
    assert lines[1] == {
        "event": "step",
        "t": 1.5,
        "actor": "agent",
        "text": "hold [red]the[/] money",
        "data": {"step": "hold"},
    }
    assert lines[-1]["data"] == {"ok": False, "checks": CHECKS}


def test_plain_lines_hold_no_control_characters_and_tell_what_broke() -> None:
    """A pipe or a CI log gets text."""
    out = io.StringIO()
    shown(PlainTimeline(out))
    text = out.getvalue()
    assert "\x1b" not in text
    assert "   1.50s  agent     → hold [red]the[/] money" in text
    assert "not for eyes" not in text
    assert "  ✗ names            none  =>  left-over" in text
    assert "✓ the sky is up\n" in text
    assert "✗ the world is as before (found: name left-over is new)" in text


def test_a_terminal_gets_colour_and_what_tools_say_is_never_read_as_markup() -> None:
    out = io.StringIO()
    shown(RichTimeline(Console(file=out, force_terminal=True, width=100, no_color=False, color_system="standard")))
    assert "\x1b[" in out.getvalue()
    assert "hold [red]the[/] money" in out.getvalue()


def test_no_color_is_honoured_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """no-color.org: the variable, whatever its value, means no colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    timeline = choose_timeline(is_json=False, out=out)
    shown(timeline)
    assert isinstance(timeline, RichTimeline)
    assert "\x1b[3" not in out.getvalue()
    assert "\x1b[9" not in out.getvalue()


def test_the_timeline_fits_its_stream() -> None:
    assert isinstance(choose_timeline(is_json=True, out=Terminal()), JsonTimeline)
    assert isinstance(choose_timeline(is_json=False, out=io.StringIO()), PlainTimeline)
    assert isinstance(choose_timeline(is_json=False, out=Terminal()), RichTimeline)
