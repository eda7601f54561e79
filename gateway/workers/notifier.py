"""Raises incidents out of band: tells each sink what happened in frozen runs, at least once, from the journal.

Apart from everything an incident may be about: connections of its own, no domain, no breaker. What a sink has taken is
recorded in the run itself, after it was taken; a crash in between sends the same event id once more. A run with something
left to tell stays in the open part of the journal, be it frozen, going on or closed, so nothing is forgotten at a restart.
A sink that does not answer is tried for ever, ever more slowly, and delays no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from gateway.clock import Clock, wait_until
from gateway.core.admission import AdmissionSettings
from gateway.core.backoff import full_jitter
from gateway.core.breaker import BreakerSettings
from gateway.core.fault import Broken
from gateway.core.incident import incident_view
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import BytesBody, Request
from gateway.core.notice import tell
from gateway.core.records import NoticesDelivered
from gateway.core.retry import RetrySettings
from gateway.core.tool import Domain, Match, Operation, Sink, ToolSpec
from gateway.core.trajectory import Incident, Notice, Trajectory
from gateway.egress import Egress, Timings
from gateway.journal import Conflict, JournalError
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.turns import in_turn

__all__ = ["Notifier"]

_BASE_S, _CAP_S = 1.0, 60.0
_SLICE = 1000
"""Runs told of in one pass; those with more to tell have their turn in the next."""

_TIMINGS = Timings(connect_s=5.0, first_byte_s=10.0, idle_s=10.0, total_s=20.0)


class Notifier:
    """Delivers notices. `sinks` may change at any time; a new one is told of whatever not all others have taken."""

    def __init__(
        self,
        trajectories: Trajectories,
        egress: Egress,
        sinks: Callable[[], Mapping[str, Sink]],
        clock: Clock,
        telemetry: Telemetry,
        *,
        source: str = "seawall",
        interval_s: float = 5.0,
    ) -> None:
        self._trajectories = trajectories
        self._egress = egress
        self._sinks = sinks
        self._clock = clock
        self._telemetry = telemetry
        self._source = source
        self._interval_s = interval_s
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._specs: dict[str, tuple[Sink, ToolSpec]] = {}
        self._woken: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """There is something to tell."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                if await self.run_once(self._clock.now()) and self._trajectories.has_noticed:
                    continue
            except (JournalError, Conflict) as error:
                self._telemetry.background_failed("telling of incidents", error)
                await self._clock.sleep(1.0)
            await wait_until(self._clock, self._woken, self._next_s())

    async def run_once(self, now: float) -> int:
        """Tell every sink that may be tried what it has not taken of the runs whose turn it is. Repeatable.

        Returns how many notices were taken.
        """
        named = map(self._trajectories.get, self._trajectories.noticed(_SLICE))
        runs = [run for run in named if run is not None and not run.is_lost]
        if not runs:
            return 0
        sinks = self._sinks()
        due = [sink for name, sink in sinks.items() if self._not_before.get(name, now) <= now]
        taken = await asyncio.gather(*(self._tell_all(sink, runs) for sink in due))
        async for run in in_turn(runs):
            await self._settle(run, sinks)
        return sum(taken)

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return, by sink, how often in a row it failed."""
        return {name: {"failures": self._failures.get(name, 0)} for name in self._sinks()}

    def _next_s(self) -> float:
        return self._clock.now() + self._interval_s

    async def _tell_all(self, sink: Sink, runs: list[Run]) -> int:
        """Tell one sink about all runs, each in order, until it does not answer."""
        taken = 0
        async for run in in_turn(runs):
            for incident, notice in _pending(run.state, sink.name):
                if not await self._tell(sink, run, incident, notice):
                    return taken
                taken += 1
                if run.is_lost:
                    break
                delivered = NoticesDelivered(sink=sink.name, up_to=notice.position)
                await self._trajectories.recorded(run, [delivered])
        return taken

    async def _settle(self, run: Run, sinks: Mapping[str, Sink]) -> None:
        """Note that everybody has taken everything; with no sink there is nobody to wait for."""
        state = run.state
        if run.is_lost or not state.has_notices:
            return
        last = state.incidents[-1].notices[-1].position
        if all(state.notified.get(name, 0) >= last for name in sinks):
            if not sinks:
                error = LookupError(f"run {state.id}: {state.reason}; no sink is configured under `incidents`")
                self._telemetry.background_failed("an incident that nobody is told of", error)
            await self._trajectories.recorded(run, [NoticesDelivered(sink="", up_to=last, is_complete=True)])

    async def _tell(self, sink: Sink, run: Run, incident: Incident, notice: Notice) -> bool:
        told = tell(
            sink.settings.kind,
            run.state.id,
            incident,
            notice,
            incident_view(run.state, incident, self._clock.at()),
            secret=sink.secret,
            source=self._source,
            at=self._clock.at(),
        )
        request = Request("POST", sink.target.encode("ascii"), told.headers, BytesBody(told.body))
        answer = await self._egress.send(self._spec(sink), request, _TIMINGS)
        if isinstance(answer, Broken):
            why = answer.detail
        else:
            status = answer.status
            await answer.aclose()
            if 200 <= status < 300:
                self._failures.pop(sink.name, None)
                self._not_before.pop(sink.name, None)
                return True
            why = f"it answered {status}"
        self._failed(sink, why)
        return False

    def _failed(self, sink: Sink, why: str) -> None:
        failures = self._failures[sink.name] = self._failures.get(sink.name, 0) + 1
        wait_s = _BASE_S + full_jitter(failures, _BASE_S, _CAP_S, self._clock.draw())
        self._not_before[sink.name] = self._clock.now() + wait_s
        error = ConnectionError(f"{why}; tried again in {wait_s:.0f} s ({failures} times so far)")
        self._telemetry.background_failed(f"raising an incident at sink {sink.name}", error)

    def _spec(self, sink: Sink) -> ToolSpec:
        known = self._specs.get(sink.name)
        if known is None or known[0] is not sink:
            known = self._specs[sink.name] = (sink, _spec_of(sink))
        return known[1]


def _pending(state: Trajectory, sink: str) -> list[tuple[Incident, Notice]]:
    """Return what a sink has not taken, oldest first; what everybody took before it existed is past."""
    taken = max(state.notified.get(sink, 0), state.settled_to)
    return [
        (incident, notice) for incident in state.incidents for notice in incident.notices if notice.position > taken
    ]


def _spec_of(sink: Sink) -> ToolSpec:
    timeouts = TimeoutSettings()
    raise_it = Operation(name="raise", tier=Tier.REVERSIBLE, timeouts=timeouts)
    return ToolSpec(
        name=f"incidents.{sink.name}",
        upstream=sink.upstream,
        domain=Domain(name=f"incidents.{sink.name}", admission=AdmissionSettings(), timeouts=timeouts),
        breaker=BreakerSettings(),
        retry=RetrySettings(),
        match=lambda method, target: Match(raise_it, {}, "a sink"),
        operations={raise_it.name: raise_it},
    )
