"""What one group commit writes: the pure part, from appends and the heads they meet to rows.

Each append is judged alone, in the order of the calls. One that finds another version is left out and named; its neighbours
are not touched. A head is written once a batch, however many appends moved it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.journal import Append, Conflict, Head, JournalError
from gateway.journal.fence import follow_up

__all__ = ["Facts", "Plan", "Standing", "plan_batch", "route_status"]


class Standing(NamedTuple):
    """A stream's row number and head."""

    id: int
    head: Head


class Facts(NamedTuple):
    """What the envelope of a record says beyond the record itself."""

    stream: str
    effect: str
    destination: str
    route: str
    producer: str


@dataclass(slots=True)
class Plan:
    """Rows to write, and for each append its error or None.

    Attributes:
        errors: one for each append, in their order.
        records: (stream id, n, kind, at, data), in the order of commit.
        facts: for each record, what its envelope says beyond it.
        claims: (digest, stream id, step, expires_at); a later claim on a digest wins.
        created, changed: heads to insert and to update, by name.
        opened: how many more streams are open afterwards; negative if fewer.
    """

    errors: list[JournalError | None] = field(default_factory=list)
    records: list[tuple[int, int, str, int, bytes]] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    claims: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    created: dict[str, Standing] = field(default_factory=dict)
    changed: dict[str, Standing] = field(default_factory=dict)
    opened: int = 0


def plan_batch(appends: Iterable[Append], known: Mapping[str, Standing], next_id: int) -> Plan:
    """Return what a batch writes, given the streams that exist (`known`) and the first free stream id."""
    plan = Plan()
    failed: dict[str, JournalError] = {}
    for append in appends:
        name = append.stream
        standing = plan.changed.get(name) or plan.created.get(name) or known.get(name)
        error = _refusal(append, standing, failed.get(name))
        plan.errors.append(error)
        if error is not None:
            failed.setdefault(name, error)
            continue
        plan.opened += append.is_open - (standing is not None and standing.head.is_open)
        if standing is None:
            plan.created[name] = standing = Standing(next_id, _head_after(append, append.entries[0].at))
            next_id += 1
        else:
            standing = Standing(standing.id, _head_after(append, standing.head.opened_at))
            (plan.created if name in plan.created else plan.changed)[name] = standing
        stream, route = standing.id, route_status(append.state, append.is_open)
        for n, entry in enumerate(append.entries, append.expected + 1):
            plan.records.append((stream, n, entry.kind, entry.at, entry.data))
            plan.facts.append(Facts(name, entry.effect, entry.destination, route, append.agent))
        for claim in append.claims:
            plan.claims.append((claim.digest, stream, claim.step, claim.expires_at))
    return plan


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
    return Head(
        stream=append.stream,
        version=append.expected + len(append.entries),
        state=append.state,
        is_open=append.is_open,
        agent=append.agent,
        opened_at=opened_at,
        changed_at=append.entries[-1].at,
    )
