"""Drafts from MCP tools: what their names, hints and schemas let one guess, and nothing more.

A hint is a claim of the server about itself. `readOnlyHint` makes a read, as it does without a manifest, unless another hint
or the name contradicts it; a hint that would make us less careful (`destructiveHint: false`, `idempotentHint: true`) is
told beside the line and changes nothing. Pairs of names that look like a deed and its undoing become proposals, with the
arguments of the undoing bound from those of the deed, or from its declared answer, where they are called the same. What
cannot be bound is left to a person: a made-up argument would undo something else.

Source: MCP 2025-11-25 "Tools" (annotations are untrusted); docs/adr/0083-drafts.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.draft import DOES, SEARCHES, DraftOperation, Guess, Pair, pairs_of_calls, slug, words
from gateway.core.manifest import Tier
from gateway.core.mcp_tools import CALL, Definition

__all__ = ["drafted", "guess_call"]

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_Drafted = tuple[tuple[DraftOperation, ...], tuple[Pair, ...], tuple[str, ...]]


def drafted(definitions: Sequence[Definition]) -> _Drafted:
    """Return the operations, the proposals, and notes on what was left out."""
    operations: list[DraftOperation] = []
    notes: list[str] = []
    known: dict[str, Definition] = {}
    names: dict[str, str] = {}
    for one in definitions:
        if one.name in known:
            notes.append(f"{one.name}: it is listed twice")
        elif one.name != one.name.strip() or not one.name.isprintable() or "$" in one.name:
            notes.append(f"{one.name}: a manifest cannot have such a name")
        else:
            known[one.name] = one
            names[one.name] = slug(one.name, names.values())
            match = f"{CALL} {one.name}"
            guess = guess_call(one.name, one.value.get("annotations"))
            operations.append(DraftOperation(name=names[one.name], match=match, guess=guess))
    tiers = {one.match: one.guess.tier for one in operations}
    pairs = tuple(
        _pair(known[deed], known[undo], names, reason)
        for deed, undo, reason in pairs_of_calls(tuple(known))
        if tiers[f"{CALL} {deed}"] is not Tier.READ
    )
    return tuple(operations), pairs, tuple(notes)


def guess_call(name: str, annotations: object) -> Guess:
    """Return what an MCP tool may be taken for."""
    hints = annotations if isinstance(annotations, Mapping) else {}
    verb = next((word for word in words(name)[:2] if word in DOES or word in SEARCHES), None)
    if hints.get("readOnlyHint") is True:
        if hints.get("destructiveHint") is True:
            return Guess(Tier.PIVOT, "undecided: it says readOnlyHint and destructiveHint at once")
        if verb in DOES:
            return Guess(Tier.PIVOT, f"undecided: it says readOnlyHint, but its name says `{verb}`")
        return Guess(Tier.READ, "it says readOnlyHint; its definition is pinned")
    if hints.get("destructiveHint") is True:
        return Guess(Tier.PIVOT, "undecided: it says destructiveHint: what it does may be gone for good")
    if verb in SEARCHES:
        return Guess(Tier.PIVOT, f"undecided: `{verb}` sounds like a read; if it has no effect, declare it `read`")
    if hints.get("idempotentHint") is True:
        return Guess(Tier.PIVOT, "undecided: it says idempotentHint; if that is so, add `idempotent: true`")
    if hints.get("destructiveHint") is False:
        return Guess(Tier.PIVOT, "undecided: it says that it only adds, and not how that is undone")
    return Guess(Tier.PIVOT, "undecided: it has no hints, and nothing says how it is undone")


def _pair(deed: Definition, undo: Definition, names: Mapping[str, str], reason: str) -> Pair:
    wanted = _wanted(undo.schema)
    bound = {name: source for name in wanted if (source := _source(name, deed)) is not None}
    missing = [name for name in wanted if name not in bound]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        return Pair(names[deed.name], names[undo.name], "", f"{reason}; say yourself where its {listed} comes from")
    reason = f"{reason}; check where its arguments come from" if bound else reason
    return Pair(names[deed.name], names[undo.name], f"{CALL} {undo.name}", reason, tuple(bound.items()))


def _wanted(schema: object) -> list[str]:
    """The arguments that a call needs; all of them if it does not say."""
    needed = schema.get("required") if isinstance(schema, Mapping) else None
    if isinstance(needed, list) and needed:
        return [name for name in needed if isinstance(name, str)]
    return list(_properties(schema))


def _source(name: str, deed: Definition) -> str | None:
    """Return the expression that gives an argument of the undoing, or None if nothing is called so."""
    given, answered = _properties(deed.schema), _properties(deed.value.get("outputSchema"))
    if name in given:
        return f"${{request.json{_member(name)}}}"
    if name in answered:
        return f"${{response.json.structuredContent{_member(name)}}}"
    if words(name)[-1:] == ["id"] and "id" in answered:
        return "${response.json.structuredContent.id}"
    return next(filter(None, (_of_each(name, key, inner) for key, inner in given.items())), None)


def _of_each(name: str, key: str, schema: object) -> str | None:
    """`entityNames` from `entities`, each of which has a `name`."""
    items = schema.get("items") if isinstance(schema, Mapping) else None
    for member in _properties(items):
        plural = [*words(_singular(key)), *words(member)]
        if _PLAIN.fullmatch(member) and [*plural[:-1], f"{plural[-1]}s"] == words(name):
            return f"${{request.json{_member(key)}.map(one, one.{member})}}"
    return None


def _singular(name: str) -> str:
    return name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")


def _properties(schema: object) -> Mapping[str, object]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _member(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return f".{name}"
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{quoted}']"
