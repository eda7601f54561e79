"""What happens in the demo, as one kind of event, whoever saw it: agent, gateway, link or tool.

The gateway tells through its structured log. The reader here is tolerant: it goes by words in the event's name and takes
what fields it finds, since the log is for people first; nothing that the demo verifies rests on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.demo.relay import Sight

__all__ = ["Event", "from_agent", "from_log", "from_sight", "shortened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One row of the timeline. `kind` is stable for programs, `text` is for people, `data` holds the facts."""

    actor: str
    kind: str
    text: str
    data: Mapping[str, object] = field(default_factory=dict)


def from_agent(record: Mapping[str, Any]) -> Event:
    """Turn a line of the agent's output into an event."""
    kind = str(record.get("event", "note"))
    facts = {name: value for name, value in record.items() if name != "event" and value is not None}
    match kind:
        case "step":
            text = f"{record.get('step')}: {record.get('method')} {record.get('path')}"
        case "answer":
            text = _answer_text(record)
        case "gave_up":
            text = f"gives up: {record.get('reason')}"
        case _:
            text = kind
    return Event(actor="agent", kind=kind, text=text, data=facts)


def from_sight(sight: Sight, *, is_undo: bool) -> Event:
    """Turn what the relay saw into an event; `is_undo` while the gateway unwinds a run."""
    facts: dict[str, object] = {"tool": sight.tool}
    if sight.method:
        facts |= {"method": sight.method, "path": sight.path} | ({"key": sight.key} if sight.key else {})
    line = f"{sight.method} {sight.path}" + (f"  key {shortened(sight.key)}" if sight.key else "")
    is_undo = is_undo and sight.method != "GET"
    match sight.what:
        case "request":
            return Event(actor=sight.tool, kind="undo_received" if is_undo else "received", text=line, data=facts)
        case "answer":
            kind = "undo" if is_undo else "answered"
            return Event(
                actor=sight.tool, kind=kind, text=f"{line}  {sight.status}", data=facts | {"status": sight.status}
            )
        case "cut":
            text = f"connection breaks under {sight.method} {sight.path}"
            return Event(actor="link", kind="link_cut", text=text, data=facts)
        case "down":
            return Event(actor="link", kind="link_down", text=f"{sight.tool} cannot be reached any more", data=facts)
        case _:
            return Event(actor="link", kind="link_up", text=f"{sight.tool} can be reached again", data=facts)


def from_log(line: str) -> Event | None:
    """Turn a line of the gateway's log into an event; None if it is not one that the timeline shows."""
    record = _object_in(line)
    name = str(record.get("event") or record.get("message") or record.get("msg") or "").lower()
    facts = {key: value for key, value in record.items() if isinstance(value, str | int | float)}
    if "retry" in name:
        return Event(actor="gateway", kind="retry", text=_retry_text(record), data=facts)
    if "breaker" in name and record.get("state"):
        return Event(actor="gateway", kind="breaker", text=_breaker_text(record), data=facts)
    if "trajectory" in name and record.get("state"):
        detail = f": {record['detail']}" if record.get("detail") else ""
        text = f"run {record.get('trajectory')} is {record['state']}{detail}"
        return Event(actor="gateway", kind="run", text=text, data=facts)
    if "step" in name and record.get("state"):
        text = f"step {record.get('step')} {record.get('operation', '')} {record['state']}"
        return Event(actor="gateway", kind="step_state", text=text, data=facts)
    if str(record.get("level", "")).lower() in {"error", "critical"}:
        return Event(actor="gateway", kind="error", text=name or line[:200], data=facts)
    return None


def shortened(key: str | None) -> str:
    """Return the beginning of a key, enough to tell it from its neighbours."""
    return f"{key[:12]}…" if key and len(key) > 13 else key or ""


def _answer_text(record: Mapping[str, Any]) -> str:
    words = [str(record.get("status"))]
    words += [str(record["code"])] if record.get("code") else []
    detail = record.get("detail") or record.get("message")
    text = " ".join(words) + (f": {detail}" if detail else "")
    return f"{text} (asks again in {float(record['wait_s']):.1f} s)" if record.get("wait_s") is not None else text


def _retry_text(record: Mapping[str, Any]) -> str:
    what = ".".join(str(record[name]) for name in ("tool", "operation") if record.get(name)) or "the call"
    attempt = record.get("attempt")
    which = f"attempt {attempt + 1}" if isinstance(attempt, int) else "again"
    delay_s = _seconds(record, "delay", "wait", "after")
    wait = f" in {delay_s * 1000:.0f} ms, full jitter" if delay_s is not None else ""
    cause = record.get("fault") or record.get("cause")
    return f"{what}: {which}{wait}" + (f" (last failure: {cause})" if cause else "")


def _breaker_text(record: Mapping[str, Any]) -> str:
    cooldown_s = _seconds(record, "cooldown")
    cause = record.get("cause") or record.get("reason")
    text = f"breaker of {record.get('tool')} is {str(record['state']).replace('_', '-')}"
    text += f": {cause}" if cause else ""
    return f"{text}; refuses for {cooldown_s:.1f} s" if cooldown_s and str(record["state"]) == "open" else text


def _seconds(record: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        for suffix, unit_s in (("_ms", 0.001), ("_s", 1.0), ("", 1.0)):
            value = record.get(name + suffix)
            if isinstance(value, int | float):
                return value * unit_s
    return None


def _object_in(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
