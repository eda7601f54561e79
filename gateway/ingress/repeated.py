"""Requests whose head has come before, to a tool that refuses just now: refused without making anything of them anew.

An agent that hammers a dead tool sends the same head over and over. What its first request was found to be (tool, operation,
run, caller) holds for all that follow, as long as the manifest does; only the body, the time and what the stages say
(`Pipeline.refused_at_once`) are looked at each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.core.call import Call
from gateway.core.outcome import Rejected

if TYPE_CHECKING:
    from gateway.clock import Clock

__all__ = ["KEPT_BYTES", "Repeated"]

KEPT_BYTES: Final = 4096
"""The body of the latest request is kept up to this size: the very same one need not be digested again."""


class Repeated:
    """One call, made again and again. Nobody who is refused at once is kept by anybody, so it may be the same object.

    Args:
        call: as it was accepted the first time; with its action, where no body is part of that.
        clock: for when it is accepted now.
        named: names the action by the body, and says whether that is certain to be read by the tool as it is by the rules
            (`core/canonical.py`); None of a call that is named by its head alone.
        is_certain: whether the tool reads every body so.
        refused: `Pipeline.refused_at_once`.
        body_max: bytes of the largest body taken.
        is_overriding: whether a body is to be refused for a second word about the method; None: none is.
    """

    __slots__ = (
        "_body_max",
        "_call",
        "_clock",
        "_initial",
        "_is_certain",
        "_is_overriding",
        "_latest",
        "_named",
        "_refused",
    )

    def __init__(
        self,
        call: Call,
        clock: Clock,
        named: Callable[[bytes], tuple[bytes, bool]] | None,
        refused: Callable[[Call], Rejected | None],
        *,
        is_certain: bool,
        body_max: int,
        is_overriding: Callable[[bytes], bool] | None,
    ) -> None:
        self._call = call
        self._clock = clock
        self._named = named
        self._is_certain = is_certain
        self._refused = refused
        self._body_max = body_max
        self._is_overriding = is_overriding
        self._initial = (call.trajectory, call.traceparent)
        self._latest: bytes | None = None

    def __call__(self, data: bytes | None) -> Rejected | None:
        """Return the refusal of the call with this body, None where it did not come in one piece.

        None where it is not refused, or not without waiting.
        """
        call, named = self._call, self._named
        if named is not None:
            if data is None or len(data) > self._body_max:
                return None
            if data != self._latest and not self._takes(data, named):
                return None
        elif data and self._is_overriding is not None and self._is_overriding(data):
            return None
        call.trajectory, call.traceparent = self._initial
        call.tracestate, call.trace, call.attempt = None, None, 0
        call.started = now = self._clock.now()
        call.deadline = now + call.operation.timeouts.total
        return self._refused(call)

    def _takes(self, data: bytes, named: Callable[[bytes], tuple[bytes, bool]]) -> bool:
        self._call.action, is_canonical = named(data)
        is_taken = is_canonical or self._is_certain
        if self._is_overriding is not None and self._is_overriding(data):
            is_taken = False
        self._latest = data if is_taken and len(data) <= KEPT_BYTES else None
        return is_taken
