"""One load on its connections: keep-alive, raw protocols, every answer checked as it arrives.

Each connection plays an agent that has its calls in runs of `Load.calls_per_run`, one call at a time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import cast

from loadtests.figures import Histogram
from loadtests.load import Load, Tally, due_times
from loadtests.process import busy_ns, cpu_ns
from loadtests.wire import WORKLOADS, take_message

__all__ = ["offer"]

_PATIENCE_S = 20.0  # for what is still in flight when the time is up


async def offer(load: Load) -> Tally:
    """Offer a load from this process and return what came of it."""
    return await _Session(load).run()


class _Connection(asyncio.Protocol):
    def __init__(self, session: _Session, name: bytes) -> None:
        self._session, self._name = session, name
        self._buffer = b""
        self._calls = self._number = self._due_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, due_ns: int, number: int) -> None:
        load = self._session.load
        run = b"%b-%d" % (self._name, self._calls // load.calls_per_run)
        self._calls, self._number, self._due_ns = self._calls + 1, number, due_ns
        self.transport.write(self._session.workload.request(self._session.prefix, run, number))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if (message := take_message(self._buffer)) is not None:
            now_ns = time.perf_counter_ns()
            head, body, used = message
            self._buffer = self._buffer[used:]
            self._session.answered(self, head, body, self._number, now_ns - self._due_ns)

    def connection_lost(self, error: Exception | None) -> None:
        self._session.lost(error)


class _Session:
    """One load on its connections. `_take` says when the next call was due, or that there is none now."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.workload, self.prefix = WORKLOADS[load.workload], load.prefix.encode()
        self.tally = Tally()
        self._loop = asyncio.get_running_loop()
        self._histogram = Histogram()
        self._connections: list[_Connection] = []
        self._idle: list[_Connection] = []
        self._backlog: deque[int] = deque()
        self._left, self._end_ns, self._is_over = 0, 0, True
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._broken: Exception | None = None

    async def run(self) -> Tally:
        """Open the connections with a call each, then measure.

        What goes wrong with a connection ends the load and is told in `Tally.problem`.
        """
        try:
            async with asyncio.timeout(min(self.load.seconds, 3600.0) + _PATIENCE_S):
                await self._connect()
                await self._measure()
        except (OSError, TimeoutError) as error:
            self.tally.problem = self.tally.problem or f"{type(error).__name__}: {error}"
        finally:
            for connection in self._connections:
                connection.transport.abort()
        self.tally.latencies_ns = dict(self._histogram.counts)
        return self.tally

    async def _connect(self) -> None:
        for index in range(self.load.connections):
            name = b"bench-%d-%d" % (self.load.first, index)
            factory = partial(_Connection, self, name)
            _, connection = await self._loop.create_connection(factory, "127.0.0.1", self.load.port)
            self._connections.append(connection)
        await self._closed(calls=self.load.connections)

    async def _measure(self) -> None:
        self._histogram, self.tally.calls = Histogram(), 0
        pids, own = self.load.pids, self.load.own_pids
        cpu, ours, busy, start_ns = cpu_ns(pids), cpu_ns(own), busy_ns(), time.perf_counter_ns()
        if self.load.rate:
            await self._open(start_ns)
        else:
            await self._closed(calls=self.load.calls, seconds=self.load.seconds)
        self.tally.seconds = (time.perf_counter_ns() - start_ns) / 1e9
        self.tally.cpu_ns = cpu_ns(pids) - cpu
        self.tally.foreign_ns = max(0, busy_ns() - busy - (cpu_ns(own) - ours))

    async def _closed(self, *, calls: int, seconds: float = 3600.0) -> None:
        self._begin()
        self._left, self._end_ns = calls, time.perf_counter_ns() + round(seconds * 1e9)
        for connection in self._connections:
            self._go_on(connection)
        await self._done

    async def _open(self, start_ns: int) -> None:
        self._begin()
        self._left, self._is_over, self._idle = 0, False, list(self._connections)
        threading.Thread(target=self._keep_time, args=(start_ns,), daemon=True).start()
        await self._done

    def _begin(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._done, self._idle = self._loop.create_future(), []

    def _keep_time(self, start_ns: int) -> None:
        # A thread, because the loops' own timers are a millisecond coarse.
        with suppress(RuntimeError):  # the load broke off and its loop is closed
            for due_ns in due_times(self.load, start_ns):
                if (delay_ns := due_ns - time.perf_counter_ns()) > 0:
                    time.sleep(delay_ns / 1e9)
                self._loop.call_soon_threadsafe(self._fall_due, due_ns)
            self._loop.call_soon_threadsafe(self._end)

    def _fall_due(self, due_ns: int) -> None:
        self._backlog.append(due_ns)
        if self._idle:
            self._go_on(self._idle.pop())

    def _end(self) -> None:
        self._is_over = True
        self._finish()

    def _take(self) -> int | None:
        if self._backlog:
            return self._backlog.popleft()
        if self._left > 0 and (now_ns := time.perf_counter_ns()) < self._end_ns:
            self._left -= 1
            return now_ns
        return None

    def _go_on(self, connection: _Connection) -> None:
        due_ns = self._take()
        if due_ns is None:
            self._idle.append(connection)
            self._finish()
        else:
            number = self.load.first + self.tally.sent
            self.tally.sent += 1
            connection.send(due_ns, number)

    def _finish(self) -> None:
        if self._is_over and len(self._idle) == len(self._connections) and not self._done.done():
            self._done.set_result(None)

    def answered(self, connection: _Connection, head: bytes, body: bytes, number: int, latency_ns: int) -> None:
        """Check and count an answer, and let the connection go on."""
        self.tally.calls += 1
        self._histogram.record(latency_ns)
        if not self.workload.is_right(head, body, number):
            self.tally.wrong += 1
            self.tally.problem = self.tally.problem or f"wrong answer to call {number}: {head[:40]!r} {body[:400]!r}"
        self._go_on(connection)

    def lost(self, error: Exception | None) -> None:
        """A connection ended: before its time, that ends the load."""
        self._broken = error or ConnectionError("the system closed a keep-alive connection")
        if not self._done.done():
            self._done.set_exception(self._broken)
