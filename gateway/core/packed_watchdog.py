"""A watchdog as few bytes, beside the packed run that it watches.

Most of what a watchdog remembers follows from the run's steps: the actions of late are theirs, a state is the one before it
and one more action, what stands is what their compensators would undo. Where that is so, it is not written; what else it
knows is written as it is. What is read is the watchdog that was written, member for member.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Any, Final

from gateway.core.packing import Reader, Writer
from gateway.core.trajectory import StepState, Trajectory
from gateway.core.watchdog import _BITS, _GOLDEN, Watchdog, _Orbit, _State, action_hash, inverse

__all__ = ["read_watchdog", "write_watchdog"]

_GENTLE: Final = 1
_ALL_RECENT: Final = 2
_TOTAL_KNOWN: Final = 4
_PLAIN: Final = 8
"""Nothing of what few watchdogs have: it is written then, in `_RARE`'s order."""

_RARE: Final = (
    "_best", "_better_step", "_interrupted_at", "_masked", "_pending", "_rewinds", "_seen", "_sum", "heard_s", "since",
)  # fmt: skip
_USUAL: Final = (NotImplemented, 0, None, None, None, 0, None, 0.0, -math.inf, 0)
"""What stands there in most; an empty collection is as usual as none."""


class _Known:
    """What follows from a run's steps."""

    def __init__(self, state: Trajectory) -> None:
        self.actions = {number: _blob(step.action) for number, step in state.steps.items()}
        self.hashes = {number: action_hash(action) for number, action in self.actions.items()}
        self._state = state

    def inverse(self, number: int) -> Hashable:
        """Return what names the call that undoes a step; None where there is none."""
        step = self._state.steps.get(number)
        return None if step is None or step.compensator is None else inverse(step.compensator)

    def inverses(self) -> dict[Hashable, int]:
        """Return the steps by what undoes them."""
        return {
            inverse(step.compensator): number
            for number, step in self._state.steps.items()
            if step.compensator is not None
        }

    def total(self, standing: dict[Hashable, int]) -> int:
        """Return what the steps amount to if those that stand are all that were done, beside those that stand for ever."""
        for_ever = sum(
            number + 1
            for number, step in self._state.steps.items()
            if step.state is StepState.COMMITTED and step.compensator is None
        )
        return (sum(standing.values()) + for_ever * _GOLDEN) & _BITS

    def state_after(self, before: int, number: int, kind: int) -> int | None:
        """Return the state after a step, if it is one that can be undone (1) or stands for ever (2)."""
        if kind == _STOOD:
            return (before + (number + 1) * _GOLDEN) & _BITS
        action = self.hashes.get(number)
        return None if action is None else (before + action) & _BITS


_WRITTEN, _UNDOABLE, _STOOD = 0, 1, 2


def _blob(action: str) -> bytes:
    try:
        return bytes.fromhex(action)
    except ValueError:
        return action.encode()


def write_watchdog(writer: Writer, dog: Watchdog, state: Trajectory) -> None:
    """Write a watchdog; `state` is written before it.

    Raises:
        Unpackable: it holds something of a type that is not known.
    """
    known, effects = _Known(state), dog.effects
    undoers = known.inverses() if effects._standing else {}
    standing = {call: undoers.get(call) for call in effects._standing}
    is_total = effects._total == known.total(effects._standing)
    is_all = dog._recent == list(known.actions.values())
    is_plain = not any(_rare(dog))
    writer.number(dog._is_gentle * _GENTLE | is_all * _ALL_RECENT | is_total * _TOTAL_KNOWN | is_plain * _PLAIN)
    writer.common(dog.settings)
    for number in (dog.step, dog.step - dog._changes, dog._last_step, dog._changes - dog._since_better):
        writer.signed(number)
    if not is_all:
        writer.value(dog._recent)
    _write_effects(writer, dog, standing, known, is_total=is_total)
    _write_orbits(writer, dog._orbits, known)
    if not is_plain:
        for member in _rare(dog):
            writer.value(member)


def _rare(dog: Watchdog) -> list[Any]:
    """Return what few watchdogs have, each None where this one has not."""
    members = [getattr(dog, name) for name in _RARE]
    return [
        None if member == usual or member in ({}, None) else member
        for member, usual in zip(members, _USUAL, strict=True)
    ]


def _write_effects(
    writer: Writer, dog: Watchdog, standing: dict[Hashable, int | None], known: _Known, *, is_total: bool
) -> None:
    effects = dog.effects
    if not is_total:
        writer.number(effects._total)
    writer.number(effects._read)
    writer.number(len(standing))
    for call, number in standing.items():
        action = effects._standing[call]
        if number is not None and known.hashes.get(number) == action:
            writer.number(number)
        else:
            writer.number(0)
            writer.value(call)
            writer.number(action)


def _write_orbits(writer: Writer, orbits: OrderedDict[str, _Orbit], known: _Known) -> None:
    writer.number(len(orbits))
    for source, orbit in orbits.items():
        writer.common(source)
        writer.number(orbit.limit)
        writer.common(tuple(orbit.needed))
        writer.common(tuple(orbit.rows))
        writer.number(len(orbit.states) << 1 | orbit.has_rows)
        before = _State(0, 0, 0)
        for state in orbit.states:
            _write_state(writer, before, state, known)
            before = state


def _write_state(writer: Writer, before: _State, state: _State, known: _Known) -> None:
    kinds = [kind for kind in (_UNDOABLE, _STOOD) if known.state_after(before.value, state.step, kind) == state.value]
    kind = kinds[0] if kinds else _WRITTEN
    is_next = (state.action, state.step) == (before.action + 1, before.step + 1)
    writer.number(kind << 1 | is_next)
    if not is_next:
        writer.signed(state.action - before.action)
        writer.signed(state.step - before.step)
    if not kind:
        writer.signed(state.value)


def read_watchdog(reader: Reader, state: Trajectory) -> Watchdog:
    """Return the watchdog that was written; `state` was read before it."""
    known, flags = _Known(state), reader.number()
    dog = Watchdog(reader.common(), is_gentle=bool(flags & _GENTLE))
    dog.step = reader.signed()
    dog._changes = dog.step - reader.signed()
    dog._last_step = reader.signed()
    dog._since_better = dog._changes - reader.signed()
    dog._recent = list(known.actions.values()) if flags & _ALL_RECENT else reader.value()
    dog._counts = dict(Counter(dog._recent))
    _read_effects(reader, dog, known, is_total=bool(flags & _TOTAL_KNOWN))
    _read_orbits(reader, dog, known)
    if not flags & _PLAIN:
        for name in _RARE:
            member = reader.value()
            if member is not None:
                setattr(dog, name, member)
    return dog


def _read_effects(reader: Reader, dog: Watchdog, known: _Known, *, is_total: bool) -> None:
    effects = dog.effects
    total = None if is_total else reader.number()
    effects._read = reader.number()
    for _ in range(reader.number()):
        number = reader.number()
        if number:
            effects._standing[known.inverse(number)] = known.hashes[number]
        else:
            effects._standing[reader.value()] = reader.number()
    effects._total = known.total(effects._standing) if total is None else total


def _read_orbits(reader: Reader, dog: Watchdog, known: _Known) -> None:
    for _ in range(reader.number()):
        source, limit = reader.common(), reader.number()
        needed, rows, count = list(reader.common()), list(reader.common()), reader.number()
        orbit = dog._orbits[source] = _Orbit([], limit, rows, needed, bool(count & 1))
        before = _State(0, 0, 0)
        for _ in range(count >> 1):
            before = _read_state(reader, before, known)
            orbit.append(before)


def _read_state(reader: Reader, before: _State, known: _Known) -> _State:
    code = reader.number()
    is_next, kind = code & 1, code >> 1
    action = before.action + (1 if is_next else reader.signed())
    step = before.step + (1 if is_next else reader.signed())
    value = known.state_after(before.value, step, kind) if kind else reader.signed()
    assert value is not None
    return _State(value, action, step)
