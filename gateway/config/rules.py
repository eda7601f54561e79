"""What must hold between the fields of a manifest, beyond what each field says of itself.

Each rule is a sentence in a table or a few lines; it reports the place of the field that breaks it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from gateway.config.errors import Position, Problems, nearest, shown
from gateway.config.loader import Entry, Loaded
from gateway.config.nodes import Map
from gateway.core.admission import AdmissionSettings
from gateway.core.authority import HostPattern, parse_host_pattern
from gateway.core.breaker import BreakerSettings
from gateway.core.headers import OURS_IN_REQUESTS
from gateway.core.manifest import (
    ApprovalPolicy,
    DomainSettings,
    JournalMode,
    OperationSettings,
    PivotMode,
    SecretSettings,
    ToolSettings,
)
from gateway.core.override import FIELDS, PARAMETERS
from gateway.core.retry import RetrySettings
from gateway.core.tool import Upstream

__all__ = [
    "admission_of",
    "check_breaker",
    "check_domain_of",
    "check_headers",
    "check_name",
    "check_operation",
    "check_retry",
    "check_secret",
    "overlay",
    "overrides_of",
    "read_hosts",
    "read_upstream",
    "upstream_of",
]

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
RESERVED: Final = frozenset({"seawall"})
SOCKET_PATH_BYTES: Final = 107
"""What fits into `sockaddr_un` with its closing zero; on Linux, and enough for others' 103 to fail at the first call."""
_FIELD: Final = re.compile(r"[A-Za-z0-9!#$%&'+.^_`|~-]+\*?|\*")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9.])?|[0-9A-Fa-f:.]+")
_PREFIX = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*/?")

S = TypeVar("S")
At = Callable[..., Position]


def overlay(base: S, nearer: S | None, written: Map) -> S:
    """Return `base` with those keys replaced that were written nearer. What was left out is inherited."""
    if nearer is None:
        return base
    names = [spec.name for spec in fields(cast(Any, nearer)) if spec.name in written.values]
    return cast(S, replace(cast(Any, base), **{name: getattr(nearer, name) for name in names}))


def check_name(kind: str, name: str, position: Position, problems: Problems) -> None:
    """Names go into URLs, metrics and files: lower-case letters, digits, `-` and `_`."""
    if not NAME.fullmatch(name):
        problems.add(
            position,
            f"`{shown(name)}` is not a name for {kind}",
            "lower-case letters, digits, `-` and `_`, at most 63, a letter or digit first",
        )
    elif kind == "a tool" and name in RESERVED:
        problems.add(position, f"`{name}` is reserved for the gateway's own paths", "call the tool otherwise")


def upstream_of(name: str, entry: Entry[ToolSettings], problems: Problems) -> Upstream | None:
    """Return where a tool lives: exactly one of `upstream`, `mcp.url` and `mcp.command` says so."""
    settings, mcp = entry.settings, entry.settings.mcp
    given = [
        text
        for text, is_there in (
            ("`upstream`", settings.upstream is not None),
            ("`mcp.url`", mcp is not None and mcp.url is not None),
            ("`mcp.command`", mcp is not None and bool(mcp.command)),
        )
        if is_there
    ]
    if len(given) != 1:
        found = f"{' and '.join(given)} exclude each other" if given else "`upstream` is required"
        problems.add(entry.at("upstream" if settings.upstream is not None else "mcp"), found,
                     "`upstream` for HTTP; `mcp` with `url` or `command` for an MCP server")  # fmt: skip
        return None
    if settings.upstream is not None:
        return read_upstream(settings.upstream, entry.at("upstream"), problems, takes_socket=True)
    if mcp is None or mcp.url is None:
        return Upstream("stdio", name, 0)
    return read_upstream(mcp.url, entry.at("mcp", "url"), problems)


def read_upstream(text: str, position: Position, problems: Problems, *, takes_socket: bool = False) -> Upstream | None:
    """Return the upstream of a base URL: http or https, a host, perhaps a port and a path; or `unix:` and a path."""
    if takes_socket and text.startswith("unix:"):
        return _read_socket(text.removeprefix("unix:"), position, problems)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        problems.add(position, "`upstream` is not a URL", "as in `https://api.example.com/v2`")
        return None
    default_port = {"http": 80, "https": 443}.get(parts.scheme)
    before = len(text) - len(text.lstrip())
    for is_wrong, message, hint in (
        (before or not text.isprintable() or " " in text, "holds a space or control character", "remove it"),
        (default_port is None, "must begin with `http://` or `https://`", "or `unix:/`" if takes_socket else ""),
        ("@" in parts.netloc, "must not hold a user or password", "use `credentials` with a secret"),
        ("?" in text, "must not hold a query", "queries belong to the calls"),
        ("#" in text, "must not hold a fragment", ""),
        (not host, "names no host", "as in `https://api.example.com/v2`"),
        (bool(host) and not _HOST.fullmatch(host), "names a host that is not ASCII or not a host", "use its xn-- form"),
        (port == 0, "names port 0", ""),
        (not _PREFIX.fullmatch(parts.path) or _has_dots(parts.path), "has a path that is not plain", "no `//` or `..`"),
    ):
        if is_wrong:
            problems.add(position, f"`upstream` {message}", hint)
            return None
    assert default_port is not None
    return Upstream(parts.scheme, host, port or default_port, parts.path.rstrip("/"))


def _read_socket(text: str, position: Position, problems: Problems) -> Upstream | None:
    """`/path/to.sock`, or `/path/to.sock:/prefix` as nginx writes it."""
    path, _, prefix = text.partition(":")
    for is_wrong, message, hint in (
        (not path.startswith("/") or path.endswith("/"), "names no file after `unix:`", "as in `unix:/run/tool.sock`"),
        (not path.isprintable() or "?" in path or "#" in path, "holds a character that a socket's path may not", ""),
        (len(os.fsencode(path)) > SOCKET_PATH_BYTES, f"names a path of more than {SOCKET_PATH_BYTES} bytes",
         "the system cannot connect to it; link to it from a shorter path"),
        (not _PREFIX.fullmatch(prefix) or _has_dots(prefix), "has a prefix that is not plain", "no `//` or `..`"),
    ):  # fmt: skip
        if is_wrong:
            problems.add(position, f"`upstream` {message}", hint)
            return None
    return Upstream("unix", "localhost", 0, prefix.rstrip("/"), path)


def read_hosts(entry: Entry[ToolSettings], problems: Problems) -> tuple[HostPattern, ...]:
    """Return the hosts that mean a tool where the gateway is a proxy."""
    patterns = []
    for index, text in enumerate(entry.settings.hosts):
        try:
            patterns.append(parse_host_pattern(text))
        except ValueError as error:
            problems.add(entry.at("hosts", index), f"`{shown(text)}` is not a host", str(error))
    return tuple(patterns)


def _has_dots(path: str) -> bool:
    return any(part.lower().replace("%2e", ".") in (".", "..") for part in path.split("/"))


def admission_of(entry: Entry[DomainSettings], problems: Problems) -> AdmissionSettings:
    """Return a domain's slots. One slot cannot be shared with a reserve, so then there is none unless one was asked for."""
    settings = entry.settings
    reserved = settings.reserved
    if reserved >= settings.concurrency:
        if "reserved" in entry.node.values:
            problems.add(
                entry.at("reserved"),
                f"`reserved` ({reserved}) must be less than `concurrency` ({settings.concurrency})",
                "the agents' own calls need a slot too",
            )
        reserved = settings.concurrency - 1
    return AdmissionSettings(
        concurrency=settings.concurrency,
        reserved=reserved,
        queue=settings.queue,
        when_full=settings.when_full,
        rate=settings.rate,
    )


def check_breaker(breaker: BreakerSettings, at: At, problems: Problems) -> None:
    """The ring must be able to hold the minimum, and the cooldown must fit under its bound."""
    if breaker.minimum > breaker.window:
        problems.add(
            at("breaker", "minimum"),
            f"`minimum` ({breaker.minimum}) must be at most `window` ({breaker.window})",
            "the ring never holds more outcomes than its window",
        )
    if breaker.cooldown > breaker.max_cooldown:
        problems.add(
            at("breaker", "cooldown"),
            f"`cooldown` ({breaker.cooldown:g} s) must be at most `max_cooldown` ({breaker.max_cooldown:g} s)",
        )


def check_retry(retry: RetrySettings, at: At, problems: Problems) -> None:
    """The first wait must fit under the bound of all."""
    if retry.base > retry.cap:
        problems.add(at("retry", "base"), f"`base` ({retry.base:g} s) must be at most `cap` ({retry.cap:g} s)")


def check_secret(name: str, entry: Entry[SecretSettings], problems: Problems) -> None:
    """A secret has exactly one source."""
    if (entry.settings.file is None) == (entry.settings.env is None):
        problems.add(entry.at(), f"secret `{shown(name)}` needs either `file` or `env`", "give exactly one")


def check_operation(settings: OperationSettings, at: At, problems: Problems) -> None:
    """A tier says what must be declared with it (design section 2, rules 3 to 5)."""
    tier = settings.tier
    has_undo = settings.compensator is not None
    for is_wrong, key, message, hint in (
        (tier == "compensable" and not has_undo, "tier", "a compensable operation needs a `compensator`",
         "name the call that undoes it, or declare it a pivot"),
        (tier == "pivot" and has_undo, "compensator", "a pivot cannot be undone, so it has no `compensator`",
         "declare it compensable if it can be undone"),
        (tier == "read" and has_undo, "compensator", "a read has no effect, so there is nothing to undo",
         "remove it, or declare what the operation really does"),
        (settings.journal is JournalMode.LAZY and tier != "reversible", "journal",
         "`journal: lazy` is for reversible operations only", "every other effect must be on disk before it is sent"),
        (settings.approval is ApprovalPolicy.REQUIRED and tier not in ("pivot", "compensable"), "approval",
         "`approval` is for pivot and compensable operations", "nothing is at stake here that a person must decide"),
        (bool(settings.gates) and tier not in ("pivot", "compensable"), "gates",
         "`gates` are for pivot and compensable operations", "nothing is at stake here that must be gated"),
        (settings.pivot is PivotMode.STAGE and tier != "pivot", "pivot", "`pivot: stage` is for pivots only",
         "what can be undone need not wait for the pivot"),
        (settings.lease is not None and (settings.lease.ttl is None) == (settings.lease.until is None), "lease",
         "a lease needs either `ttl` or `until`", "give exactly one"),
        (settings.lease is not None and tier == "read", "lease", "a read gives nothing that could run out",
         "declare what the operation really does"),
        (settings.leak is not None and tier == "read", "leak", "a read leaves nothing behind", "remove it"),
        (settings.probe is not None and settings.probe.landed is None and settings.probe.not_landed is None, "probe",
         "a probe needs `landed` or `not_landed`", "an expression over the probe's `response`"),
        (settings.probe is not None and settings.probe.result is not None and settings.probe.landed is None, "probe",
         "a probe with `result` needs `landed`", "the answer is rebuilt only for a step that landed"),
        (settings.probe is not None and tier == "read", "probe", "a read has no effect, so there is nothing to probe",
         "remove it"),
    ):  # fmt: skip
        if is_wrong:
            problems.add(at(key), message, hint)


def check_headers(entry: Entry[ToolSettings], problems: Problems) -> None:
    """Lists of header fields hold names of fields that could pass at all."""
    settings = entry.settings.headers
    for key, names in () if settings is None else (("allow", settings.allow), ("deny", settings.deny)):
        for index, name in enumerate(names):
            here = entry.at("headers", key, index)
            if not _FIELD.fullmatch(name):
                problems.add(
                    here, f"`{shown(name)}` is not a header name", "letters, digits and `-`, perhaps a `*` behind"
                )
            elif key == "allow" and name.lower().encode() in OURS_IN_REQUESTS:
                problems.add(here, f"`{shown(name)}` never reaches a tool as the agent sent it", "remove it")


def overrides_of(entry: Entry[ToolSettings], problems: Problems) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """Return what could replace method or path and may be sent to a tool all the same, and to each of its operations.

    A list of header fields that names one of them means it, too.
    """
    settings = entry.settings
    listed = () if settings.headers is None else settings.headers.allow
    own = _overrides(settings.overrides, entry, ("overrides",), problems) | FIELDS.intersection(
        map(_plain_field, listed)
    )
    return own, {
        name: own | _overrides(operation.overrides, entry, ("operations", name, "overrides"), problems)
        for name, operation in settings.operations.items()
    }


def _overrides(
    names: Iterable[str], entry: Entry[ToolSettings], at: tuple[str, ...], problems: Problems
) -> frozenset[str]:
    known = FIELDS | PARAMETERS
    found: set[str] = set()
    for index, name in enumerate(names):
        plain = name.lower() if name.startswith("_") else _plain_field(name)
        if entry.settings.mcp is not None:
            problems.add(entry.at(*at, index), "calls of an MCP server have no method and no path", "remove it")
        elif plain not in known:
            here = f"`{shown(name)}` is nothing that is known to replace method or path"
            problems.add(entry.at(*at, index), here, nearest(plain, known))
        found.add(plain)
    return frozenset(found)


def _plain_field(name: str) -> str:
    return name.lower().replace("_", "-")


def check_domain_of(entry: Entry[ToolSettings], loaded: Loaded, problems: Problems) -> None:
    """A tool's domain must be declared."""
    domain = entry.settings.domain
    if domain is not None and domain not in loaded.names["domains"]:
        problems.add(entry.at("domain"), f"unknown domain `{shown(domain)}`", nearest(domain, loaded.names["domains"]))
