"""The crash storm: agents at work on one gateway that is killed again and again, and the tool's ledger as the judge.

    python -m loadtests.crashes --kills 82

Every other run commits, every other is aborted half-way. Whatever the kills cut through, each turn of a committed run must
have exactly one effect, an aborted run none, and the gateway must be back in less than five seconds each time. 82 is the
number of chaos cycles that seed 001 reports.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click

from gateway.storm.runner import machine
from loadtests.scoreboard.contestants import Gateways, Run, Through
from loadtests.scoreboard.plan import TURNS
from loadtests.scoreboard.world import World

__all__ = ["Toll", "crash_storm", "main"]

_PAUSE_S = (0.15, 0.6)


@dataclass(slots=True)
class Toll:
    """What the kills cost. `back_s` is from each kill until the gateway listened again, its journal recovered."""

    kills: int = 0
    runs: int = 0
    committed: int = 0
    aborted: int = 0
    stuck: int = 0
    doubled: int = 0
    missing: int = 0
    orphans: int = 0
    back_s: list[float] = field(default_factory=list)

    @property
    def is_flawless(self) -> bool:
        """Whether nothing was doubled, lost, orphaned or left in between, and the gateway was back in time."""
        return not (self.stuck or self.doubled or self.missing or self.orphans) and max(self.back_s, default=0.0) < 5.0

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        back = sorted(self.back_s)
        return {
            "kills": self.kills, "runs": self.runs, "committed": self.committed, "aborted": self.aborted,
            "stuck": self.stuck, "doubled": self.doubled, "missing": self.missing, "orphans": self.orphans,
            "back_p50_ms": round(1000 * back[len(back) // 2]) if back else None,
            "back_max_ms": round(1000 * back[-1]) if back else None,
        }  # fmt: skip


async def crash_storm(kills: int, agents: int, seed: int) -> Toll:
    """Let agents work until the gateway was killed so often and every run has ended; return the toll."""
    toll, endings, is_over = Toll(), dict[int, str](), asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="seawall-crashes-") as folder:
        async with World({}) as world, aiohttp.ClientSession(trust_env=False) as http:
            async with Gateways(Path(folder), world, backend="sqlite") as gateways:
                await gateways.start(0)
                agent = _Agent("crash storm", gateways, 0, http)
                workers = [
                    asyncio.ensure_future(_work(agent, number, agents, endings, is_over)) for number in range(agents)
                ]
                await _kill_often(gateways, kills, random.Random(seed), toll)
                is_over.set()
                await asyncio.gather(*workers)
            _count(toll, endings, world)
    return toll


class _Agent(Through):
    async def half(self, run: Run) -> str:
        """Carry a run half-way, then abort it."""
        name = f"run-{run.number}"
        for turn in range(TURNS // 2):
            if not await self._turn(run, name, turn):
                break
        return await self._abort(name)


async def _work(agent: _Agent, number: int, agents: int, endings: dict[int, str], is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        run = Run(number, {})
        if number // agents % 2:
            endings[number] = await agent.half(run)
        else:
            endings[number] = (await agent.run(run)).said
        number += agents


async def _kill_often(gateways: Gateways, kills: int, source: random.Random, toll: Toll) -> None:
    for _ in range(kills):
        await asyncio.sleep(source.uniform(*_PAUSE_S))
        began = time.monotonic()
        await gateways.strike_lane(0)
        await gateways.url(0)
        toll.back_s.append(time.monotonic() - began)
        toll.kills += 1


def _count(toll: Toll, endings: dict[int, str], world: World) -> None:
    alive: dict[int, Counter[int]] = {number: Counter() for number in endings}
    for resource in world.ledger.made.values():
        if resource.is_alive:
            alive[resource.run][resource.turn] += 1
    toll.runs = len(endings)
    for number, said in endings.items():
        turns = alive[number]
        toll.doubled += sum(count - 1 for count in turns.values())
        if said == "finished":
            toll.committed += 1
            toll.missing += TURNS - len(turns)
        elif said == "aborted":
            toll.aborted += 1
            toll.orphans += len(turns)
        else:
            toll.stuck += 1


@click.command()
@click.option("--kills", default=82, show_default=True, help="SIGKILLs.")
@click.option("--agents", default=8, show_default=True, help="Runs at the same time.")
@click.option("--seed", default=1, show_default=True, help="When the kills fall.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for crashes.json.")
def main(kills: int, agents: int, seed: int, out: str | None) -> None:
    """Kill a gateway under load; exit code 1 if anything was lost, doubled or left in between."""
    toll = asyncio.run(crash_storm(kills, agents, seed))
    document = toll.document()
    click.echo("\n".join(f"{name:<12} {value}" for name, value in document.items()))
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**document, "agents": agents, "seed": seed, "machine": machine()}, indent=1)
        (folder / "crashes.json").write_text(text + "\n")
    sys.exit(not toll.is_flawless)


if __name__ == "__main__":
    main()
