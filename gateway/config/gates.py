"""Gates, approvals and the sinks of incidents, checked and made ready to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from gateway.config.cel import CelExpression, ExpressionProblem
from gateway.config.errors import Position, Problems, nearest, shown
from gateway.config.loader import Entry, Loaded
from gateway.config.rules import read_upstream
from gateway.config.template import SecretRef, compile_parts
from gateway.core.manifest import ApprovalSettings, GateSettings, SinkKind, SinkSettings
from gateway.core.secret import Secret
from gateway.core.tool import Sink

__all__ = ["GATE_NAMES", "check_approval", "check_gate", "compile_sink"]

GATE_NAMES: Final = frozenset({"request", "params", "trajectory"})
"""What an expression at the gate may speak of: the call that waits, and the run."""

_PAGERDUTY: Final = "https://events.pagerduty.com/v2/enqueue"
_ALERTMANAGER_PATH: Final = "/api/v2/alerts"


def check_approval(name: str, entry: Entry[ApprovalSettings], problems: Problems) -> None:
    """So many must exist as have to agree, and each once."""
    settings = entry.settings
    if len(set(settings.approvers)) != len(settings.approvers) or "" in settings.approvers:
        problems.add(entry.at("approvers"), f"`{shown(name)}` names an approver twice, or nobody", "name each once")
    if settings.approvers and settings.required > len(settings.approvers):
        problems.add(
            entry.at("required"),
            f"`required` ({settings.required}) is more than there are approvers ({len(settings.approvers)})",
            "nobody could ever pass it",
        )


def check_gate(name: str, entry: Entry[GateSettings], loaded: Loaded, problems: Problems) -> None:
    """A gate asks exactly one question, and whom it asks exists."""
    settings = entry.settings
    given = [settings.check, settings.verify, settings.lease, settings.approval]
    if sum(one is not None for one in given) != 1:
        problems.add(
            entry.at(), f"gate `{shown(name)}` needs exactly one of `check`, `verify`, `lease`, `approval`", "split it"
        )
    policy, known = settings.approval, loaded.names["approvals"]
    if policy is not None and policy not in known:
        problems.add(entry.at("approval"), f"unknown approval policy `{shown(policy)}`", nearest(policy, known))


def compile_sink(
    name: str,
    entry: Entry[SinkSettings],
    secret: Callable[[str, Position], Secret | None],
    problems: Problems,
) -> Sink | None:
    """Return a sink, or None after reporting what is wrong with it."""
    settings = entry.settings
    url = settings.url or (_PAGERDUTY if settings.kind is SinkKind.PAGERDUTY else None)
    if url is None:
        problems.add(entry.at(), f"sink `{shown(name)}` needs a `url`", "where the incident is to be sent")
        return None
    value = _secret(entry, secret, problems)
    if settings.secret is not None and value is None:
        return None
    if value is None and settings.kind is not SinkKind.ALERTMANAGER:
        what = "the routing key" if settings.kind is SinkKind.PAGERDUTY else "what signs it"
        problems.add(entry.at("secret"), f"sink `{shown(name)}` needs a `secret`: {what}", "use `${secret:NAME}`")
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        problems.add(entry.at("url"), "`url` is not a URL", "as in `https://hooks.example.com/seawall`")
        return None
    upstream = read_upstream(f"{parts.scheme}://{parts.netloc}", entry.at("url"), problems)
    if upstream is None:
        return None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if settings.kind is SinkKind.ALERTMANAGER:
        target = parts.path.rstrip("/") + _ALERTMANAGER_PATH
    if not target.isascii() or not target.isprintable() or " " in target:
        problems.add(entry.at("url"), "the path of `url` holds a character that must be percent-encoded")
        return None
    return Sink(name=name, settings=settings, upstream=upstream, target=target, secret=value)


def _secret(
    entry: Entry[SinkSettings], secret: Callable[[str, Position], Secret | None], problems: Problems
) -> str | None:
    text = entry.settings.secret
    if text is None:
        return None
    here = entry.at("secret")
    try:
        parts = compile_parts(text)
    except ExpressionProblem as problem:
        problems.add(here, str(problem), problem.hint)
        return None
    if any(isinstance(part, CelExpression) for part in parts):
        problems.add(here, "a secret is text and `${secret:NAME}`, no expressions", "it is the same for all")
        return None
    value = ""
    for part in parts:
        if isinstance(part, SecretRef):
            found = secret(part.name, here)
            value += "" if found is None else found.reveal()
        elif isinstance(part, str):
            value += part
    return value or None
