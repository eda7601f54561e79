"""Drafts of manifests: what a machine may guess of a tool, and what it leaves to a person.

A description of an interface says what calls there are, not what they do to the world. So only what HTTP itself promises is
believed: a safe method reads (and not even that where the name says otherwise). Every write stays a pivot, the most careful
of all tiers, until a person has decided; pairs that look like a deed and its undoing are written as proposals, commented
out, with the reason beside them. A draft is a manifest that `seawall check` accepts as it stands.

Any importer makes a `DraftTool`; `guess` and the two `pairs_…` serve those for HTTP and for MCP alike.

Source: RFC 9110 section 9.2 (what methods promise); Garcia-Molina & Salem 1987 (a compensator is the designer's to say).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.core.manifest import Tier
from gateway.core.routing import SAFE_METHODS

__all__ = [
    "DOES",
    "SEARCHES",
    "DraftOperation",
    "DraftTool",
    "Guess",
    "Pair",
    "guess",
    "pairs_of_calls",
    "pairs_of_requests",
    "render",
    "slug",
    "words",
]

OPPOSITES: Final[tuple[tuple[str, str], ...]] = (
    ("create", "delete"), ("add", "remove"), ("hold", "release"), ("reserve", "release"), ("subscribe", "unsubscribe"),
    ("lock", "unlock"), ("enable", "disable"), ("activate", "deactivate"), ("attach", "detach"), ("start", "stop"),
    ("open", "close"), ("archive", "unarchive"), ("block", "unblock"), ("follow", "unfollow"), ("star", "unstar"),
    ("pin", "unpin"), ("publish", "unpublish"), ("suspend", "resume"), ("pause", "resume"), ("authorize", "void"),
    ("book", "cancel"), ("create", "cancel"), ("register", "deregister"), ("register", "unregister"), ("mute", "unmute"),
    ("join", "leave"), ("freeze", "unfreeze"), ("assign", "unassign"), ("grant", "revoke"), ("mount", "unmount"),
    ("link", "unlink"), ("put", "delete"), ("add", "delete"), ("insert", "delete"), ("upload", "delete"),
)  # fmt: skip
_UNDO: Final = ("cancel", "void", "release", "revoke", "undo", "withdraw", "terminate", "close")
DOES: Final = frozenset(
    [
        "send",
        "trigger",
        "execute",
        "run",
        "start",
        "stop",
        "reset",
        "approve",
        "reject",
        "publish",
        "purge",
        "activate",
        "deactivate",
        "refund",
        "pay",
        "transfer",
        "delete",
        "remove",
        "cancel",
        "create",
        "update",
        "set",
        "enable",
        "disable",
        "reboot",
        "restart",
        "revoke",
        "confirm",
        "submit",
        "unsubscribe",
        "logout",
    ]
)
SEARCHES: Final = frozenset(
    [
        "search",
        "query",
        "list",
        "get",
        "find",
        "lookup",
        "count",
        "validate",
        "preview",
        "estimate",
        "calculate",
        "check",
    ]
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Guess:
    """A tier, and the reason that stands beside it."""

    tier: Tier
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOperation:
    """One operation: `match` as the manifest has it; `identifier` names the field of its answer that names what it made."""

    name: str
    match: str
    guess: Guess
    identifier: str = "id"


@dataclass(frozen=True, slots=True)
class Pair:
    """A proposal: `name` may be undone by `undo`, with this request (and these members of its JSON) as compensator; without
    a request a person has to write one."""

    name: str
    undo: str
    request: str
    reason: str
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTool:
    """A tool. `where` are its lines that say where it lives, such as `upstream: …`; `proposals` lines for a person to
    take or leave; `notes` what was left out and why."""

    name: str
    where: tuple[str, ...]
    operations: tuple[DraftOperation, ...]
    pairs: tuple[Pair, ...] = ()
    proposals: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def words(text: str) -> list[str]:
    """Return the words of a name in whatever case, in lower case: `createPet`, `create_pet`, `create-pet`."""
    return [word.lower() for word in _WORD.findall(text)]


def slug(text: str, taken: Iterable[str] = ()) -> str:
    """Return a name that a manifest can have, and that is not taken."""
    base = "_".join(words(text))[:60].strip("_") or "operation"
    names, name, number = set(taken), base, 2
    while name in names:
        name, number = f"{base[:56]}_{number}", number + 1
    return name


def guess(method: str, name: str, path: str = "") -> Guess:
    """Return what an HTTP operation may be taken for. `name` is its identifier, `path` its template."""
    said = words(name)
    last = words(path.rstrip("/").rpartition("/")[2]) if "{" not in path.rpartition("/")[2] else []
    does = next((word for word in (*said[:1], *last) if word in DOES), None)
    if method in SAFE_METHODS:
        if does is None:
            return Guess(Tier.READ, f"{method} is safe (RFC 9110)")
        return Guess(Tier.PIVOT, f"undecided: {method} promises no effect, but its name says `{does}`")
    if method == "DELETE":
        return Guess(Tier.PIVOT, "undecided: what is deleted may be gone for good")
    if method == "PUT":
        return Guess(Tier.PIVOT, "undecided: what it replaces would have to be known to undo it")
    searches = next((word for word in (*said[:1], *last) if word in SEARCHES), None)
    if searches is not None:
        return Guess(Tier.PIVOT, f"undecided: `{searches}` sounds like a read; if it has no effect, declare it `read`")
    return Guess(Tier.PIVOT, f"undecided: {method} changes something, and nothing says how it is undone")


def pairs_of_requests(operations: Sequence[DraftOperation]) -> tuple[Pair, ...]:
    """Return the proposals for HTTP operations: by method and path, at most one for each operation."""
    by_match = {(_method(one), _shape(_path(one))): one for one in operations}
    found: dict[str, Pair] = {}
    for one in operations:
        if one.guess.tier is Tier.READ:
            continue
        pair = _created(one, operations) or _opposite(one, by_match) or _put(one, by_match)
        if pair is not None:
            found[one.name] = pair
    return tuple(found.values())


def _created(one: DraftOperation, operations: Sequence[DraftOperation]) -> Pair | None:
    """POST /things, and DELETE /things/{id} or POST /things/{id}/cancel."""
    method, path = _method(one), _path(one).rstrip("/")
    if method != "POST":
        return None
    made = f"{_shape(path)}/{{}}"
    ways = [f"DELETE {made}", *(f"{verb} {made}/{end}" for verb in ("POST", "DELETE") for end in _UNDO)]
    known = {f"{_method(other)} {_shape(_path(other))}": other for other in reversed(operations)}
    other = next((known[way] for way in ways if way in known), None)
    if other is None:
        return None
    below = _path(other).split("/")[path.count("/") + 2 :]
    request = "/".join((f"{_method(other)} {_bound(path)}", f"${{response.json.{one.identifier}}}", *below))
    reason = f"it ends what this makes; check that the answer names it as `{one.identifier}`"
    return Pair(one.name, other.name, request, reason)


def _opposite(one: DraftOperation, by_match: Mapping[tuple[str, str], DraftOperation]) -> Pair | None:
    """POST /things/{id}/hold, and POST /things/{id}/release."""
    method, path = _method(one), _path(one)
    parent, _, last = path.rstrip("/").rpartition("/")
    for deed, undo in OPPOSITES:
        if last.lower() != deed:
            continue
        for verb in dict.fromkeys((method, "POST", "DELETE", "PUT")):
            other = by_match.get((verb, _shape(f"{parent}/{undo}")))
            if other is not None:
                return Pair(
                    one.name,
                    other.name,
                    f"{verb} {_bound(f'{parent}/{undo}')}",
                    f"`{undo}` is the opposite of `{deed}`",
                )
    return None


def _put(one: DraftOperation, by_match: Mapping[tuple[str, str], DraftOperation]) -> Pair | None:
    """PUT /things/{id}, and DELETE of the same."""
    path = _path(one)
    other = by_match.get(("DELETE", _shape(path))) if _method(one) == "PUT" else None
    if other is None:
        return None
    return Pair(one.name, other.name, f"DELETE {_bound(path)}", "right only if nothing was there before")


def pairs_of_calls(names: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return (name, undo, reason) for calls that have names alone, as in MCP: `create_x` and `delete_x`."""
    split = {tuple(words(name)): name for name in names}
    found: dict[str, tuple[str, str, str]] = {}
    for parts, name in split.items():
        for at, word in enumerate(parts):
            for deed, undo in OPPOSITES:
                other = split.get((*parts[:at], undo, *parts[at + 1 :])) if word == deed else None
                if other is not None:
                    found.setdefault(name, (name, other, f"`{undo}` is the opposite of `{deed}`"))
    return tuple(found.values())


def _method(one: DraftOperation) -> str:
    return one.match.partition(" ")[0]


def _path(one: DraftOperation) -> str:
    return one.match.partition(" ")[2]


def _shape(path: str) -> str:
    return _HOLE.sub("{}", path.rstrip("/"))


def _bound(path: str) -> str:
    return _HOLE.sub(r"${params.\1}", path)


def render(tool: DraftTool, source: str) -> str:
    """Return the draft as YAML. `source` says what it was made from."""
    lines = [
        f"# Draft of a manifest, made from {_comment(source)}.",
        "# Nothing here was tried. Every write is a pivot (not to be undone, one in a run) until a person says otherwise.",
        "# PROPOSAL lines are guesses: take one over only if you know that it is right.",
        *(f"# Left out: {_comment(note)}" for note in tool.notes),
        "",
        "version: 1",
        "tools:",
        f"  {tool.name}:",
        *(f"    {line}" for line in tool.where),
        *(f"    # PROPOSAL {_comment(line)}" for line in tool.proposals),
    ]
    if tool.operations:
        lines.append("    operations:")
    pairs = {pair.name: pair for pair in tool.pairs}
    for one in tool.operations:
        lines.append(_line(one.name, one.match, one.guess.tier.value, one.guess.reason))
        if one.name in pairs:
            pair = pairs[one.name]
            lines.append(f"      # PROPOSAL undone by {pair.undo}: {_comment(pair.reason)}")
            if pair.request:
                undone = f", compensator: {_compensator(pair)}"
                lines.append("      # " + _line(one.name, one.match, "compensable" + undone, "").strip())
    return "\n".join(lines) + "\n"


def _line(name: str, match: str, tier: str, reason: str) -> str:
    line = f"      {name}: {{match: {_text(match)}, tier: {tier}}}"
    return f"{line}  # {_comment(reason)}" if reason else line


def _compensator(pair: Pair) -> str:
    if not pair.arguments:
        return _text(pair.request)
    members = ", ".join(f"{_text(name)}: {_text(value)}" for name, value in pair.arguments)
    return f"{{request: {_text(pair.request)}, json: {{{members}}}}}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def _comment(text: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain if len(plain) <= 300 else plain[:299] + "…"
