"""Requests that the gateway may send on its own: templates compiled at load, bound when their values are known.

A value can fill a hole and nothing more: in a path it is percent-encoded and stays inside its segment, in a query or form
it stays one value, in a header it cannot begin another line, in JSON a text that is exactly one `${…}` keeps the type of
its value. A value that would not fit (missing, null, empty in a path, `..`, with a slash) is an error, not a guess:
a compensator with a hole in it undoes something else.

Source: RFC 3986 sections 2.1 and 3.3, RFC 9110 sections 5.1 and 5.5, WHATWG URL section 5 (forms).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, quote_plus

import orjson

from gateway.config.cel import CelExpression, ExpressionProblem, check_exact, text_of
from gateway.config.template import Part, SecretRef, compile_parts, render, secrets_in
from gateway.core.expression import Environment, ExpressionError
from gateway.core.manifest import RequestSettings
from gateway.core.routing import METHOD
from gateway.core.secret import PLACEHOLDER
from gateway.core.tool import BoundRequest, RequestTemplate

__all__ = ["TOKEN", "Names", "compile_request"]

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A header name (RFC 9110 section 5.6.2)."""

_OWN_FIELDS: Final = frozenset({
    "host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect",
    "proxy-connection",
})  # fmt: skip
_LITERAL_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_LITERAL_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]*")
"""What needs no percent-encoding anywhere (RFC 3986 section 2.3)."""

_PLAIN_IN_A_SEGMENT = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]*")
"""The same, and neither empty nor dots."""

_OUTSIDE_A_SEGMENT = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Names:
    """What a template may speak of, and why it may not of the rest."""

    known: frozenset[str]
    later: Mapping[str, str]


Report = Callable[[tuple[str | int, ...], str, str], None]
"""Takes the path below the request's own mapping, what is wrong there, and a hint."""


_Fill = Callable[[Environment], str]


@dataclass(frozen=True, slots=True)
class _Path:
    """A path: fixed text, and for each segment with a hole what fills it and the fixed text behind it."""

    begin: str
    filled: tuple[tuple[_Fill, str], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    method: str
    path: _Path
    query: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Binder:
    """Fills a template. Immutable; may be called any number of times."""

    tool: str
    line: _Line
    query: tuple[tuple[str, tuple[Part, ...]], ...]
    headers: tuple[tuple[str, tuple[Part, ...]], ...]
    body: _Fill | None

    def __call__(self, env: Environment) -> BoundRequest:
        line = self.line
        target = line.path.begin
        for fill, behind in line.path.filled:
            target += fill(env) + behind
        if line.query or self.query:
            target = f"{target}?{self._query(env)}"
        headers = tuple([(name, _header(name, parts, env)) for name, parts in self.headers]) if self.headers else ()
        return BoundRequest(self.tool, line.method, target, headers, None if self.body is None else self.body(env))

    def _query(self, env: Environment) -> str:
        query = [_encoded(self.line.query, env)] if self.line.query else []
        query += [f"{_quoted(name, name)}={_quoted(render(parts, env), name)}" for name, parts in self.query]
        return "&".join(query)


def compile_request(
    settings: RequestSettings, tool: str, names: Names, report: Report
) -> tuple[RequestTemplate, frozenset[str]] | None:
    """Return the template and the secrets that its headers name, or None after reporting all that is wrong."""
    compiler = _Compiler(names, report)
    line = compiler.line(settings.request)
    query = compiler.pairs(settings.query, "query")
    headers = compiler.headers(settings.headers)
    body, content_type = compiler.body(settings)
    if compiler.has_failed or line is None:
        return None
    if content_type and not any(name.lower() == "content-type" for name, _ in headers):
        headers = (*headers, ("Content-Type", (content_type,)))
    secrets = frozenset[str]().union(*(secrets_in(parts) for _, parts in headers))
    return RequestTemplate(settings.request, _Binder(tool, line, query, headers, body)), secrets


class _Compiler:
    def __init__(self, names: Names, report: Report) -> None:
        self._names = names
        self._report = report
        self.has_failed = False

    def _fail(self, path: tuple[str | int, ...], message: str, hint: str = "") -> None:
        self.has_failed = True
        self._report(path, message, hint)

    def parts(self, text: str, path: tuple[str | int, ...], may_hold_secret: bool = False) -> tuple[Part, ...]:
        try:
            parts = compile_parts(text, self._names.known, self._names.later)
        except ExpressionProblem as problem:
            self._fail(path, str(problem), problem.hint)
            return ()
        if secrets_in(parts) and not may_hold_secret:
            self._fail(
                path,
                "a secret may stand only in `credentials` and in `headers`",
                "paths, queries and bodies are journaled and logged by tools",
            )
        if may_hold_secret and any(isinstance(part, str) and "${" in part for part in parts):
            self._fail(path, "`$${` cannot be sent in a header", "it would be taken for a secret later")
        return parts

    def line(self, text: str) -> _Line | None:
        here = ("request",)
        method, _, rest = text.strip().partition(" ")
        rest = rest.strip()
        if not METHOD.fullmatch(method) or not rest.startswith("/"):
            self._fail(
                here, "a request is METHOD, one space and a path that begins with `/`", "as in `POST /v1/things`"
            )
            return None
        path, query = _split_query(self.parts(rest, here))
        if not all(_LITERAL_PATH.fullmatch(part) for part in path if isinstance(part, str)):
            self._fail(here, "the path holds a character that must be percent-encoded")
        if not all(_LITERAL_QUERY.fullmatch(part) for part in query if isinstance(part, str)):
            self._fail(here, "the query holds a character that must be percent-encoded")
        segments = _split_segments(path)
        if any(_is_dots(parts) for parts in segments) or any(not parts for parts in segments[:-1]):
            self._fail(here, "the path holds `.`, `..` or an empty segment", "write the path it stands for")
        return _Line(method, _path(segments), query)

    def pairs(self, pairs: Mapping[str, str], key: str) -> tuple[tuple[str, tuple[Part, ...]], ...]:
        return tuple((name, self.parts(text, (key, name))) for name, text in pairs.items())

    def headers(self, headers: Mapping[str, str]) -> tuple[tuple[str, tuple[Part, ...]], ...]:
        compiled = []
        for name, text in headers.items():
            if not TOKEN.fullmatch(name):
                self._fail(("headers", name), "not a header name", "letters, digits and `-`")
            elif name.lower() in _OWN_FIELDS:
                self._fail(("headers", name), f"`{name}` is set by the gateway itself", "leave it out")
            parts = self.parts(text, ("headers", name), may_hold_secret=True)
            if any(isinstance(part, str) and _CONTROL.search(part) for part in parts):
                self._fail(("headers", name), "a header holds no line breaks and no control characters")
            compiled.append((name, parts))
        if len({name.lower() for name, _ in compiled}) != len(compiled):
            self._fail(("headers",), "a header is set twice", "header names are the same in any case")
        return tuple(compiled)

    def body(self, settings: RequestSettings) -> tuple[Callable[[Environment], str] | None, str]:
        given = [key for key in ("json", "form", "body") if getattr(settings, key) is not None]
        if len(given) > 1:
            both = " and ".join(f"`{key}`" for key in given)
            self._fail((given[1],), f"{both} exclude each other", "keep one")
        if settings.json is not None:
            fill = self.json(settings.json, ("json",))
            return lambda env: _dumped(fill(env)), "application/json"
        if settings.form is not None:
            pairs = self.pairs(settings.form, "form")
            return lambda env: _form(pairs, env), "application/x-www-form-urlencoded"
        if settings.body is not None:
            parts = self.parts(settings.body, ("body",))
            return lambda env: render(parts, env), "text/plain; charset=utf-8"
        return None, ""

    def json(self, value: object, path: tuple[str | int, ...]) -> Callable[[Environment], object]:
        if isinstance(value, Mapping):
            for key in value:
                if "${" in key:
                    self._fail((*path, key), "a key is literal; only values hold `${…}`")
            members = {key: self.json(item, (*path, key)) for key, item in value.items()}
            return lambda env: {key: fill(env) for key, fill in members.items()}
        if isinstance(value, list | tuple):
            items = [self.json(item, (*path, index)) for index, item in enumerate(value)]
            return lambda env: [fill(env) for fill in items]
        if not isinstance(value, str):
            return lambda env: value
        parts = self.parts(value, path)
        if len(parts) == 1 and isinstance(parts[0], CelExpression):
            expression = parts[0]
            return lambda env: _json_value(expression(env), expression.source)
        return lambda env: render(parts, env)


def _split_query(parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    for index, part in enumerate(parts):
        if isinstance(part, str) and "?" in part:
            before, _, after = part.partition("?")
            path = (*parts[:index], before) if before else parts[:index]
            return path, (after, *parts[index + 1 :]) if after else parts[index + 1 :]
    return parts, ()


def _split_segments(path: tuple[Part, ...]) -> tuple[tuple[Part, ...], ...]:
    segments: list[list[Part]] = [[]]
    for part in path:
        if not isinstance(part, str):
            segments[-1].append(part)
            continue
        first, *others = part.split("/")
        if first:
            segments[-1].append(first)
        segments.extend([other] if other else [] for other in others)
    return tuple(map(tuple, segments[1:]))


def _path(segments: Iterable[tuple[Part, ...]]) -> _Path:
    """Return the path of these segments, with all fixed text between two holes as one: paths are bound on every call."""
    texts, fills = [""], []
    for parts in segments:
        texts[-1] += "/"
        if len(parts) == 1 and isinstance(parts[0], str):
            texts[-1] += parts[0]
        elif parts:
            fills.append(_segment(parts))
            texts.append("")
    return _Path(texts[0], tuple(zip(fills, texts[1:], strict=True)))


def _is_dots(parts: tuple[Part, ...]) -> bool:
    return len(parts) == 1 and isinstance(parts[0], str) and parts[0].lower().replace("%2e", ".") in (".", "..")


def _segment(parts: tuple[Part, ...]) -> _Fill:
    """Return what fills a segment with holes."""
    if len(parts) == 1 and isinstance(parts[0], CelExpression):
        whole = parts[0]
        return lambda env: _inside_a_segment(text_of(whole(env), whole.source), whole.source)
    return lambda env: _mixed_segment(parts, env)


def _mixed_segment(parts: tuple[Part, ...], env: Environment) -> str:
    segment = ""
    for part in parts:
        if isinstance(part, str):
            segment += part
        elif isinstance(part, CelExpression):
            segment += _inside_a_segment(text_of(part(env), part.source), part.source)
    if segment in (".", ".."):
        raise ExpressionError("a path segment would become `.` or `..`")
    return segment


def _inside_a_segment(text: str, source: str) -> str:
    if _PLAIN_IN_A_SEGMENT.fullmatch(text):
        return text
    if not text:
        raise ExpressionError(f"`{source}` is empty, which would change the path")
    if text in (".", "..") or _OUTSIDE_A_SEGMENT.search(text):
        raise ExpressionError(f"`{source}` holds a slash, dots or a control character, which would change the path")
    return _quoted(text, source)


def _encoded(parts: tuple[Part, ...], env: Environment) -> str:
    return "".join(
        part if isinstance(part, str) else _quoted(text_of(part(env), part.source), part.source)
        for part in parts
        if not isinstance(part, SecretRef)
    )


def _quoted(text: str, source: str) -> str:
    if _UNRESERVED.fullmatch(text):
        return text
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ExpressionError(f"`{source}` is not Unicode text") from None


def _form(pairs: tuple[tuple[str, tuple[Part, ...]], ...], env: Environment) -> str:
    try:
        return "&".join(f"{quote_plus(name)}={quote_plus(render(parts, env))}" for name, parts in pairs)
    except UnicodeEncodeError:
        raise ExpressionError("a form value is not Unicode text") from None


def _header(name: str, parts: tuple[Part, ...], env: Environment) -> str:
    value = render(parts, env)
    if PLACEHOLDER.findall(value) != [part.name for part in parts if isinstance(part, SecretRef)]:
        raise ExpressionError(f"the value of header `{name}` would be taken for a secret's placeholder")
    if _CONTROL.search(value):
        raise ExpressionError(f"the value of header `{name}` holds a line break or control character")
    return value.strip(" \t")


def _json_value(value: object, source: str) -> object:
    if isinstance(value, float):
        check_exact(value, source)
    return value


def _dumped(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except (TypeError, ValueError):
        raise ExpressionError("the JSON body holds a value that JSON cannot say") from None
