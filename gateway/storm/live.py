"""The live engine: a real gateway process, tools in another behind fault proxies in a third, and agents that keep time.

Everything is on loopback and ends with the storm. Requests are counted where they arrive, at the fault proxies; which
attempt of a call a request is, is told by its target, which carries the call's number. A policy that takes breaker, budget
and bulkhead away is a client without a gateway: it talks to the tools by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from gateway.core.tool import Catalog
from gateway.storm.children import Child, start_python
from gateway.storm.gateways import Gateways
from gateway.storm.generator import Alone, Generator
from gateway.storm.policy import catalog_of, manifest_for
from gateway.storm.recording import Recording
from gateway.storm.scenario import FaultSettings, PolicySettings, Scenario, WorldSettings

__all__ = ["Front", "Process", "live_engine", "run_live"]


class Process(Protocol):
    """Something that runs beside the storm."""

    async def stop(self) -> None:
        """End it. May be repeated."""


Front = Callable[[Path, Mapping[str, str], str], Awaitable[tuple[Process, str]]]
"""Starts what stands before the tools: (folder, upstream of each tool, manifest) to its process and its base URL, in which
`{tool}` stands for the tool's name if it has a path of its own."""

_POLL_S = 0.05
_PARTS = {"breaker", "budget", "bulkhead"}


def live_engine(against: str | None = None, front: Front | None = None) -> dict[str, Any]:
    """Return what `run_storm` needs to storm real processes: ours, another front, or a gateway that runs already."""

    def engine(scenario: Scenario, policy: PolicySettings, seed: int, progress: Callable[[float], None]) -> Recording:
        return asyncio.run(run_live(scenario, policy, seed, progress, against=against, front=front))

    return {"engine": engine, "can_run": lambda policy: _reason(policy, against)}


def _reason(policy: PolicySettings, against: str | None) -> str | None:
    if against is not None and policy.without:
        return "the gateway that was named runs already, under its own manifest"
    if set(policy.without) >= _PARTS:
        return None
    if policy.jitter != "full" or policy.anonymous:
        return "a real gateway always has jitter and knows its agents"
    return None


async def run_live(
    scenario: Scenario,
    policy: PolicySettings,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
    *,
    against: str | None = None,
    front: Front | None = None,
) -> Recording:
    """Run one storm on real sockets and return what happened.

    Raises:
        ConfigError: something is wrong with the manifest.
        RuntimeError: a process did not start, or ended before its time.
    """
    with tempfile.TemporaryDirectory(prefix="seawall-storm-") as name:
        folder = Path(name)
        if against is not None:
            return await _against(scenario, seed, against, progress)
        async with _world(scenario, seed, folder) as world:
            catalog = catalog_of(manifest_for(scenario, policy))
            if set(policy.without) >= _PARTS:
                generator = Generator(scenario, [world.places()], _alone(catalog, policy), seed, _patience_s(catalog))
                return await world.storm(generator, None, progress)
            manifest = manifest_for(scenario, policy, world.upstreams())
            if front is not None:
                process, url = await front(folder, world.upstreams(), manifest)
                try:
                    generator = Generator(scenario, [_places(url, scenario)], None, seed, _patience_s(catalog))
                    return await world.storm(generator, None, progress)
                finally:
                    await process.stop()
            gateways = Gateways(folder, manifest, policy.journal)
            try:
                await gateways.start(scenario.gateways)
                places = [_places(url, scenario) for url in gateways.urls]
                return await world.storm(
                    Generator(scenario, places, None, seed, _patience_s(catalog)), gateways, progress
                )
            finally:
                await gateways.stop()


async def _against(scenario: Scenario, seed: int, url: str, progress: Callable[[float], None]) -> Recording:
    """Storm a gateway that runs already. What goes wrong with its tools is its owner's to arrange."""
    patience_s = 120.0
    generator = Generator(scenario, [_places(f"{url.rstrip('/')}/{{tool}}", scenario)], None, seed, patience_s)
    async with _told(progress, scenario.seconds):
        await generator.warm()
        return await generator.run(asyncio.get_running_loop().time())


class _World:
    """Tools and fault proxies of one storm."""

    def __init__(self, scenario: Scenario, sink: Child, links: Child, http: aiohttp.ClientSession) -> None:
        self._scenario, self._sink, self._links, self._http = scenario, sink, links, http

    def upstreams(self) -> dict[str, str]:
        """Return the base URL of each tool, as whoever calls it must know it."""
        return {name: f"http://{where}" for name, where in self._links.told["proxies"].items()}

    def places(self) -> dict[str, tuple[str, int, str]]:
        """Return where each tool is."""
        return {name: _place(url) for name, url in self.upstreams().items()}

    async def storm(
        self, generator: Generator, gateways: Gateways | None, progress: Callable[[float], None]
    ) -> Recording:
        """Let the storm happen.

        Raises:
            RuntimeError: a gateway that was killed did not start again.
        """
        await generator.warm()
        loop = asyncio.get_running_loop()
        began, origin = loop.time() + 0.05, time.monotonic() + 0.05
        await self._sink.ask({"begin": origin})
        await asyncio.sleep(max(0.0, began - loop.time()))
        await self._post("/script", [act for fault in self._scenario.faults for act in _acts(fault)])
        watch = _Watch(self._http, gateways.controls if gateways is not None else [], began)
        async with _told(progress, self._scenario.seconds), watch:
            if gateways is None:
                recording = await generator.run(began)
            else:
                recording, _ = await asyncio.gather(
                    generator.run(began), gateways.kill_as_told(self._scenario.faults, began)
                )
                recording.kills = gateways.kills
        recording.moves = watch.recording.moves
        recording.toll = await self._toll(generator.told)
        await self._arrivals(recording, origin)
        return recording

    async def _toll(self, told: Mapping[str, Set[int]]) -> dict[str, int]:
        """Return what the tools' ledgers say, against what the agents were told."""
        toll: Counter[str] = Counter(effects=0, doubled=0, lost=0, unclaimed=0)
        for tool, rows in (await self._sink.ask({"ledger": True})).items():
            ledger, claimed = dict(rows), told.get(tool, set())
            toll["effects"] += sum(ledger.values())
            toll["doubled"] += sum(count - 1 for count in ledger.values())
            toll["lost"] += len(claimed - ledger.keys())
            toll["unclaimed"] += len(ledger.keys() - claimed)
        return dict(toll)

    async def _post(self, path: str, document: object) -> None:
        async with self._http.post(f"http://{self._links.told['api']}{path}", json=document) as answer:
            if answer.status >= 300:
                raise RuntimeError(f"the fault proxy said {answer.status}: {await answer.text()}")

    async def _arrivals(self, recording: Recording, origin: float) -> None:
        found = []
        for tool in self._links.told["proxies"]:
            async with self._http.get(f"http://{self._links.told['api']}/proxies/{tool}/requests") as answer:
                found += [(seen["at"] - origin, tool, seen["target"]) for seen in await answer.json()]
        attempts: Counter[str] = Counter()
        for at, tool, target in sorted(found):
            attempts[target] += 1
            recording.attempts.add(at, tool, attempts[target], 0, 0)


class _Watch:
    """Looks at the gateways' breakers many times a second, and notes what changed."""

    def __init__(self, http: aiohttp.ClientSession, controls: Sequence[str], began: float) -> None:
        self._http, self._controls, self._began = http, controls, began
        self._states: dict[tuple[int, str], str] = {}
        self.recording = Recording()

    async def __aenter__(self) -> _Watch:
        self._tasks = [asyncio.ensure_future(self._look(*one)) for one in enumerate(self._controls)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self, number: int, control: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(aiohttp.ClientError, ValueError):
                async with self._http.get(f"{control}/api/v1/breakers") as answer:
                    breakers = await answer.json()
                for tool, told in breakers.items():
                    before, state = self._states.get((number, tool), "closed"), str(told["state"])
                    if state != before:
                        self._states[number, tool] = state
                        cause = "healed" if state == "closed" else "seen"
                        wait_s = float(told.get("cooldown_s") or 0.0)
                        self.recording.moves.add(loop.time() - self._began, number, tool, state, cause, wait_s)
            await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def _world(scenario: Scenario, seed: int, folder: Path) -> AsyncIterator[_World]:
    tools = dict.fromkeys(load.tool for load in scenario.load)
    spec = {
        "seed": seed,
        "world": {name: dataclasses.asdict(scenario.world.get(name, WorldSettings())) for name in tools},
        "faults": [dataclasses.asdict(fault) for fault in scenario.faults if fault.kind == "slow"],
    }
    async with contextlib.AsyncExitStack() as stack:
        sink = await start_python("gateway.storm.sink", json.dumps(spec), log=folder / "sink.log")
        stack.push_async_callback(sink.stop)
        links = [f"--proxy={name}=127.0.0.1:{port}" for name, port in sink.told["ports"].items()]
        proxies = await start_python(
            "gateway.storm.faultproxy", f"--seed={seed}", *links, log=folder / "faultproxy.log"
        )
        stack.push_async_callback(proxies.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        yield _World(scenario, sink, proxies, http)


@contextlib.asynccontextmanager
async def _told(progress: Callable[[float], None], seconds: float) -> AsyncIterator[None]:
    async def tell() -> None:
        for step in range(100):
            progress(step / 100)
            await asyncio.sleep(seconds / 100)

    task = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        task.cancel()


_TOXICS = {"hang": "hang_before", "error": "status", "reset": "reset_before"}


def _acts(fault: FaultSettings) -> list[dict[str, object]]:
    """Return what the fault proxy does at the beginning and at the end of a fault."""
    if fault.kind in ("slow", "kill"):
        return []
    if fault.kind == "down":
        return [
            {"at": fault.start, "proxy": fault.tool, "down": True},
            {"at": fault.end, "proxy": fault.tool, "down": False},
        ]
    name = f"{fault.kind}-{fault.start:g}"
    toxic: dict[str, object] = {"name": name, "type": _TOXICS[fault.kind], "toxicity": fault.share}
    if fault.kind == "error":
        toxic["attributes"] = {"status": 500}
    return [
        {"at": fault.start, "proxy": fault.tool, "add": toxic},
        {"at": fault.end, "proxy": fault.tool, "remove": name},
    ]


def _alone(catalog: Catalog, policy: PolicySettings) -> Alone:
    tool = next(iter(catalog.tools.values()))
    bounds = tool.domain.timeouts
    return Alone(tool.retry, policy.jitter, bounds.first_byte, bounds.total)


def _patience_s(catalog: Catalog) -> float:
    return max(tool.domain.timeouts.total for tool in catalog.tools.values()) + 5.0


def _places(url: str, scenario: Scenario) -> dict[str, tuple[str, int, str]]:
    return {load.tool: _place(url.replace("{tool}", load.tool)) for load in scenario.load}


def _place(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80, parts.path.rstrip("/")
