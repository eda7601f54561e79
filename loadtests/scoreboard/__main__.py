"""Run the scoreboard and write it down."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
import click

from gateway.storm.runner import machine
from loadtests.scoreboard.contestants import Bare, Ending, Gateways, Journaled, Run, Through
from loadtests.scoreboard.plan import Fault, plan
from loadtests.scoreboard.table import SEED_000, Score, score, table
from loadtests.scoreboard.world import World

__all__ = ["contest", "main"]

BARE, JOURNALED, SAGA, WHOLE = SEED_000


async def contest(
    name: str, runs: int, seed: int, lanes: int, tell: Callable[[int], None] = lambda done: None
) -> Score:
    """Carry all runs under one configuration and return its score."""
    faults = plan(runs, seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="seawall-scoreboard-") as folder:
        async with World(faults) as world, aiohttp.ClientSession(trust_env=False) as http:
            if name in (BARE, JOURNALED):
                carrier = Bare(world, http) if name == BARE else Journaled(world, http, Path(folder))
                endings, kills = await _alone(carrier, runs, faults, world, tell)
            else:
                backend = "memory" if name == SAGA else "sqlite"
                async with Gateways(Path(folder), world, backend=backend) as gateways:
                    endings = await _behind(gateways, name, runs, faults, lanes, http, tell)
                kills = gateways.kills
            return score(name, endings, world.ledger, kills, time.monotonic() - began)


async def _alone(
    carrier: Bare, runs: int, faults: Mapping[tuple[int, int], Fault], world: World, tell: Callable[[int], None]
) -> tuple[dict[int, Ending], int]:
    """Carry runs without a gateway: a kill strikes the script's own process, which is the run that it is at."""
    endings: dict[int, Ending] = {}
    kills = 0
    for number in range(runs):
        run = Run(number, faults)

        async def strike(_: int, run: Run = run) -> None:
            nonlocal kills
            kills += 1
            run.killed_at = time.monotonic()

        world.strike = strike
        endings[number] = await carrier.run(run)
        tell(len(endings))
    return endings, kills


async def _behind(
    gateways: Gateways,
    name: str,
    runs: int,
    faults: Mapping[tuple[int, int], Fault],
    lanes: int,
    http: aiohttp.ClientSession,
    tell: Callable[[int], None],
) -> dict[int, Ending]:
    endings: dict[int, Ending] = {}

    async def lane(number: int) -> None:
        await gateways.start(number)
        agent = Through(name, gateways, number, http)
        for which in range(number, runs, lanes):
            endings[which] = await agent.run(Run(which, faults))
            tell(len(endings))

    await asyncio.gather(*(lane(number) for number in range(lanes)))
    return endings


@click.command()
@click.option("--runs", default=1000, show_default=True, help="Runs of nine turns under each configuration.")
@click.option("--seed", default=1, show_default=True, help="Which faults fall where.")
@click.option("--lanes", default=8, show_default=True, help="Gateways, and runs at the same time.")
@click.option("--only", type=click.Choice(list(SEED_000)), multiple=True, help="Only this configuration.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for scoreboard.json and scoreboard.md.")
def main(runs: int, seed: int, lanes: int, only: tuple[str, ...], out: str | None) -> None:
    """Carry runs through faults under four configurations; exit code 1 if the whole gateway lets one down."""
    scores = []
    for name in only or tuple(SEED_000):
        scores.append(asyncio.run(contest(name, runs, seed, lanes, _teller(name, runs))))
        if out is not None:
            _keep(Path(out), scores[-1], seed)
    click.echo(table(one.document() for one in scores))
    ours = [one for one in scores if one.name == WHOLE]
    sys.exit(any(not one.is_flawless or one.completed < 0.95 * one.runs for one in ours))


def _keep(folder: Path, one: Score, seed: int) -> None:
    """Write a score beside those that lie there already."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "scoreboard.json"
    known = json.loads(path.read_text())["scores"] if path.exists() else []
    by_name = {**{other["name"]: other for other in known}, one.name: one.document()}
    ordered = [by_name[name] for name in SEED_000 if name in by_name]
    document = {"runs": one.runs, "seed": seed, "machine": machine(), "scores": ordered}
    path.write_text(json.dumps(document, indent=1) + "\n")
    (folder / "scoreboard.md").write_text(table(ordered))


def _teller(name: str, runs: int) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{name}: {done} of {runs} ", err=True, nl=done == runs)

    return tell


if __name__ == "__main__":
    main()
