"""The tools of a virtual storm: as many workers as the scenario says, one queue, and whatever goes wrong.

A tool does not notice that a caller has given up: it works on the abandoned call all the same, which is what makes an
overload sustain itself. Time and place in the queue are computed when a call arrives, so a call costs one timer.

Source: Bronson et al., "Metastable Failures in Distributed Systems", HotOS 2021.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from heapq import heapreplace

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.message import BytesBody, Headers, Reply
from gateway.storm.scenario import FaultSettings, Scenario, WorldSettings

__all__ = ["STANDING", "VirtualTool", "World"]


def _reply(status: int, headers: Headers = ()) -> Reply:
    return Reply(status, b"", headers, BytesBody(b"{}"))


_OK, _ERROR = _reply(200), _reply(500)
_DOWN = Broken(Fault.CONNECT, Dispatched.NO, "nobody listens there")
_LATE = Broken(Fault.TIMEOUT, Dispatched.YES, "it did not answer in time")
_RESET = Broken(Fault.RESET, Dispatched.YES, "it broke off")
STANDING = (_OK, _ERROR, _DOWN, _LATE, _RESET)
"""Answers and breaks that are always the same: what they mean need be found out only once."""


class VirtualTool:
    """One tool. `queued` is how many calls wait for a worker."""

    def __init__(self, settings: WorldSettings, faults: Sequence[FaultSettings], source: random.Random) -> None:
        self._settings = settings
        self._faults = [fault for fault in faults if fault.kind != "slow"]
        self._first = min((fault.start for fault in self._faults), default=math.inf)
        self._last = max((fault.end for fault in self._faults), default=math.inf)
        self._slow = [fault for fault in faults if fault.kind == "slow"]
        self._source = source
        self._free = [0.0] * settings.workers
        self._starts: deque[float] = deque()
        self._tokens = settings.limit or 0.0
        self._refilled = 0.0
        self._is_limited = settings.limit is not None

    @property
    def is_smeared(self) -> bool:
        """Whether calls are on their way for a while."""
        return self._settings.smear > 0

    def smear_s(self) -> float:
        """Return how long a call is on its way."""
        return self._settings.smear * self._source.random() if self._settings.smear else 0.0

    def queued(self, now: float) -> int:
        """Return how many calls wait for a worker at `now`."""
        while self._starts and self._starts[0] <= now:
            self._starts.popleft()
        return len(self._starts)

    def fault(self, now: float) -> FaultSettings | None:
        """Return what is wrong with a call that arrives at `now`."""
        for fault in self._faults:
            if fault.start <= now < fault.end and (fault.share >= 1 or self._source.random() < fault.share):
                return fault
        return None

    def throttled_s(self, now: float) -> float | None:
        """Return how long a call that is over the tool's rate must wait, or None after taking a token for it."""
        limit = self._settings.limit
        if limit is None:
            return None
        self._tokens = min(limit, self._tokens + (now - self._refilled) * limit)
        self._refilled = now
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        return (1 - self._tokens) / limit

    def work(self, now: float) -> float:
        """Take a call into the queue; return when its answer is there. It is slow if the work begins in a slow time."""
        free = self._free[0]
        start = free if free > now else now
        takes_s = self._settings.service
        if self._slow:
            takes_s *= max((fault.factor for fault in self._slow if fault.start <= start < fault.end), default=1.0)
        if spread := self._settings.spread:
            takes_s *= 1 + spread * (2 * self._source.random() - 1)
        end = start + takes_s
        heapreplace(self._free, end)
        if start > now:
            self._starts.append(start)
        return end

    def answer(self, now: float, patience_s: float) -> tuple[float, Reply | Broken]:
        """Return how long a request that arrives now takes, and the answer or how the exchange breaks.

        What breaks in the same way each time is the same object each time: one of `STANDING`.
        """
        kind = ""
        if self._first <= now < self._last:
            fault = self.fault(now)
            kind = "" if fault is None else fault.kind
        if kind == "down":
            return 0.0005, _DOWN
        if kind == "hang":
            return patience_s, _LATE
        asked_s = self.throttled_s(now) if self._is_limited else None
        if asked_s is not None:
            return 0.001, _reply(429, ((b"retry-after-ms", b"%d" % max(1, math.ceil(asked_s * 1000))),))
        takes_s = self.work(now) - now
        if takes_s > patience_s:
            return patience_s, _LATE
        if kind == "reset":
            return takes_s, _RESET
        return takes_s, _ERROR if kind == "error" else _OK


class World:
    """All tools of a scenario."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._seed = seed
        self._tools: dict[str, VirtualTool] = {}

    def tool(self, name: str) -> VirtualTool:
        """Return a tool."""
        known = self._tools.get(name)
        if known is None:
            faults = [fault for fault in self._scenario.faults if fault.tool == name]
            source = random.Random(f"{self._seed}/{name}")  # noqa: S311 - chance in an experiment
            settings = self._scenario.world.get(name, WorldSettings())
            known = self._tools[name] = VirtualTool(settings, faults, source)
        return known
