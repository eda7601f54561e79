"""What one group commit writes: the pure part, from appends and the heads they meet to rows.

Each append is judged alone, in the order of the calls. One that finds another version is left out and named; its neighbours
are not touched. A head is written once a batch, however many appends moved it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.journal import Append, Conflict, Head, JournalError
from gateway.journal.fence import follow_up

__all__ = ["Facts", "Plan", "Standing", "plan_batch", "route_status"]


class Standing(NamedTuple):
    """A stream's row number and head."""

    id: int
    head: Head


Facts = tuple[str, str, str, str, str]
"""What the envelope of a record says beyond the record itself: stream, effect, destination, route, producer."""


@dataclass(slots=True)
class Plan:
    """Rows to write, and for each append its error or None.

    Attributes:
        errors: one for each append, in their order.
        records: (stream id, n, kind, at, data), in the order of commit.
        facts: for each record, what its envelope says beyond it.
        claims: (digest, stream id, step, expires_at); a later claim on a digest wins.
        created: heads to insert, by name.
        advanced: heads that only have another version and time of change: no index by name or state needs to be touched.
        changed: heads to update in other ways.
        opened: how many more streams are open afterwards; negative if fewer.
    """

    errors: list[JournalError | None]
    records: list[tuple[int, int, str, int, bytes]]
    facts: list[Facts]
    claims: list[tuple[bytes, int, int, int]]
    created: dict[str, Standing]
    advanced: dict[str, Standing]
    changed: dict[str, Standing]
    opened: int


def plan_batch(appends: Iterable[Append], known: Mapping[str, Standing], next_id: int) -> Plan:
    """Return what a batch writes, given the streams that exist (`known`) and the first free stream id."""
    plan = Plan([], [], [], [], {}, {}, {}, 0)
    latest: dict[str, Standing] = {}
    failed: dict[str, JournalError] = {}
    for append in appends:
        name = append.stream
        standing = latest.get(name) or known.get(name)
        error = _refusal(append, standing, failed.get(name))
        plan.errors.append(error)
        if error is not None:
            failed.setdefault(name, error)
            continue
        plan.opened += append.is_open - (standing is not None and standing.head.is_open)
        if standing is None:
            stream, opened_at = next_id, append.entries[0].at
            next_id += 1
        else:
            stream, opened_at = standing.id, standing.head.opened_at
        latest[name] = Standing(stream, _head_after(append, opened_at))
        _add_rows(plan, append, stream)
    for name, standing in latest.items():
        _heads_of(plan, known.get(name), standing.head)[name] = standing
    return plan


def _add_rows(plan: Plan, append: Append, stream: int) -> None:
    route = route_status(append.state, append.is_open)
    for n, entry in enumerate(append.entries, append.expected + 1):
        plan.records.append((stream, n, entry.kind, entry.at, entry.data))
        plan.facts.append((append.stream, entry.effect, entry.destination, route, append.agent))
    for claim in append.claims:
        plan.claims.append((claim.digest, stream, claim.step, claim.expires_at))


def _heads_of(plan: Plan, known: Standing | None, head: Head) -> dict[str, Standing]:
    if known is None:
        return plan.created
    before = known.head
    is_same = before.state == head.state and before.is_open == head.is_open and before.agent == head.agent
    return plan.advanced if is_same else plan.changed


def route_status(state: str, is_open: bool) -> str:
    """Return what envelopes say of a run's state: the state, and whether the run is open."""
    return f"{state}/open" if is_open else f"{state}/closed"


def _refusal(append: Append, standing: Standing | None, earlier: JournalError | None) -> JournalError | None:
    if earlier is not None:
        return follow_up(append.stream, earlier)
    version = standing.head.version if standing is not None else 0
    if version == append.expected:
        return None
    return Conflict(f"run {append.stream!r} is at version {version}, not {append.expected}: read it again")


def _head_after(append: Append, opened_at: int) -> Head:
    version, changed_at = append.expected + len(append.entries), append.entries[-1].at
    return Head(append.stream, version, append.state, append.is_open, append.agent, opened_at, changed_at)
