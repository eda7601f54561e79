"""An idle run as few bytes: its state, what it has spent and its watchdog, all of which are read back exactly.

A run of five steps takes six kilobytes of objects while it is at work, and there may be a hundred thousand runs that wait
for their agents. Half of what is left once it is packed are the digests that repeats are told by, which nobody can make
smaller. What follows from something else is left out: its number from a step's place, the idempotency key from the salt
and the action, when it ended from when it began, most of the watchdog from the steps. What it has in common with others
is a number (`core/packing.py`).

Anything that is not as expected is written as it is, and what cannot be written keeps its run from being packed.

Source: research/performance, target P10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.core.approval import Approval, ApprovalState, Vote
from gateway.core.approval import Verdict as Vote_
from gateway.core.budget import Meter
from gateway.core.circles import Circles
from gateway.core.keys import derive_key
from gateway.core.manifest import Tier
from gateway.core.packed_watchdog import read_watchdog, write_watchdog
from gateway.core.packing import Forms, Reader, Shared, Writer
from gateway.core.records import ApprovalRequested, LoopInterrupted, MetricsReported, StateReported
from gateway.core.tool import BoundRequest
from gateway.core.trajectory import Blocked, Clearance, Incident, Notice, Phase, Planned, Step, StepState, Trajectory
from gateway.core.watchdog import (
    Ended,
    Loop,
    Pattern,
    Verdict,
    Watchdog,
    WatchdogMode,
    WatchdogSettings,
    _Pending,
    _Seen,
)

__all__ = ["FORMS", "Parked", "pack", "unpack"]

FORMS: Final = Forms(
    [
        Approval, ApprovalRequested, Blocked, BoundRequest, Circles, Clearance, Incident, Loop, LoopInterrupted,
        MetricsReported, Notice, Planned, StateReported, Step, Vote, WatchdogSettings, _Pending, _Seen,
    ],
    [ApprovalState, Ended, Pattern, Phase, StepState, Tier, Verdict, Vote_, WatchdogMode],
)  # fmt: skip


@dataclass(slots=True)
class Parked:
    """What is packed of a run, beside its name, which whoever keeps it has."""

    state: Trajectory
    meter: Meter | None
    watch: Watchdog | None


def pack(parked: Parked, salt: bytes, shared: Shared, head: bytes = b"") -> bytes:
    """Return the bytes of a run behind `head`, which may hold anything.

    Raises:
        Unpackable: it holds something of a type that is not known, or nested too deeply.
    """
    writer = Writer(shared, FORMS)
    writer.data += head
    _write_state(writer, parked.state, salt)
    _write_meter(writer, parked.meter, parked.state)
    writer.number(parked.watch is not None)
    if parked.watch is not None:
        write_watchdog(writer, parked.watch, parked.state)
    return bytes(writer.data)


def unpack(name: str, reader: Reader, salt: bytes) -> Parked:
    """Return the run of that name from its bytes, and leave the reader behind them."""
    state = _read_state(reader, name, salt)
    meter = _read_meter(reader, state)
    return Parked(state, meter, read_watchdog(reader, state) if reader.number() else None)


# --- the run

_BY_HAND: Final = frozenset({
    "id", "agent", "version", "opened_at", "changed_at", "steps", "actions", "callers", "standing",
})  # fmt: skip
_FIRST: Final = ("newly_delivered", "undelivered", "ttl_s", "on_abandon", "reads", "is_implicit", "labels")
"""Members that more runs have than others: the mask is short where no other is there."""


def _in_order(kind: type[Any], first: Sequence[str], without: frozenset[str]) -> list[tuple[str, Any]]:
    usual = dict(Forms([kind], []).shapes[0][1])
    return [(name, usual[name]) for name in (*first, *(n for n in usual if n not in first and n not in without))]


_STATE: Final = _in_order(Trajectory, _FIRST, _BY_HAND)
_ODD_ACTIONS: Final = 1
_ODD_CALLERS: Final = 2


def _write_state(writer: Writer, state: Trajectory, salt: bytes) -> None:
    writer.common(state.agent)
    writer.number(state.opened_at)
    writer.number(len(state.steps))
    order, at = 1, state.opened_at
    for number, step in state.steps.items():
        order, at = _write_step(writer, step, number, order, at, (state.id, salt))
    writer.signed(state.version - order)
    writer.signed(state.changed_at - at)
    has_odd = (state.actions != _actions(state)) * _ODD_ACTIONS | (state.callers != _callers(state)) * _ODD_CALLERS
    writer.number(has_odd)
    if has_odd & _ODD_ACTIONS:
        writer.value(state.actions)
    if has_odd & _ODD_CALLERS:
        writer.value(state.callers)
    writer.members(state, _STATE)


def _read_state(reader: Reader, name: str, salt: bytes) -> Trajectory:
    agent, opened_at, count = reader.common(), reader.number(), reader.number()
    state = Trajectory(id=name, agent=agent, opened_at=opened_at)
    order, at = 1, opened_at
    for number in range(1, count + 1):
        step, order, at = _read_step(reader, number, order, at, (name, salt))
        state.steps[number] = step
    state.version = order + reader.signed()
    state.changed_at = at + reader.signed()
    has_odd = reader.number()
    state.actions = reader.value() if has_odd & _ODD_ACTIONS else _actions(state)
    state.callers = reader.value() if has_odd & _ODD_CALLERS else _callers(state) or state.callers
    for member, value in reader.members(_STATE).items():
        setattr(state, member, value)
    return state


def _actions(state: Trajectory) -> dict[str, int]:
    return {step.action: number for number, step in state.steps.items()}


def _callers(state: Trajectory) -> dict[str, int]:
    return {step.caller: number for number, step in state.steps.items() if step.caller is not None}


# --- a step

_DIGEST: Final = 16
_TARGETS, _UNDOERS, _BODIES = 1, 2, 3
"""Lanes of texts."""

_ODD_DIGESTS, _ODD_KEY, _ODD_PLACE, _REPEATED, _ODD_HEADERS, _UNENDED, _ODD = (1 << bit for bit in range(7))

_RARE_OF_STEP: Final = _in_order(
    Step,
    ("caller", "detail", "answer"),
    frozenset({
        "number", "tool", "operation", "tier", "action", "fingerprint", "occurrence", "key", "state", "order",
        "is_idempotent", "intended_at", "intended", "method", "target", "is_delivered", "compensator", "is_residue",
        "undo_turn", "committed_at", "fault", "status", "is_staged",
    }),
)  # fmt: skip

_Place = tuple[str, bytes]
"""Where keys come from: the run's name, and the salt."""


def _key(step: Step, place: _Place) -> str:
    return derive_key(place[1], place[0], step.tool, step.operation, step.action, str(step.occurrence))


def _common(step: Step) -> tuple[Any, ...]:
    """Return what many steps have in common."""
    undo = step.compensator
    how = None if undo is None else (undo.tool, undo.method, _kinds(undo), undo.body is not None)
    return (
        step.tool, step.operation, step.tier, step.state, step.is_idempotent, step.method, step.is_delivered,
        step.undo_turn, step.fault, step.status, step.is_staged, step.is_residue, how,
    )  # fmt: skip


def _kinds(undo: BoundRequest) -> tuple[tuple[str, str], ...]:
    """Return the headers of a compensator if they only say what its body is."""
    return undo.headers if all(name.lower() == "content-type" for name, _ in undo.headers) else ()


def _write_step(writer: Writer, step: Step, number: int, order: int, at: int, place: _Place) -> tuple[int, int]:
    """Write a step; return its order and when it ended, from which the next one's follow."""
    assert step.number == number
    action, content = _digest(step.action), _digest(step.fingerprint)
    undo = step.compensator
    rare = [(name, usual) for name, usual in _RARE_OF_STEP if getattr(step, name) != usual]
    odd = (
        (action is None or content is None) * _ODD_DIGESTS
        | (step.key != _key(step, place)) * _ODD_KEY
        | ((step.intended, step.order) != (order + 1, order + 2)) * _ODD_PLACE
        | (step.occurrence != 1) * _REPEATED
        | (undo is not None and undo.headers != _kinds(undo)) * _ODD_HEADERS
        | (step.committed_at == 0) * _UNENDED
        | bool(rare) * _ODD
    )
    writer.number(odd)
    writer.common(_common(step))
    if action is None or content is None:
        writer.value(step.action)
        writer.value(step.fingerprint)
    else:
        writer.raw(action)
        writer.raw(content)
    if odd & _REPEATED:
        writer.signed(step.occurrence)
    if odd & _ODD_KEY:
        writer.value(step.key)
    if odd & _ODD_PLACE:
        writer.signed(step.intended - order)
        writer.signed(step.order - step.intended)
    writer.signed(step.intended_at - at)
    if not odd & _UNENDED:
        writer.signed(step.committed_at - step.intended_at)
    writer.text(step.target, _TARGETS)
    if undo is not None:
        _write_undo(writer, undo, has_headers=bool(odd & _ODD_HEADERS))
    if rare:
        writer.members(step, _RARE_OF_STEP)
    return step.order, step.committed_at or step.intended_at


def _digest(text: str) -> bytes | None:
    """Return a digest's bytes, if it is a usual one."""
    if len(text) != 2 * _DIGEST:
        return None
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if digest.hex() == text else None


def _write_undo(writer: Writer, undo: BoundRequest, *, has_headers: bool) -> None:
    writer.text(undo.target, _UNDOERS)
    if has_headers:
        writer.value(undo.headers)
    if undo.body is not None:
        writer.text(undo.body, _BODIES)


def _read_step(reader: Reader, number: int, order: int, at: int, place: _Place) -> tuple[Step, int, int]:
    odd = reader.number()
    (
        tool, operation, tier, state, is_idempotent, method, is_delivered, undo_turn, fault, status, is_staged,
        is_residue, how,
    ) = reader.common()  # fmt: skip
    if odd & _ODD_DIGESTS:
        action, content = reader.value(), reader.value()
    else:
        action, content = reader.raw(_DIGEST).hex(), reader.raw(_DIGEST).hex()
    occurrence = reader.signed() if odd & _REPEATED else 1
    step = Step(number, tool, operation, tier, action, content, occurrence, "", state, 0)
    step.key = reader.value() if odd & _ODD_KEY else _key(step, place)
    step.intended = order + (reader.signed() if odd & _ODD_PLACE else 1)
    step.order = step.intended + (reader.signed() if odd & _ODD_PLACE else 1)
    step.intended_at = at + reader.signed()
    step.committed_at = 0 if odd & _UNENDED else step.intended_at + reader.signed()
    step.is_idempotent, step.method, step.is_delivered, step.undo_turn = is_idempotent, method, is_delivered, undo_turn
    step.fault, step.status, step.is_staged, step.is_residue = fault, status, is_staged, is_residue
    step.target = reader.text(_TARGETS)
    if how is not None:
        step.compensator = _read_undo(reader, how, has_headers=bool(odd & _ODD_HEADERS))
    if odd & _ODD:
        for member, value in reader.members(_RARE_OF_STEP).items():
            setattr(step, member, value)
    return step, step.order, step.committed_at or step.intended_at


def _read_undo(reader: Reader, how: tuple[Any, ...], *, has_headers: bool) -> BoundRequest:
    tool, method, headers, has_body = how
    target = reader.text(_UNDOERS)
    if has_headers:
        headers = reader.value()
    return BoundRequest(tool, method, target, headers, reader.text(_BODIES) if has_body else None)


# --- what it has spent

_METERED: Final = 1
_OF_STATE: Final = 2
"""Its caps are the run's own."""


def _write_meter(writer: Writer, meter: Meter | None, state: Trajectory) -> None:
    if meter is None:
        writer.number(0)
        return
    is_own = meter.caps is state.budget
    writer.number(_METERED | is_own * _OF_STATE)
    if not is_own:
        writer.value(meter.caps)
    writer.signed(meter.opened_at - state.opened_at)
    writer.common(tuple(meter.used))
    for amount in meter.used.values():
        writer.value(amount)


def _read_meter(reader: Reader, state: Trajectory) -> Meter | None:
    flags = reader.number()
    if not flags:
        return None
    caps = state.budget if flags & _OF_STATE else reader.value()
    meter = Meter(caps, {}, state.opened_at + reader.signed())
    meter.used = {name: reader.value() for name in reader.common()}
    return meter
