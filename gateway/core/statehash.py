"""One number for a state of the world, and one for what a tool answered: equal where nothing that matters differs.

States are JSON. Members are sorted, and those whose names say that they change by themselves (times, request ids, entity
tags) are left out on every level. The list is short on purpose: a name that is left out and does matter would make two
different states equal, and an honest run a loop. A manifest adds the names of its own tools.

A tool's "no" is compared the same way; one that is not JSON as text without ids, times, addresses and paths, but with its
numbers: three failing tests and five failing tests are two answers.

Source: seed 000, "Measurable invariants of semantic progress" (canonical snapshots without file times).
Left out: SHA-256, which the seed uses; within one run's window of states 64 bits never collide by chance, and nobody gains
by making two states of one's own run collide.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import orjson
import xxhash

from gateway.core.signature import normalise

__all__ = ["VOLATILE", "no_hash", "result_hash", "state_hash"]

VOLATILE: Final = frozenset({
    "timestamp", "updated_at", "updatedat", "modified_at", "modifiedat", "mtime", "atime", "ctime", "generated_at",
    "etag", "request_id", "requestid", "trace_id", "traceid", "correlation_id", "uptime",
})  # fmt: skip
"""Names of members that change by themselves, in lower case."""

DEPTH: Final = 64
"""Levels that are looked into; what lies deeper counts as it is."""

TEXT_LIMIT: Final = 4096
"""Bytes of a failing answer that is no JSON which count."""

JSON_LIMIT: Final = 64 * 1024
"""Answers up to this size are read as JSON; larger ones are hashed as they are."""


def state_hash(state: object, volatile: Collection[str] = frozenset()) -> int:
    """Return 64 bits for a state.

    Args:
        state: a JSON value.
        volatile: further names of members to leave out, in lower case.

    Raises:
        TypeError: it is no JSON value.
    """
    names = VOLATILE | frozenset(volatile) if volatile else VOLATILE
    return xxhash.xxh64_intdigest(orjson.dumps(_kept(state, names, DEPTH), option=orjson.OPT_SORT_KEYS))


def result_hash(status: int, body: bytes) -> int:
    """Return 64 bits for an answer as it is."""
    return xxhash.xxh64_intdigest(body, seed=status)


def no_hash(status: int, body: bytes, volatile: Collection[str] = frozenset()) -> int:
    """Return 64 bits for an answer that said no, apart from what is another each time."""
    if len(body) <= JSON_LIMIT:
        try:
            return state_hash([status, orjson.loads(body)], volatile)
        except ValueError:
            pass
    text = normalise(body[:TEXT_LIMIT].decode("utf-8", "replace"), keep_numbers=True)
    return xxhash.xxh64_intdigest(text.encode("utf-8", "surrogatepass"), seed=status)


def _kept(value: object, names: frozenset[str], depth: int) -> object:
    if depth and isinstance(value, dict):
        return {
            name: _kept(member, names, depth - 1)
            for name, member in value.items()
            if not (isinstance(name, str) and name.lower() in names)
        }
    if depth and isinstance(value, list):
        return [_kept(member, names, depth - 1) for member in value]
    return value
