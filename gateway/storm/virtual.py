"""The virtual engine: the gateway's own stages in virtual time, between agents and tools that are only modelled.

Deadline, retry, admission, breaker and dispatch are the very classes that `gateway.app` composes, in the order of
`gateway.pipeline`; journal and saga are left out, since nothing here touches a disk. Only the wire is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.core.call import Call, Handler
from gateway.core.fault import Broken, Fault
from gateway.core.message import Reply, Request
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.tool import Catalog, Match, ToolSpec
from gateway.egress import Timings
from gateway.pipeline import compose
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.retry import RetryStage
from gateway.storm.arrivals import due_times, names, source_of, whole
from gateway.storm.policy import catalog_of, manifest_for
from gateway.storm.recording import Recording
from gateway.storm.scenario import LoadSettings, PolicySettings, Scenario
from gateway.storm.virtualtime import VirtualClock, VirtualLoop, pause, run
from gateway.storm.world import World
from gateway.telemetry import Telemetry

__all__ = ["simulate"]


def simulate(
    scenario: Scenario, policy: PolicySettings, seed: int, progress: Callable[[float], None] = lambda share: None
) -> Recording:
    """Return what happened in a storm under a policy. The same arguments give the same recording, on any machine.

    `progress` is told the share of the time that is over, now and then.

    Raises:
        ConfigError: something is wrong with the scenario's manifest.
    """
    catalog = catalog_of(manifest_for(scenario, policy))
    storm = _Storm(scenario, policy, catalog, seed)
    return run(lambda loop: storm.run(loop, progress))


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

    def retry_scheduled(self, call: Call, fault: Fault, delay_s: float) -> None:
        pass

    def queue_waited(self, call: Call, seconds: float) -> None:
        pass


@dataclass(slots=True)
class _Gateway:
    """One gateway's stages."""

    handler: Handler
    watch: _Watch


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
            target = self._world.tool(name)
            if smear_s := target.smear_s():
                await pause(smear_s)
                timings = timings._replace(first_byte_s=max(0.0, timings.first_byte_s - smear_s))
            now = self._loop.now
            self._note(now, name, number, target.queued(now), self._trials[name] if is_trial else 0)
            takes_s, answer = self._world.answer(target, now, timings)
            await pause(takes_s)
            return answer
        finally:
            if is_trial:
                self._trials[name] -= 1

    async def close(self) -> None:
        pass


class _Storm:
    def __init__(self, scenario: Scenario, policy: PolicySettings, catalog: Catalog, seed: int) -> None:
        self._scenario, self._policy, self._catalog, self._seed = scenario, policy, catalog, seed
        self._recording = Recording()
        self._actions = 0

    async def run(self, loop: VirtualLoop, progress: Callable[[float], None]) -> Recording:
        self._loop = loop
        self._clock = VirtualClock(loop, self._seed, self._policy.jitter)
        self._world = World(self._scenario, self._seed)
        self._gateways = [self._gateway(number) for number in range(self._scenario.gateways)]
        for index, load in enumerate(self._scenario.load):
            self._load(index, load)
        for step in range(100):
            loop.call_at(self._scenario.seconds * step / 100, progress, step / 100)
        return self._recording

    def _gateway(self, number: int) -> _Gateway:
        clock = self._clock
        watch = _Watch(clock, number, self._recording)
        breaker = BreakerStage(clock, watch, lambda name, value: None)
        admission, retry = AdmissionStage(clock, watch, breaker.peek), RetryStage(clock, watch)
        for stage in (retry, admission, breaker):
            stage.reconfigure(self._catalog)
        dispatch = Dispatch(_Wire(self._world, self._loop, watch, self._recording), clock, watch)
        return _Gateway(compose((DeadlineStage(clock, watch), retry, admission, breaker), dispatch), watch)

    def _load(self, index: int, load: LoadSettings) -> None:
        agents, tool = names(load), self._catalog.tools[load.tool]
        method, _, target = load.request.partition(" ")
        match = tool.match(method, target)
        captures = not match.operation.is_read
        request = Request(method, target.encode(), (), has_side_effects=captures, capture_answer=captures)
        shape = _Shape(load, tool, match, request)
        if load.arrive == "loop":
            for number, name in enumerate(agents):
                for _ in range(load.lanes):
                    self._loop.spawn(self._agent(shape, number, name))
            return
        source = source_of(self._scenario, self._seed, index)
        self._loop.spawn(self._arrivals(shape, agents, due_times(load, self._scenario.seconds, source)))

    async def _arrivals(self, shape: _Shape, agents: Sequence[str], when: Iterator[float]) -> None:
        for number, due in enumerate(when):
            if (wait_s := due - self._clock.now()) > 0:
                await self._clock.sleep(wait_s)
            which = number % len(agents)
            self._loop.spawn(self._call(shape, which, agents[which], due))

    async def _agent(self, shape: _Shape, number: int, name: str) -> None:
        start, end = whole(shape.load, self._scenario.seconds)
        await self._clock.sleep(start)
        while (now := self._clock.now()) < end:
            await self._call(shape, number, name, now)
            # A refusal takes no virtual time: without this an agent that never thinks would call for ever at one moment.
            await self._clock.sleep(max(shape.load.think, 0.0005))

    async def _call(self, shape: _Shape, number: int, name: str, due: float) -> None:
        self._actions += 1
        action = self._actions.to_bytes(8, "big")
        tool, operation, loop = shape.tool, shape.match.operation, self._loop
        handler = self._gateways[number % len(self._gateways)].handler
        for repeat in range(shape.load.insists + 1):
            if repeat and shape.load.pause:
                await pause(shape.load.pause)
                due = loop.now
            call = Call(
                tool=tool,
                operation=operation,
                request=shape.request,
                agent="anybody" if self._policy.anonymous else name,
                started=loop.now,
                deadline=loop.now + operation.timeouts.total,
                action=action,
                key=action.hex(),
            )
            outcome = await handler(call)
            self._recording.calls.add(due, loop.now, tool.name, name, _word(outcome))
            if isinstance(outcome, Success):
                return
            due = loop.now


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a load calls."""

    load: LoadSettings
    tool: ToolSpec
    match: Match
    request: Request


def _word(outcome: Outcome) -> str:
    match outcome:
        case Success():
            return "success"
        case Rejected(refusal):
            return f"refused:{refusal.code.value}"
        case Failed(fault):
            return f"failed:{fault.value}"
        case InDoubt(fault):
            return f"in_doubt:{fault.value}"
