"""Kills a real gateway under load, again and again, and compares three accounts of what happened.

The gateway runs in a process of its own, and so does the tool, whose ledger is the truth. Agents work through runs of holds,
releases, payouts, commits and aborts; whenever the gateway is gone they wait for it and send the same call again. It is
killed (SIGKILL) at random moments and at named points (`points/sitecustomize.py`), and started again on the same folder. In
the end:

* nothing that was answered with success is missing from the journal,
* no forward effect and no keyed compensation happened twice at the tool,
* nothing reached the tool without its intent in the journal,
* every run is in the class that its agent was told, and the journal verifies.

    python -m tests.gateway.chaos --cycles 82 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.records import CompensationIntended, StepCommitted, StepIntended, decode
from gateway.core.trajectory import StepState, fold
from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Verdict
from tests.gateway.harness import MANIFEST, Answered, Child, Client
from tests.origin import Remote

__all__ = ["POINTS", "Report", "run_chaos"]

POINTS = ("before-write", "inside-transaction", "after-commit", "before-send", "after-answer", "compensating")
AGENTS = 8
_POINTS_FOLDER = Path(__file__).parent / "points"
_ROOT = Path(__file__).parents[2]
_GONE = (ConnectionError, asyncio.IncompleteReadError, TimeoutError, OSError, IndexError, ValueError)
_ENDS = {"ERR_OUTCOME_UNKNOWN", "ERR_PIVOT_ORDER", "ERR_PIVOT_GATE", "ERR_TRAJECTORY_FROZEN", "ERR_TRAJECTORY_CLOSED"}


@dataclass
class Told:
    """What an agent was told of one run."""

    steps: dict[int, str] = field(default_factory=dict)
    end: str = ""


@dataclass
class Report:
    """What came of it. `problems` is empty if every promise was kept."""

    seed: int
    cycles: int = 0
    calls: int = 0
    acknowledged: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    slowest_start_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.cycles} kills ({', '.join(f'{n} {k}' for k, n in sorted(self.kills.items()))}), "
            f"{self.calls} calls, {self.acknowledged} acknowledged steps, slowest start {self.slowest_start_s:.2f} s",
            "runs: " + ", ".join(f"{n} {name}" for name, n in sorted(self.classes.items())),
            *self.problems,
            "every promise was kept" if not self.problems else f"{len(self.problems)} promises broken",
        ]
        return "\n".join(lines)


class _Load:
    """The agents, and the gateway that they talk to while there is one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.up = asyncio.Event()
        self.client = Client("http://127.0.0.1:1")
        self.told: dict[str, Told] = {}
        self.is_stopping = False
        self.calls = 0

    async def agent(self, number: int) -> None:
        chance, turn = random.Random(self.seed * 1_000 + number), 0
        while not self.is_stopping:
            turn += 1
            await self._run(f"run-{number}-{turn}", chance)

    async def _run(self, name: str, chance: random.Random) -> None:
        told = self.told[name] = Told()
        for n in range(chance.randrange(1, 4)):
            tool = chance.choice(["pay", "pay", "keyless"])
            # A tool without keys counts by target, so each of its calls has one of its own.
            if not await self._step(name, told, f"/{tool}/holds?of={name}.{n}", f"{name}-{n}"):
                await self._end(name, told, "abort")
                return
        end = chance.choice(["commit", "abort", "payout", "leave"])
        if end == "payout":
            if not await self._step(name, told, f"/pay/payouts?of={name}", f"{name}-payout"):
                await self._end(name, told, "abort")
                return
            end = "commit"
        if end != "leave":
            await self._end(name, told, end)

    async def _step(self, run: str, told: Told, target: str, key: str) -> bool:
        """Send one write until it has an answer that means something; return whether it was done."""
        for _ in range(200):
            answer = await self._send("POST", target, {"key": key}, run=run, key=key)
            if answer.status == 201:
                told.steps[int(answer["seawall-step"])] = target
                return True
            if answer.json.get("code") in _ENDS or not answer.json.get("retryable", True):
                return False
            await asyncio.sleep(0.02)
        return False

    async def _end(self, run: str, told: Told, how: str) -> None:
        for _ in range(200):
            answer = await self._send("POST", f"/seawall/v1/trajectories/{run}/{how}", {"reason": "enough"})
            if answer.status in (200, 202, 404, 409, 423):
                told.end = how if answer.status in (200, 202) else ""
                return
            await asyncio.sleep(0.02)

    async def _send(
        self, method: str, target: str, body: object, *, run: str | None = None, key: str | None = None
    ) -> Answered:
        while True:
            await self.up.wait()
            client = self.client
            try:
                self.calls += 1
                return await asyncio.wait_for(client.send(method, target, body, run=run, key=key), 20)
            except _GONE:
                if client is self.client:
                    await asyncio.sleep(0.01)


async def run_chaos(folder: Path, *, seed: int, cycles: int, points: bool = True) -> Report:
    """Run the load through `cycles` kills and return what came of it."""
    chance, report, load = random.Random(seed), Report(seed), _Load(seed)
    with Remote(honours_keys=True) as origin:
        await asyncio.to_thread(_script, origin)
        gateway = Child(folder, origin.port, MANIFEST)
        agents = [asyncio.create_task(load.agent(number)) for number in range(AGENTS)]
        try:
            for cycle in range(cycles):
                point = POINTS[cycle // 2 % len(POINTS)] if points and cycle % 2 else ""
                await _cycle(gateway, load, report, chance, point)
            load.is_stopping = True
            await _start(gateway, load, report)
            await asyncio.wait_for(asyncio.gather(*agents), 120)
            await _settled(gateway.operator)
            await gateway.terminate()
        finally:
            for agent in agents:
                agent.cancel()
            if gateway.process is not None and gateway.process.returncode is None:
                await gateway.kill()
        report.calls = load.calls
        await _judge(folder, load, report, await asyncio.to_thread(origin.ledger))
    return report


def _script(origin: Remote) -> None:
    json = {"Content-Type": "application/json"}
    origin.on("POST /holds", {"kind": "answer", "status": 201, "body": '{"id": "h1"}', "headers": json})
    origin.on("POST /payouts", {"kind": "answer", "status": 201, "body": "{}", "headers": json})
    origin.on("POST /holds/h1/cancel", {"kind": "answer", "status": 200, "body": "{}", "headers": json})


async def _cycle(gateway: Child, load: _Load, report: Report, chance: random.Random, point: str) -> None:
    number = chance.randrange(1, 40)
    try:
        await _start(gateway, load, report, f"{point}:{number}" if point else "")
    except AssertionError:
        if not point or gateway.process is None or await gateway.process.wait() != -signal.SIGKILL:
            raise
    assert gateway.process is not None
    with contextlib.suppress(TimeoutError):
        # A named point kills from inside; one that is never passed is killed from outside in the end.
        await asyncio.wait_for(gateway.process.wait(), 5.0 if point else chance.uniform(0.05, 0.6))
    report.kills[point if point and gateway.process.returncode is not None else "at random"] += 1
    load.up.clear()
    await gateway.kill()
    report.cycles += 1


async def _start(gateway: Child, load: _Load, report: Report, kill_at: str = "") -> None:
    environment = {}
    if kill_at:
        path = os.pathsep.join((str(_POINTS_FOLDER), str(_ROOT)))
        environment = {"CHAOS_KILL_AT": kill_at, "PYTHONPATH": path}
    began = time.monotonic()
    load.client = await gateway.start(**environment)
    report.slowest_start_s = max(report.slowest_start_s, time.monotonic() - began)
    load.up.set()


async def _settled(operator: Client) -> None:
    """Wait until nothing is being undone any more, for at most half a minute."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        answer = await operator.send("GET", "/api/v1/trajectories?state=compensating&limit=1000")
        if not answer.json["trajectories"]:
            return
        await asyncio.sleep(0.05)


async def _judge(folder: Path, load: _Load, report: Report, ledger: dict[str, int]) -> None:
    journal = await SqliteJournal.open(folder / "data")
    intents: set[str] = set()
    for head in await journal.heads(limit=1_000_000):
        records = [(decode(entry.kind, entry.data), entry.at) for entry in await journal.read(head.stream)]
        state = fold(head.stream, records)
        report.classes[state.phase.value] += 1
        intents |= {record.key for record, _ in records if isinstance(record, StepIntended | CompensationIntended)}
        intents |= {f"{record.method} {record.target}" for record, _ in records if isinstance(record, StepIntended)}
        told = load.told.get(head.stream, Told())
        done = {record.step for record, _ in records if isinstance(record, StepCommitted)}
        for step in told.steps.keys() - done:
            report.problems.append(f"run {head.stream}: step {step} was acknowledged and is not in the journal")
        if not _is_right(told.end, state.phase.value):
            report.problems.append(f"run {head.stream}: its agent was told {told.end!r}, and it is {state.phase.value}")
        if state.phase.value == "aborted_clean":
            left = [n for n, step in state.steps.items() if step.state is StepState.COMMITTED]
            report.problems += [f"run {head.stream}: step {n} was left undone" for n in left]
    await journal.close()
    report.acknowledged = sum(len(told.steps) for told in load.told.values())
    report.problems += [
        f"run {name}: acknowledged, and not in the journal"
        for name, told in load.told.items()
        if told.steps and not _known(name, folder)
    ]
    for key, count in ledger.items():
        is_undo_without_key = key.startswith("POST /holds/h1/cancel")
        if count > 1 and not is_undo_without_key:
            report.problems.append(f"{key}: {count} effects")
        if key not in intents and not is_undo_without_key:
            report.problems.append(f"{key}: an effect without an intent")
    verdict = verify_folder(folder / "data")
    if verdict.verdict is not Verdict.OK:
        report.problems.append(f"the journal does not verify: {verdict.finding}")


def _known(name: str, folder: Path) -> bool:
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"file:{folder / 'data' / 'journal.db'}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT 1 FROM head WHERE name = ?", (name,)).fetchone() is not None


def _is_right(end: str, phase: str) -> bool:
    """Whether a run is in a class that fits what its agent was told last."""
    match end:
        case "commit":
            return phase == "succeeded"
        case "abort":
            return phase in ("aborted_clean", "compensating", "frozen")
        case _:
            return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=82)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.cycles} cycles", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(run_chaos(Path(folder), seed=options.seed, cycles=options.cycles))
    print(report)
    raise SystemExit(bool(report.problems))


if __name__ == "__main__":
    main()
