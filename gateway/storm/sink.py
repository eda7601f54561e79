"""The tools of a live storm as a process: the workers and the queue of `VirtualTool`, behind real sockets, in real time.

A request that may have an effect (anything but GET and HEAD) is written into the tool's ledger under the number in its
query, `call=N`, once each time it arrives: the tool honours no key, so that a second effect is seen. `GET /effects?call=N`
answers how many there are, for probes.

Prints its ports as a line of JSON, then takes lines of JSON from standard input: `{"begin": T}` sets the moment that faults
count from, and is answered with the length of each tool's queue; `{"ledger": true}` is answered with the ledgers.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from functools import partial
from typing import Any, cast

from gateway.storm.scenario import FaultSettings, WorldSettings
from gateway.storm.world import VirtualTool

__all__ = ["main"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CALL = re.compile(rb"[?&]call=(\d+)")
_OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"status":"ok"}'[:-1]


class _Tool(asyncio.Protocol):
    """One connection. Answers come when the work is done, in order, as HTTP/1.1 wants it."""

    def __init__(self, tool: VirtualTool, clock: _Clock, ledger: Counter[int]) -> None:
        self._tool, self._clock, self._buffer, self._last = tool, clock, b"", 0.0
        self._ledger = ledger

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            line = self._buffer[: self._buffer.find(b"\r\n")]
            self._buffer = self._buffer[whole:]
            self._answer(line)

    def _answer(self, line: bytes) -> None:
        call = _CALL.search(line)
        if line.startswith(b"GET /effects?") and call is not None:
            body = b'{"count": %d}' % self._ledger[int(call[1])]
            self._write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            return
        loop, now = asyncio.get_running_loop(), self._clock.now()
        wait_s = self._tool.throttled_s(now)
        if wait_s is not None:
            body = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After-Ms: %d\r\nContent-Length: 0\r\n\r\n"
            self._write(body % max(1, round(wait_s * 1000)))
            return
        if call is not None and not line.startswith((b"GET ", b"HEAD ")):
            self._ledger[int(call[1])] += 1
        self._last = max(self._last, self._tool.work(now))
        loop.call_later(max(0.0, self._last - now), self._write, _OK)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class _Clock:
    """Seconds since the storm began."""

    def __init__(self) -> None:
        self.origin = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self.origin


async def _serve(spec: dict[str, Any]) -> None:
    loop, clock = asyncio.get_running_loop(), _Clock()
    tools, ports = {}, {}
    ledgers: dict[str, Counter[int]] = {}
    for name, world in spec["world"].items():
        faults = [FaultSettings(**fault) for fault in spec["faults"] if fault["tool"] == name]
        tool = tools[name] = VirtualTool(WorldSettings(**world), faults, random.Random(spec["seed"]))  # noqa: S311
        ledgers[name] = Counter()
        server = await loop.create_server(partial(_Tool, tool, clock, ledgers[name]), "127.0.0.1", 0, backlog=4096)
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps({"listen": "127.0.0.1:0", "ports": ports}), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        question = json.loads(line)
        if "begin" in question:
            clock.origin = question["begin"]
        if "ledger" in question:
            print(json.dumps({name: list(ledger.items()) for name, ledger in ledgers.items()}), flush=True)
            continue
        print(json.dumps({name: tool.queued(clock.now()) for name, tool in tools.items()}), flush=True)


def main() -> None:
    """Serve until standard input ends. The one argument says what tools there are."""
    asyncio.run(_serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
