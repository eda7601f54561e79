"""The calls that are under way at the tools, so that those of a quarantined run can be cut, and none leaves any more.

It stands at the very end of the pipeline: whatever a call waited for further out, the last thing before it leaves is the
question whether its run has been severed. A write that is cut may have had its effect, so it is in doubt; a read has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.core.call import Call
from gateway.core.codes import Code, Dispatched
from gateway.core.containment import Containment
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Refusal

__all__ = ["Cuttable", "Flights", "cut_off", "quarantined"]


class Cuttable(Protocol):
    """An answer's body on its way that can be broken off from outside."""

    def cut(self) -> None:
        """Break it off: whoever reads it gets an error. May be repeated."""


class Flights:
    """Calls under way, by the task that waits for each.

    Attributes:
        state: what is contained; its two maps are empty nearly always, and then nothing is looked up.
        flying: calls under way, each with the task that waits for it. Whoever sends a call adds it and takes it off; this is
            on every call's way, so there is no method for it.
    """

    __slots__ = ("_cut", "_streams", "flying", "state")

    def __init__(self, state: Containment | None = None) -> None:
        self.state = Containment() if state is None else state
        self.flying: dict[Call, asyncio.Task[object] | None] = {}
        self._cut: set[Call] = set()
        self._streams: WeakKeyDictionary[Cuttable, Call] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.flying)

    def severed(self, call: Call) -> str | None:
        """Return the quarantine because of which the call must not leave, or None."""
        state = self.state
        if not state.runs and not state.agents:
            return None
        return state.holds(call.trajectory, call.agent)

    def streams(self, call: Call, body: Cuttable) -> None:
        """The call's answer is passed on as it comes."""
        self._streams[body] = call

    def was_cut(self, call: Call) -> bool:
        """Whether a cancellation of the current task is ours and nobody else's; it is taken back then."""
        if call not in self._cut:
            return False
        self._cut.discard(call)
        task = asyncio.current_task()
        return task is None or task.uncancel() == 0

    def cut(self, is_meant: Callable[[Call], bool]) -> int:
        """Break off the calls and streams that are meant; return how many. Their tasks go on with an outcome."""
        count = 0
        for call, task in list(self.flying.items()):
            if task is not None and call not in self._cut and is_meant(call):
                self._cut.add(call)
                task.cancel()
                count += 1
        for body, call in list(self._streams.items()):
            if is_meant(call):
                body.cut()
                count += 1
        return count


def quarantined(call: Call, quarantine: str, *, may_have_left: bool = False) -> Refusal:
    """Return the refusal of a call whose run is quarantined."""
    what = "was broken off" if may_have_left else "was not sent"
    return Refusal(
        code=Code.QUARANTINED,
        dispatched=Dispatched.MAYBE if may_have_left else Dispatched.NO,
        dependency=call.tool.name,
        detail=f"The call of {call.tool.name} {what}: this run is quarantined ({quarantine}). Send nothing more; an "
        "operator has to look at it.",
        extra={"quarantine": quarantine},
    )


def cut_off(call: Call, quarantine: str) -> Failed | InDoubt:
    """Return what became of a call that was cut in flight."""
    refusal = quarantined(call, quarantine, may_have_left=True)
    return Failed(Fault.CANCELLED, refusal) if call.operation.is_read else InDoubt(Fault.CANCELLED, refusal)
