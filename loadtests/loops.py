"""What a loop costs that nobody stops, and what it costs to look for loops in every call.

Two parts. `example` plays the cost example of seed 000 through a whole gateway on loopback: an agent changes a line and
changes it back, over and over, once with a ceiling of 50 turns alone and once with the watchdog; turns are counted at the
tool, tokens and money follow by the seed's own arithmetic. `cost` measures what the watchdog, the budget and the recovery
stage add to one call, in runs of very different lengths: microseconds that do not grow.

    python -m loadtests.loops --json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gateway.app import Gateway
from gateway.clock import SystemClock
from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call, Handler
from gateway.core.economics import loop_bill
from gateway.core.fault import Fault
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.outcome import Failed, Outcome, Success
from gateway.core.records import RecordedReply
from gateway.core.retry import RetrySettings
from gateway.core.saga import Begin, Complete, Open
from gateway.core.server import ServerSettings
from gateway.core.tool import Catalog, Domain, Match, Operation, ToolSpec, Upstream
from gateway.core.watchdog import Ended
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.budget import BudgetStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.watchdog import WatchdogStage
from gateway.telemetry import Telemetry

__all__ = ["CEILING", "cost", "example", "is_flat"]

CEILING = 50
"""Turns after which the run's own ceiling stops it (seed 000)."""

LENGTHS = (100, 1_000, 10_000)
_CALLS, _ROUNDS = 200, 9

_MANIFEST = """
version: 1
watchdog: {{mode: {mode}}}
domains:
  lab: {{timeouts: {{connect: 5s, first_byte: 10s, idle: 10s, total: 20s}}}}
tools:
  repo:
    upstream: http://127.0.0.1:{port}
    domain: lab
    watch: {{state: GET /lines}}
    operations:
      edit: {{match: "PUT /lines/{{n}}", tier: reversible, idempotent: true}}
"""


async def example() -> dict[str, Any]:
    """Play the loop with and without the watchdog. Returns both bills and their ratio."""
    stopped, ceiling = loop_bill(await _turns("enforce")), loop_bill(await _turns("'off'"))
    return {
        "ceiling": asdict(ceiling),
        "watchdog": asdict(stopped),
        "times_cheaper": round(ceiling.usd / stopped.usd, 1),
        "times_fewer_tokens": round(ceiling.input_tokens / stopped.input_tokens, 1),
    }


async def _turns(mode: str) -> int:
    """Return how many turns the agent was billed for: each proposes one change, the last may be refused."""
    lines = {"42": "old"}

    async def edit(request: web.Request) -> web.Response:
        lines[request.match_info["n"]] = (await request.json())["text"]
        return web.json_response({})

    async def show(request: web.Request) -> web.Response:
        return web.json_response({"lines": lines, "mtime": time.time()})

    app = web.Application()
    app.add_routes([web.put("/lines/{n}", edit), web.get("/lines", show)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            manifest = Path(folder, "manifest.yaml")
            manifest.write_text(_MANIFEST.format(mode=mode, port=runner.addresses[0][1]))
            gateway = Gateway(
                ServerSettings(
                    manifest=str(manifest), data=f"{folder}/data", listen="127.0.0.1:0", control="127.0.0.1:0",
                    watch=False, drain=1.0),
                environ={})  # fmt: skip
            await gateway.start()
            try:
                return await _agent(gateway.listen)
            finally:
                await gateway.stop()
    finally:
        await runner.cleanup()


async def _agent(url: str) -> int:
    """A model that changes line 42, sees the test fail, changes it back, and begins again; it stops when it is told to."""
    async with aiohttp.ClientSession() as session:
        for turn in range(1, CEILING + 1):
            text = {"text": ("new", "old")[(turn - 1) % 2]}
            headers = {"Seawall-Trajectory": "loop"}
            async with session.put(f"{url}/repo/lines/42", json=text, headers=headers) as answer:
                if answer.status != 200:
                    told = await answer.json(content_type=None)
                    if told.get("code") != "SEMANTIC_WATCHDOG_INTERRUPT":
                        raise RuntimeError(f"turn {turn} was answered with {answer.status}: {told}")
                    return turn
    return CEILING


# --- what it costs to look


async def cost(lengths: tuple[int, ...] = LENGTHS, calls: int = _CALLS, rounds: int = _ROUNDS) -> dict[str, Any]:
    """Measure what a stage adds to one call, by the length of the run. Returns microseconds: medians and best of rounds.

    Rounds go round over all lengths, so that a neighbour on the machine disturbs each of them alike.
    """
    benches = {length: await _Bench.made(length) for length in lengths}
    found: dict[str, dict[int, list[float]]] = {}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for length, bench in benches.items():
                for name, microseconds in (await bench.measure(calls)).items():
                    found.setdefault(name, {}).setdefault(length, []).append(microseconds)
    finally:
        gc.enable()
    return {
        name: {
            "us_by_length": {length: round(statistics.median(each), 2) for length, each in by_length.items()},
            "best_us_by_length": {length: round(min(each), 2) for length, each in by_length.items()},
        }
        for name, by_length in found.items()
    }


async def _read(call: Call) -> Outcome:
    return Success(Reply(200, b"OK", (), BytesBody(b'{"rows": []}')))


async def _refused(call: Call) -> Outcome:
    return Failed(Fault.CLIENT_ERROR, reply=Reply(422, b"", (), BytesBody(b'{"error": "port must be a number"}')))


class _Bench:
    """One run of some length, and the stages around a handler that does nothing."""

    def __init__(self, runs: Trajectories, run: Run, tool: ToolSpec) -> None:
        clock, telemetry = SystemClock(), Telemetry()
        self._run, self._tool = run, tool
        self._number = 0
        catalog = Catalog({tool.name: tool}, {})
        self.watchdog = WatchdogStage(runs, lambda: catalog, clock, telemetry)
        self._stages: dict[str, tuple[Any, str, Handler]] = {
            "nothing": (_Nothing(), "look", _read),
            "watchdog, read": (self.watchdog, "look", _read),
            "watchdog, refused write": (self.watchdog, "set", _refused),
            "budget, no caps": (BudgetStage(runs, clock), "look", _read),
            "recovery, refused write": (
                RecoveryStage(runs, clock, telemetry, lambda name, value: None, lambda: catalog), "set", _refused),
        }  # fmt: skip

    @classmethod
    async def made(cls, length: int) -> _Bench:
        runs = Trajectories(MemoryJournal(), SystemClock(), Telemetry(), salt=b"s" * 32)
        timeouts = TimeoutSettings()
        operations = {
            "look": Operation(name="look", tier=Tier.READ, timeouts=timeouts),
            "set": Operation(name="set", tier=Tier.REVERSIBLE, timeouts=timeouts),
        }
        tool = ToolSpec(
            name="lab", upstream=Upstream("http", "127.0.0.1", 9), breaker=BreakerSettings(), retry=RetrySettings(),
            domain=Domain(name="d", admission=AdmissionSettings(), timeouts=timeouts),
            match=lambda method, target: Match(operations["look"], {}, ""), operations=operations)  # fmt: skip
        run = await runs.named("r1", Open(agent="ann"))
        assert isinstance(run, Run)
        bench = cls(runs, run, tool)
        for number in range(1, length + 1):
            begin = Begin(
                tool="lab", operation=operations["set"], action=f"{number:032x}", fingerprint="", method="POST", target="/",
                salt=b"s")  # fmt: skip
            runs.decide(run, begin)
            runs.decide(run, Complete(step=number, reply=RecordedReply(status=200)))
            bench.watchdog.dog(run).acted(number.to_bytes(16, "big"), None, Ended.DONE, is_change=True, number=number)
        return bench

    async def measure(self, calls: int) -> dict[str, float]:
        """Return microseconds a call for each stage, those of doing nothing taken off."""
        spent: dict[str, float] = {}
        for name, (stage, operation, handler) in self._stages.items():
            made = [self._call(operation) for _ in range(calls)]
            began = time.perf_counter()
            for call in made:
                await stage(call, handler)
            spent[name] = (time.perf_counter() - began) / calls * 1e6
        nothing = spent.pop("nothing")
        return {name: each - nothing for name, each in spent.items()}

    def _call(self, operation: str) -> Call:
        self._number += 1
        spec = self._tool.operations[operation]
        action = (self._number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big") * 2
        return Call(
            tool=self._tool, operation=spec, agent="ann", started=0.0, deadline=60.0, trajectory="r1", is_run_named=True,
            request=Request("POST", b"/", ()), action=action, fingerprint=action)  # fmt: skip


class _Nothing:
    async def __call__(self, call: Call, proceed: Callable[[Call], Awaitable[Outcome]]) -> Outcome:
        return await proceed(call)


def main(arguments: list[str]) -> int:
    """Print both parts; exit code 1 where the watchdog was no help, or where its cost grows with the run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    loop, costs = asyncio.run(example()), asyncio.run(cost())
    if options.json:
        print(json.dumps({"example": loop, "cost": costs}, indent=2))
    else:
        for name in ("ceiling", "watchdog"):
            one = loop[name]
            print(
                f"{name:9} {one['turns']:3} turns {one['input_tokens']:>10,} input tokens {one['usd']:7.2f} USD "
                f"{one['seconds']:5.0f} s"
            )
        print(f"{loop['times_cheaper']:g} times cheaper\n")
        for name, each in costs.items():
            by_length = "  ".join(f"{length:,}: {us:.2f} us" for length, us in each["us_by_length"].items())
            print(f"{name:24} {by_length}")
    return 0 if loop["times_cheaper"] > 80 and is_flat(costs) else 1


def is_flat(costs: dict[str, Any]) -> bool:
    """Whether no stage costs more in the longest run than in the shortest, noise of a microsecond or a doubling aside.

    By the best round, which no neighbour on the machine disturbed.
    """
    return all(
        by_length[max(by_length)] <= max(2 * by_length[min(by_length)], by_length[min(by_length)] + 1.0)
        for by_length in (each["best_us_by_length"] for each in costs.values())
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
