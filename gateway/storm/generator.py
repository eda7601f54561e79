"""The agents of a live storm: calls leave when they are due, whatever became of those before, on warm connections.

A latency counts from when the call was due (G. Tene, "How not to measure latency"), and a call that finds no free connection
within the bound is counted as skipped, never left out in silence. A client without a gateway repeats on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.core.backoff import full_jitter
from gateway.core.retry import RetrySettings
from gateway.storm.arrivals import due_times, names, source_of, whole
from gateway.storm.recording import Recording
from gateway.storm.scenario import LoadSettings, Scenario

__all__ = ["Alone", "Generator"]

CONNECTIONS = 1024
_PASSING = ("failed:408", "failed:429")
"""Answers that a client sends again after, though they say that the fault is its own."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Alone:
    """How a client without a gateway behaves: how it repeats, its patience with one attempt and with a call."""

    retry: RetrySettings
    jitter: str
    attempt_s: float
    call_s: float

    def wait_s(self, attempt: int, u: float) -> float:
        """Return how long it waits after an attempt."""
        u = {"none": 1.0, "zero": 0.0}.get(self.jitter, u)
        return full_jitter(attempt, self.retry.base, self.retry.cap, u)


class Generator:
    """All agents of a storm.

    Args:
        scenario: what they call, and when.
        where: (host, port, path in front of every target) for each tool, once for each gateway; agents are spread over
            them.
        alone: how they behave without a gateway; None with one.
        seed: where chance begins.
        patience_s: how long a call may take at all.
    """

    def __init__(
        self,
        scenario: Scenario,
        where: Sequence[Mapping[str, tuple[str, int, str]]],
        alone: Alone | None,
        seed: int,
        patience_s: float,
    ) -> None:
        self._scenario, self._where, self._alone, self._seed = scenario, where, alone, seed
        self._patience_s = patience_s
        self._pools = [{tool: _Pool(host, port) for tool, (host, port, _) in one.items()} for one in where]
        self._numbers = itertools.count()
        self._chance = random.Random(seed)  # noqa: S311 - jitter
        self._recording = Recording()
        self._began = 0.0
        self.told: dict[str, set[int]] = {}
        """Calls with an effect that were told of success, by tool."""

    async def warm(self, connections: int = 32) -> None:
        """Open connections, so that the first calls do not pay for them."""
        await asyncio.gather(*(pool.warm(connections) for pools in self._pools for pool in pools.values()))

    async def run(self, began: float) -> Recording:
        """Make every call; `began` is the loop's time that everything counts from."""
        self._began = began
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            await asyncio.gather(*(self._load(index, load) for index, load in enumerate(self._scenario.load)))
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            for pools in self._pools:
                for pool in pools.values():
                    pool.close()
        return self._recording

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def _load(self, index: int, load: LoadSettings) -> None:
        agents, seconds = names(load), self._scenario.seconds
        if load.arrive == "loop":
            lanes = [(which, name) for which, name in enumerate(agents) for _ in range(load.lanes)]
            await asyncio.gather(*(self._agent(load, which, name) for which, name in lanes))
            return
        for number, due in enumerate(due_times(load, seconds, source_of(self._scenario, self._seed, index))):
            if (wait_s := due - self._now()) > 0:
                await asyncio.sleep(wait_s)
            which = number % len(agents)
            task = asyncio.get_running_loop().create_task(self._call(load, which, agents[which], due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _agent(self, load: LoadSettings, which: int, name: str) -> None:
        start, end = whole(load, self._scenario.seconds)
        await asyncio.sleep(max(0.0, start - self._now()))
        while (now := self._now()) < end:
            await self._call(load, which, name, now)
            await asyncio.sleep(max(load.think, 0.0005))

    async def _call(self, load: LoadSettings, which: int, name: str, due: float) -> None:
        method, _, target = load.request.partition(" ")
        mark = "&" if "?" in target else "?"
        number = next(self._numbers)
        gateway = which % len(self._where)
        prefix, pool = self._where[gateway][load.tool][2], self._pools[gateway][load.tool]
        line = f"{method} {prefix}{target}{mark}call={number} HTTP/1.1\r\nHost: storm\r\nSeawall-Agent: {name}\r\n"
        has_effect = method not in ("GET", "HEAD")
        line += f"Idempotency-Key: storm-{self._seed}-{number}\r\nContent-Length: 0\r\n\r\n" if has_effect else "\r\n"
        for repeat in range(load.insists + 1):
            if repeat and load.pause:
                await asyncio.sleep(load.pause)
                due = self._now()
            outcome = await self._attempts(pool, line.encode())
            now = self._now()
            self._recording.calls.add(due, now, load.tool, name, outcome)
            if outcome == "success":
                if has_effect:
                    self.told.setdefault(load.tool, set()).add(number)
                return
            due = now

    async def _attempts(self, pool: _Pool, request: bytes) -> str:
        if self._alone is None:
            return await self._once(pool, request, self._patience_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._alone.call_s
        for attempt in itertools.count(1):
            outcome = await self._once(pool, request, min(self._alone.attempt_s, deadline - loop.time()))
            wait_s = self._alone.wait_s(attempt, self._chance.random())
            is_over = attempt >= self._alone.retry.attempts or loop.time() + wait_s > deadline
            is_final = outcome == "success" or (outcome.startswith("failed:4") and outcome not in _PASSING)
            if is_final or is_over:
                return outcome
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable")

    async def _once(self, pool: _Pool, request: bytes, patience_s: float) -> str:
        if pool.out >= CONNECTIONS:
            self._recording.skipped += 1
            return "failed:skipped"
        try:
            async with asyncio.timeout(max(0.001, patience_s)):
                status, body = await pool.exchange(request)
        except TimeoutError:
            return "failed:timeout"
        except (OSError, asyncio.IncompleteReadError, ValueError):
            return "failed:connection"
        return _word(status, body)


class _Pool:
    """Connections to one place; each carries one call at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.out = 0

    async def warm(self, connections: int) -> None:
        with contextlib.suppress(OSError):
            self._idle += await asyncio.gather(
                *(asyncio.open_connection(self._host, self._port) for _ in range(connections))
            )

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        self.out += 1
        writer = None
        try:
            reader, writer = await self._take()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await _read_body(reader, head)
            if b"\r\nconnection: close" not in head.lower():
                self._idle.append((reader, writer))
                writer = None
            return int(head[9:12]), body
        finally:
            self.out -= 1
            if writer is not None:
                writer.transport.abort()

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = _LENGTH.search(head)
    if length is not None:
        return await reader.readexactly(int(length[1]))
    body = b""
    if _CHUNKED.search(head):
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    return body


def _word(status: int, body: bytes) -> str:
    """Return the outcome as recordings know it."""
    if status < 400:
        return "success"
    with contextlib.suppress(ValueError):
        problem = json.loads(body)
        if isinstance(problem, dict) and "code" in problem:
            kind = "refused" if problem.get("dispatched") == "no" else "failed"
            return f"{kind}:{problem['code']}"
    return f"failed:{status}"
