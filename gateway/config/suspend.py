"""How quarantined agents are stopped: checked, and made ready to run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from gateway.config.cel import CelExpression, ExpressionProblem, text_of
from gateway.config.errors import Position, Problems, shown
from gateway.config.loader import Entry
from gateway.config.template import SecretRef, compile_parts
from gateway.core.expression import Environment, ExpressionError
from gateway.core.manifest import SuspendKind, SuspendSettings
from gateway.core.secret import Secret
from gateway.core.tool import Suspension

__all__ = ["compile_suspension"]

_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@-]{0,252}")
_NEEDS: Final = {
    SuspendKind.CGROUP: ("path",),
    SuspendKind.SIGNAL: ("path",),
    SuspendKind.WEBHOOK: ("url",),
    SuspendKind.KUBERNETES: ("namespace", "pod"),
}


def compile_suspension(
    name: str,
    entry: Entry[SuspendSettings],
    secret: Callable[[str, Position], Secret | None],
    problems: Problems,
) -> Suspension | None:
    """Return a hook, or None after reporting what is wrong with it."""
    settings = entry.settings
    missing = [field for field in _NEEDS[settings.kind] if getattr(settings, field) is None]
    for field in missing:
        problems.add(entry.at(), f"`{shown(name)}` needs `{field}`", f"a {settings.kind.value} is told by it")
    if settings.url is not None and urlsplit(settings.url).scheme not in ("http", "https"):
        problems.add(entry.at("url"), "`url` is not a URL", "as in `https://hooks.example.com/stop`")
        return None
    templates: dict[str, tuple[str | CelExpression, ...]] = {}
    for field in ("path", "namespace", "pod"):
        text = getattr(settings, field)
        if text is not None and (parts := _parts(text, entry.at(field), problems)) is not None:
            templates[field] = parts
    value = _secret(settings.secret, entry.at("secret"), secret, problems)
    if missing:
        return None

    def fill(field: str, env: Environment) -> str:
        return "".join(part if isinstance(part, str) else _word(part, env) for part in templates.get(field, ()))

    return Suspension(name=name, settings=settings, fill=fill, secret=value)


def _parts(text: str, here: Position, problems: Problems) -> tuple[str | CelExpression, ...] | None:
    try:
        parts = compile_parts(text)
    except ExpressionProblem as problem:
        problems.add(here, str(problem), problem.hint)
        return None
    wrong = [one for one in parts if isinstance(one, CelExpression) and one.names - {"trajectory"}]
    if wrong or any(isinstance(one, SecretRef) for one in parts):
        problems.add(here, "only `trajectory` is known here", "as in `${trajectory.agent}`")
        return None
    return tuple(one for one in parts if isinstance(one, str | CelExpression))


def _word(expression: CelExpression, env: Environment) -> str:
    value = text_of(expression(env), expression.source)
    if not _WORD.fullmatch(value) or ".." in value:
        raise ExpressionError(f"`{expression.source}` is no plain word, so it is not put into a path")
    return value


def _secret(
    text: str | None, here: Position, secret: Callable[[str, Position], Secret | None], problems: Problems
) -> str | None:
    if text is None:
        return None
    try:
        parts = compile_parts(text)
    except ExpressionProblem as problem:
        problems.add(here, str(problem), problem.hint)
        return None
    value = ""
    for part in parts:
        if isinstance(part, SecretRef):
            found = secret(part.name, here)
            value += "" if found is None else found.reveal()
        elif isinstance(part, str):
            value += part
        else:
            problems.add(here, "a secret is text and `${secret:NAME}`, no expressions", "it is the same for all")
            return None
    return value or None
