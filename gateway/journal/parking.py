"""Idle runs, packed: what a run takes while nobody uses it is one entry here, its name and some three hundred bytes.

Whoever asks for a run that is parked gets it as it was; what is asked of many, without waking them, stands in front of and
behind the packed run (`core/parked.py`):

    touched_s 8 | has what 1 | the packed run, its agent first | leases told of, parent | due at 8 | time to live 2 or 8

Nothing here decides when a run is parked, or knows what else is kept of runs: that is `journal/trajectories.py`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from gateway.core.gate import lease_problems
from gateway.core.packet import overdue_at
from gateway.core.packing import Reader, Shared, Unpackable, Writer
from gateway.core.parked import FORMS, Parked, pack, unpack
from gateway.core.trajectory import Trajectory

__all__ = ["Parking", "Resting", "Unpackable"]

_HEAD: Final = struct.Struct("<dB")
_DUE: Final = struct.Struct("<q")
_TTL: Final = struct.Struct("<H")
_OWN_TTL: Final = struct.Struct("<d")
"""Of a run whose time to live found no place in the table that all share."""

_HAS_TTL, _HAS_DUE, _HAS_MORE, _HAS_OWN_TTL = 1, 2, 4, 8
_NEVER: Final = 1 << 62


@dataclass(slots=True)
class Resting:
    """What is kept of an idle run.

    Attributes:
        parked: the run.
        touched_s: monotonic time of the last call.
        leases_over: of its leases, how many people were told to be over.
        parent: the run that counts it among its children, if that is not the one its packet names.
    """

    parked: Parked
    touched_s: float
    leases_over: int = 0
    parent: str = ""


class Parking:
    """The runs that are parked, by name."""

    def __init__(self, salt: bytes) -> None:
        """`salt`: of the keys of the runs' steps."""
        self._salt = salt
        self._shared = Shared()
        self._packed: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def names(self) -> list[str]:
        """Return who is parked."""
        return list(self._packed)

    def put(self, run: Resting, at: int) -> None:
        """Park a run. `at`: UTC milliseconds.

        Raises:
            Unpackable: it cannot be, and is not.
        """
        state = run.parked.state
        due, (has_ttl, ttl) = _due(run, at), self._ttl(state)
        has_more = bool(run.leases_over or run.parent)
        flags = has_ttl | (due is not None) * _HAS_DUE | has_more * _HAS_MORE
        tail = Writer(self._shared, FORMS)
        if has_more:
            tail.number(run.leases_over)
            tail.text(run.parent)
        if due is not None:
            tail.data += _DUE.pack(due)
        tail.data += ttl
        head = _HEAD.pack(run.touched_s, flags)
        self._packed[state.id] = pack(run.parked, self._salt, self._shared, head) + tail.data

    def _ttl(self, state: Trajectory) -> tuple[int, bytes]:
        """Return the flag of a run's time to live and the time as it is written: nothing where it has none."""
        if state.ttl_s is None or state.is_closing:
            return 0, b""
        number = self._shared.number(state.ttl_s)
        if number is None or number >= 1 << 16:
            return _HAS_OWN_TTL, _OWN_TTL.pack(state.ttl_s)
        return _HAS_TTL, _TTL.pack(number)

    def take(self, name: str) -> Resting:
        """Return a run that is parked, and know nothing of it any more.

        Raises:
            KeyError: it is not parked.
        """
        data = self._packed.pop(name)
        touched_s, flags = _HEAD.unpack_from(data)
        reader = Reader(data, self._shared, FORMS, _HEAD.size)
        run = Resting(unpack(name, reader, self._salt), touched_s)
        if flags & _HAS_MORE:
            run.leases_over = reader.number()
            run.parent = reader.text()
        return run

    def is_due(self, name: str, now: float, at: int) -> bool:
        """Whether time has made something due in a run that is parked; `at` is UTC milliseconds, `now` monotonic seconds."""
        data = self._packed.get(name)
        if data is None or not (flags := data[_HEAD.size - 1]) & (_HAS_TTL | _HAS_OWN_TTL | _HAS_DUE):
            return False
        end, ttl_s = len(data), math.inf
        if flags & _HAS_TTL:
            end -= _TTL.size
            ttl_s = self._shared.values[_TTL.unpack_from(data, end)[0]]
        elif flags & _HAS_OWN_TTL:
            end -= _OWN_TTL.size
            (ttl_s,) = _OWN_TTL.unpack_from(data, end)
        if now - _HEAD.unpack_from(data)[0] >= ttl_s:
            return True
        return bool(flags & _HAS_DUE) and at >= _DUE.unpack_from(data, end - _DUE.size)[0]

    def of_agent(self, agent: str) -> list[str]:
        """Return the names of an agent's runs."""
        known = Writer(self._shared, FORMS)
        known.common(agent)
        written = Writer(Shared(0), FORMS)
        written.common(agent)
        begins = bytes(known.data), bytes(written.data)
        return [name for name, data in self._packed.items() if data.startswith(begins, _HEAD.size)]


def _due(run: Resting, at: int) -> int | None:
    """Return when somebody has to look at a run, UTC milliseconds: its task is overdue, or a lease is over."""
    state = run.parked.state
    times = [until for number in state.leases if (until := state.steps[number].lease_until) is not None and until > at]
    if state.leases and len(lease_problems(state, at)) != run.leases_over:
        times.append(at)  # it is parked before the janitor came by
    if (overdue := overdue_at(state)) is not None:
        times.append(overdue)
    due = min(times, default=_NEVER)
    return None if due >= _NEVER else due
