"""Four ways to carry a run of many turns through faults, and the one scripted agent that uses the two with a gateway.

The agent knows nothing of faults and has no way around the gateway. It makes the turns in order, reads what it is told,
corrects the argument that a 422 complains about, waits when told to wait, sends the same call again when told that it may,
and aborts its run when a turn cannot be had.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from loadtests.process import ROOT
from loadtests.scoreboard.plan import TURNS, Fault, Kind
from loadtests.scoreboard.world import World

__all__ = ["Bare", "Ending", "Gateways", "Journaled", "Run", "Through"]

_TRIES = 12
_END_S = 20.0
_FINAL = frozenset({"ERR_TRAJECTORY_CLOSED", "ERR_TRAJECTORY_FROZEN", "ERR_PIVOT_ORDER", "ERR_PIVOT_GATE"})
_MANIFEST = Path(__file__).with_name("manifest.yaml")


@dataclass(slots=True)
class Ending:
    """How a run ended, as whoever carried it saw it.

    Attributes:
        said: `finished`, `aborted`, `stuck` or `lost`.
        repaired: turns that the agent repaired.
        lost_turns: turns that the run knew as done and that were gone after a crash (RPO).
        recovery_s: for each kill, from the kill to the answer of the turn that it hit (RTO).
    """

    said: str
    repaired: int = 0
    lost_turns: int = 0
    recovery_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Run:
    """One run on its way."""

    number: int
    faults: Mapping[tuple[int, int], Fault]
    killed_at: float | None = None
    ending: Ending = field(default_factory=lambda: Ending("lost"))

    def body(self, turn: int, *, is_repaired: bool) -> dict[str, Any]:
        """Return the argument that the model writes for a turn; malformed where the plan says so, until it is repaired."""
        fault = self.faults.get((self.number, turn))
        is_bad = fault is not None and fault.kind is Kind.FORMAT and not is_repaired
        return {"run": self.number, "turn": turn, "size": "ten, I think" if is_bad else 10}


class Bare:
    """A script that calls the tool: the first thing that goes wrong is the end of it, and nothing is tidied up."""

    name = "bare client"

    def __init__(self, world: World, http: aiohttp.ClientSession) -> None:
        self._url, self._http = f"http://127.0.0.1:{world.port}/resources", http

    async def run(self, run: Run) -> Ending:
        """Carry one run."""
        for turn in range(TURNS):
            if await self._turn(run, turn) is not None:
                return run.ending
        run.ending.said = "finished"
        return run.ending

    async def _turn(self, run: Run, turn: int) -> str | None:
        try:
            async with self._http.post(self._url, json=run.body(turn, is_repaired=False)) as answer:
                await answer.read()
                went_wrong = None if answer.status < 300 else "stuck"
        except (aiohttp.ClientError, OSError):
            went_wrong = "lost" if run.killed_at is not None else "stuck"
        # Its host is its process: killed, it is gone, also if the answer had come.
        went_wrong = "lost" if run.killed_at is not None else went_wrong
        run.ending.said = went_wrong or run.ending.said
        return went_wrong


class Journaled(Bare):
    """The same script with a write-ahead log: it takes up a run after a crash where it was, and knows no other recovery."""

    name = "journal without recovery"

    def __init__(self, world: World, http: aiohttp.ClientSession, folder: Path) -> None:
        super().__init__(world, http)
        self._folder = folder

    async def run(self, run: Run) -> Ending:
        log = self._folder / f"{run.number}.wal"
        while (went_wrong := await self._from(run, log)) == "lost":
            killed, run.killed_at = run.killed_at, None
            if killed is not None:
                run.ending.recovery_s.append(time.monotonic() - killed)
        run.ending.said = went_wrong or "finished"
        return run.ending

    async def _from(self, run: Run, log: Path) -> str | None:
        for turn in range(_done(log), TURNS):
            _write(log, {"turn": turn, "is": "intended"})
            if (went_wrong := await self._turn(run, turn)) is not None:
                return went_wrong
            _write(log, {"turn": turn, "is": "done"})
        return None


def _done(log: Path) -> int:
    if not log.exists():
        return 0
    return sum(json.loads(line)["is"] == "done" for line in log.read_text().splitlines())


def _write(log: Path, record: object) -> None:
    with log.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


class Gateways:
    """One gateway for each lane, forked by the lane's own server, killed by `strike` and started again at once."""

    def __init__(self, folder: Path, world: World, *, backend: str) -> None:
        self._folder, self._world, self._backend = folder, world, backend
        self._servers: dict[int, asyncio.subprocess.Process] = {}
        self._listening: dict[int, asyncio.Future[str]] = {}
        self._pids: dict[int, int] = {}
        self.runs: dict[int, tuple[int, Run]] = {}
        self.kills = 0

    async def __aenter__(self) -> Gateways:
        manifest = self._folder / "manifest.yaml"
        manifest.write_text(_MANIFEST.read_text().replace("PORT", str(self._world.port)))
        self._log = (self._folder / "gateways.log").open("ab")
        self._world.strike = self.strike
        return self

    async def __aexit__(self, *_: object) -> None:
        self._world.strike = None
        for pid in self._pids.values():
            _kill(pid)
        for server in self._servers.values():
            assert server.stdin is not None
            server.stdin.close()
            await server.wait()
        self._log.close()

    async def start(self, lane: int) -> None:
        """Start a lane's gateway on its own folder and wait until it listens."""
        if lane not in self._listening or self._listening[lane].done():
            self._listening[lane] = asyncio.get_running_loop().create_future()
        if lane not in self._servers:
            self._servers[lane] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loadtests.scoreboard.forkserver",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._log, cwd=ROOT,
            )  # fmt: skip
        server = self._servers[lane]
        arguments = [
            "--manifest", str(self._folder / "manifest.yaml"), "--data", str(self._folder / f"lane-{lane}"),
            "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--watch", "false",
            "--journal-backend", self._backend, "--telemetry-log-level", "error",
        ]  # fmt: skip
        assert server.stdin is not None
        server.stdin.write(json.dumps(arguments).encode() + b"\n")
        await server.stdin.drain()
        self._pids[lane] = json.loads(await self._line(server))["pid"]
        self._listening[lane].set_result(json.loads(await self._line(server))["listen"])

    async def _line(self, server: asyncio.subprocess.Process) -> bytes:
        assert server.stdout is not None
        line = await asyncio.wait_for(server.stdout.readline(), 30.0)
        if not line:
            raise RuntimeError(f"the gateways ended; see {self._folder / 'gateways.log'}")
        return line

    async def strike(self, number: int) -> None:
        """Kill the gateway that carries a run, and start it again on what it left on disk."""
        lane, run = self.runs[number]
        run.killed_at = time.monotonic()
        await self.strike_lane(lane)

    async def strike_lane(self, lane: int) -> None:
        """Kill a lane's gateway, and start it again on what it left on disk."""
        self.kills += 1
        self._listening[lane] = asyncio.get_running_loop().create_future()
        pid = self._pids[lane]
        while _kill(pid):
            # Until it is gone: the folder is locked as long as the kernel still takes the process apart.
            await asyncio.sleep(0.001)
        # In a task of its own: the tool's connection that asked for this ends with the gateway.
        self._starting = asyncio.ensure_future(self.start(lane))

    async def url(self, lane: int) -> str:
        """Return where a lane's gateway listens, once it does."""
        return await asyncio.shield(self._listening[lane])


def _kill(pid: int) -> bool:
    """Kill a process; return whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Through:
    """The scripted agent behind a gateway of ours."""

    def __init__(self, name: str, gateways: Gateways, lane: int, http: aiohttp.ClientSession) -> None:
        self.name = name
        self._gateways, self._lane, self._http = gateways, lane, http

    async def run(self, run: Run) -> Ending:
        """Carry one run to its end."""
        self._gateways.runs[run.number] = (self._lane, run)
        name = f"run-{run.number}"
        for turn in range(TURNS):
            if not await self._turn(run, name, turn):
                run.ending.said = await self._abort(name)
                return run.ending
        run.ending.said = "finished" if await self._commit(name) else "stuck"
        return run.ending

    async def _turn(self, run: Run, name: str, turn: int) -> bool:
        is_repaired = False
        path = "/world/resources" if turn < TURNS - 1 else "/world/publications"
        for tries in range(_TRIES):
            answer = await self._ask("POST", path, name, run.body(turn, is_repaired=is_repaired))
            if answer is None:
                continue
            status, told = answer
            if status < 300:
                await self._recovered(run, name, turn)
                return True
            if status == 422 and told.get("field") == "size":
                is_repaired = True
                run.ending.repaired += 1
            elif told.get("code") in _FINAL:
                return False
            else:
                await asyncio.sleep(min(0.4, (told.get("retry_after_ms") or 25 * 2**tries) / 1000))
        return False

    async def _recovered(self, run: Run, name: str, turn: int) -> None:
        """After a kill: how long until the turn was answered, and whether the run knows all that it knew."""
        if run.killed_at is None:
            return
        run.ending.recovery_s.append(time.monotonic() - run.killed_at)
        run.killed_at = None
        shown = await self._ask("GET", f"/seawall/v1/trajectories/{name}", name, None)
        steps = shown[1].get("steps", []) if shown is not None and shown[0] == 200 else []
        known = sum(step["state"] == "committed" for step in steps)
        run.ending.lost_turns += max(0, turn + 1 - known)

    async def _commit(self, name: str) -> bool:
        for _ in range(_TRIES):
            answer = await self._ask("POST", f"/seawall/v1/trajectories/{name}/commit", name, {})
            if answer is not None and (answer[0] < 300 or answer[1].get("state") == "succeeded"):
                return True
            await asyncio.sleep(0.02)
        return False

    async def _abort(self, name: str) -> str:
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            answer = await self._ask(
                "POST", f"/seawall/v1/trajectories/{name}/abort", name, {"reason": "a turn could not be had"}
            )
            if answer is not None and answer[1].get("state") == "aborted_clean":
                return "aborted"
            if answer is not None and answer[0] in (404, 409, 423):
                return "stuck"
            await asyncio.sleep(0.02)
        return "stuck"

    async def _ask(self, method: str, path: str, name: str, body: object) -> tuple[int, dict[str, Any]] | None:
        """Return status and document, or None if no gateway answered."""
        url = await self._gateways.url(self._lane)
        try:
            async with self._http.request(
                method, url + path, json=body, headers={"Seawall-Trajectory": name}, timeout=aiohttp.ClientTimeout(30)
            ) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            await asyncio.sleep(0.005)
            return None
        try:
            told = json.loads(data)
        except ValueError:
            told = {}
        return answer.status, told if isinstance(told, dict) else {}
