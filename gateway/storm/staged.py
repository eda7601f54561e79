"""A gateway in virtual time, made of the gateway's own stages: deadline, retry, admission, breaker and dispatch.

They are the very classes that `gateway.app` composes, in the order of `gateway.pipeline`. Slower than `road`, which it is
the measure of.
"""

from __future__ import annotations

from collections import Counter

from gateway.core.call import Call
from gateway.core.fault import Broken, Fault
from gateway.core.message import Reply, Request
from gateway.core.outcome import Outcome
from gateway.core.tool import ToolSpec
from gateway.egress import Timings
from gateway.pipeline import compose
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.retry import RetryStage
from gateway.storm.recording import Recording
from gateway.storm.scenario import LoadSettings
from gateway.storm.trip import Gateway, Lab, Station, Trip
from gateway.storm.virtualtime import VirtualClock, VirtualLoop, pause
from gateway.storm.world import World
from gateway.telemetry import Telemetry, Told

__all__ = ["Staged"]


class Staged(Gateway):
    """One gateway's stages. `handler` takes a call."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab = lab
        self.actions = 0
        clock = lab.clock
        watch = _Watch(clock, number, lab.recording)
        breaker = BreakerStage(clock, watch, lambda name, value: None)
        admission, retry = AdmissionStage(clock, watch, breaker.peek), RetryStage(clock, watch)
        for stage in (retry, admission, breaker):
            stage.reconfigure(lab.catalog)
        dispatch = Dispatch(_Wire(lab.world, lab.loop, watch, lab.recording), clock, watch)
        self.handler = compose((DeadlineStage(clock, watch), retry, admission, breaker), dispatch)

    def station(self, load: LoadSettings) -> Station:
        """Return where the calls of a load begin."""
        return _Station(self, load)


class _Station(Station):
    def __init__(self, gateway: Staged, load: LoadSettings) -> None:
        super().__init__(gateway.lab, load)
        self.kind = _Trip
        self.gateway = gateway
        method, _, target = load.request.partition(" ")
        captures = not self.operation.is_read
        self.request = Request(method, target.encode(), (), has_side_effects=captures, capture_answer=captures)


class _Trip(Trip):
    """A call as the stages know it."""

    __slots__ = ("action",)
    station: _Station

    def __init__(self, station: _Station, agent: str, due: float) -> None:
        super().__init__(station, agent, due)
        station.gateway.actions += 1
        self.action = station.gateway.actions.to_bytes(8, "big")

    def send(self, now: float) -> None:
        self.station.loop.spawn(self._send(now))

    async def _send(self, now: float) -> None:
        station = self.station
        call = Call(
            tool=station.tool,
            operation=station.operation,
            request=station.request,
            agent=self.known_as,
            started=now,
            deadline=self.deadline,
            action=self.action,
            key=self.action.hex(),
        )
        outcome = await station.gateway.handler(call)
        self.end(outcome, station.loop.now)


class _Watch(Telemetry):
    """Notes the moves of breakers; tells nothing else to anybody."""

    def __init__(self, clock: VirtualClock, number: int, recording: Recording) -> None:
        super().__init__(clock)
        self._at = clock
        self._number = number
        self._recording = recording
        self.state: dict[str, str] = {}
        self.attempt = 0

    def breaker_changed(self, tool: str, state: str, cause: str, cooldown_s: float) -> None:
        self.state[tool] = str(state)
        self._recording.moves.add(self._at.now(), self._number, tool, str(state), str(cause), cooldown_s)

    def attempt_started(self, call: Call) -> object:
        self.attempt = call.attempt  # the request that leaves next, before anybody else's turn
        return None

    def attempt_finished(self, handle: object, call: Call, outcome: Outcome | BaseException, seconds: float) -> None:
        pass

    def attempt_ended(self, handle: object, call: Call, outcome: Outcome, seconds: float, told: Told) -> None:
        pass

    def retry_scheduled(self, call: Call, fault: Fault, delay_s: float) -> None:
        pass

    def queue_waited(self, call: Call, seconds: float) -> None:
        pass


class _Wire:
    """The wire of one gateway: notes every arrival at a tool."""

    def __init__(self, world: World, loop: VirtualLoop, watch: _Watch, recording: Recording) -> None:
        self._world, self._loop, self._watch, self._note = world, loop, watch, recording.attempts.add
        self._trials: Counter[str] = Counter()

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        name, number = tool.name, self._watch.attempt
        is_trial = self._watch.state.get(name) == "half_open"
        if is_trial:
            self._trials[name] += 1
        try:
            target, patience_s = self._world.tool(name), timings.first_byte_s
            if smear_s := target.smear_s():
                await pause(smear_s)
                patience_s = max(0.0, patience_s - smear_s)
            now = self._loop.now
            self._note(now, name, number, target.queued(now), self._trials[name] if is_trial else 0)
            takes_s, answer = target.answer(now, min(patience_s, timings.total_s))
            await pause(takes_s)
            return answer
        finally:
            if is_trial:
                self._trials[name] -= 1

    async def close(self) -> None:
        pass
