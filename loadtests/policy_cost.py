"""What rules, artifacts and the book-keeping for severing cost a call, in microseconds, however long its run is.

The stages alone, around a handler that does nothing, in one process: the floor of what they add. Processor time, and of
several rounds the fastest, since neighbours only ever add.

    python -m loadtests.policy_cost --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from gateway.clock import SystemClock
from gateway.config.cel import compile_condition, compile_expression
from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call
from gateway.core.containment import Containment
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.outcome import Outcome, Success
from gateway.core.policy import POLICY_NAMES, Effect, Rule
from gateway.core.retry import RetrySettings
from gateway.core.saga import Open
from gateway.core.tool import Artifacts, Domain, Match, Operation, ToolSpec, Upstream
from gateway.core.trajectory import Step, StepState
from gateway.journal.containment import ContainmentLog
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.flights import Flights
from gateway.stages.policy import PolicyStage
from gateway.stages.quarantine import QuarantineStage
from gateway.telemetry import Telemetry

__all__ = ["Bench", "measure"]

CALLS = 2_000
ROUNDS = 5
_BODY = b'{"amount": 7, "currency": "eur", "note": "for the flowers"}'
_CONDITIONS = {
    "tier": "tier == 'pivot' && agent != 'clerk'",
    "amount": "request.json != null && has(request.json.amount) && request.json.amount > 100",
    "time": "time.weekday > 6 || time.hour > 24",
    "run": "trajectory.steps > 100000 || trajectory.refusals > 1000",
}


class Bench:
    """Stages around nothing. `steps`: how long the run is already."""

    def __init__(self, conditions: list[str], *, steps: int = 0, with_artifacts: bool = False) -> None:
        clock, journal = SystemClock(), MemoryJournal()
        self.trajectories = Trajectories(journal, clock, Telemetry(), salt=b"s" * 32)
        self.steps = steps
        rules = []
        for number, condition in enumerate(conditions):
            when = compile_condition(condition, POLICY_NAMES)
            rules.append(Rule(name=f"r{number}", effect=Effect.DENY, when=when, names=when.names))
        artifacts = Artifacts(reads=(compile_expression("'file:' + params.name"),)) if with_artifacts else None
        self.operation = Operation(
            name="get", tier=Tier.READ, timeouts=TimeoutSettings(), rules=tuple(rules), artifacts=artifacts
        )
        domain = Domain(name="d", admission=AdmissionSettings(), timeouts=TimeoutSettings())
        self.tool = ToolSpec(
            name="files",
            upstream=Upstream("http", "127.0.0.1", 9),
            domain=domain,
            breaker=BreakerSettings(),
            retry=RetrySettings(),
            match=lambda method, target: Match(self.operation, {}, ""),
            operations={"get": self.operation},
        )
        self.stage: Callable[[Call, Callable[[Call], Awaitable[Outcome]]], Awaitable[Outcome]]
        if with_artifacts:
            self.stage = QuarantineStage(ContainmentLog(journal, clock, Telemetry()), self.trajectories)
        else:
            self.stage = PolicyStage(self.trajectories, clock, journal.remember)

    async def prepare(self) -> None:
        """Make the run as long as it is meant to be."""
        run = await self.trajectories.named("r1", Open(agent="clerk"))
        assert isinstance(run, Run)
        for number in range(1, self.steps + 1):
            run.state.steps[number] = Step(
                number=number, tool="files", operation="put", tier=Tier.REVERSIBLE, action="", fingerprint="",
                occurrence=1, key="", state=StepState.COMMITTED, order=number,
            )  # fmt: skip

    def call(self) -> Call:
        """Return one call."""
        return Call(
            tool=self.tool,
            operation=self.operation,
            request=Request("GET", b"/files/a", ((b"Content-Type", b"application/json"),), BytesBody(_BODY)),
            agent="clerk",
            started=0.0,
            deadline=60.0,
            trajectory="r1",
            is_run_named=True,
            params={"name": "a"},
        )

    async def run(self, calls: int) -> None:
        """Send calls through the stage."""
        answer = Success(Reply(200, b"", (), BytesBody()))

        async def tool(call: Call) -> Outcome:
            return answer

        for _ in range(calls):
            await self.stage(self.call(), tool)


async def _us(bench: Bench, floor: float = 0.0) -> float:
    await bench.run(200)
    best = 1e9
    for _ in range(ROUNDS):
        began = time.process_time()
        await bench.run(CALLS)
        best = min(best, (time.process_time() - began) / CALLS * 1e6)
    return best - floor


async def measure() -> dict[str, float]:
    """Return microseconds a call for each row."""
    nothing = Bench([])
    floor = await _us(nothing)
    rows: dict[str, float] = {}
    for name, condition in _CONDITIONS.items():
        rows[f"one rule over {name}"] = await _us(await _prepared(Bench([condition])), floor)
    every = list(_CONDITIONS.values())
    rows["four rules"] = await _us(await _prepared(Bench(every)), floor)
    rows["four rules, run of 10,000 steps"] = await _us(await _prepared(Bench(every, steps=10_000)), floor)
    rows["sixteen rules"] = await _us(await _prepared(Bench(every * 4)), floor)
    rows["a read of an artifact"] = await _us(await _prepared(Bench([], with_artifacts=True)), floor)
    rows["severing's book-keeping"] = _flights_us()
    return {name: round(us, 2) for name, us in rows.items()}


async def _prepared(bench: Bench) -> Bench:
    await bench.prepare()
    return bench


def _flights_us() -> float:
    """What every call pays in `stages/dispatch.py`."""
    flights, call = Flights(Containment()), Bench([]).call()
    best = 1e9
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            state = flights.state
            if (state.runs or state.agents) and flights.severed(call) is not None:
                raise AssertionError
            flights.flying[call] = asyncio.current_task()
            del flights.flying[call]
        best = min(best, (time.process_time() - began) / CALLS * 1e6)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(measure())
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        for name, us in rows.items():
            print(f"{name:<36} {us:8.2f} us")


if __name__ == "__main__":
    main()
