"""The tool of the scoreboard: makes and removes resources, remembers idempotency keys, keeps the ledger, fails on plan.

The ledger is the judge: what is alive for a run at the end is what that run did to the world, whatever a journal says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from loadtests.scoreboard.plan import Fault, Kind, Moment

__all__ = ["Ledger", "Resource", "World"]

_Told = tuple[int, object, tuple[str, ...], int | None]
Strike = Callable[[int], Awaitable[None]]
"""Kills the process that plays the host of a run, by the run's number."""


@dataclass(slots=True)
class Resource:
    """Something that a turn of a run made."""

    id: int
    run: int
    turn: int
    key: str
    is_alive: bool = True


class Ledger:
    """Everything that was ever made."""

    def __init__(self) -> None:
        self.made: dict[int, Resource] = {}
        self.by_key: dict[str, Resource] = {}
        self._ids = itertools.count(1)

    def create(self, run: int, turn: int, key: str) -> Resource:
        """Make a resource; under a key that is known, return what was made then."""
        if key and (known := self.by_key.get(key)) is not None:
            return known
        resource = Resource(next(self._ids), run, turn, key)
        self.made[resource.id] = resource
        if key:
            self.by_key[key] = resource
        return resource

    def alive(self, run: int) -> list[Resource]:
        """Return what a run has left in the world."""
        return [resource for resource in self.made.values() if resource.run == run and resource.is_alive]


class _Struck(Exception):
    """The exchange ends here, as the plan says."""


class World:
    """The server. `strike` is set by whoever runs the processes."""

    def __init__(self, faults: Mapping[tuple[int, int], Fault]) -> None:
        self.ledger = Ledger()
        self.strike: Strike | None = None
        self.port = 0
        self._faults = dict(faults)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> World:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except _Struck:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = line.split(" ")
        status, answer, extra, after = await self._serve(method, target, headers.get("idempotency-key", ""), body)
        data = json.dumps(answer).encode()
        lines = (f"HTTP/1.1 {status} Told", "Content-Type: application/json", *extra, f"Content-Length: {len(data)}")
        writer.write("\r\n".join((*lines, "", "")).encode() + data)
        await writer.drain()
        if after is not None:
            await self._strike(after)
        return True

    async def _serve(self, method: str, target: str, key: str, body: bytes) -> _Told:
        if method == "GET":
            wanted = target.partition("key=")[2]
            found = [one for one in self.ledger.made.values() if one.key == wanted and one.is_alive]
            return 200, [{"id": one.id, "key": one.key} for one in found], (), None
        if method == "DELETE":
            resource = self.ledger.by_key.get(target.partition("key=")[2])
            if resource is None or not resource.is_alive:
                return 404, {"error": "it is gone"}, (), None
            resource.is_alive = False
            return 200, {"id": resource.id}, (), None
        try:
            asked = json.loads(body)
            run, turn = int(asked["run"]), int(asked["turn"])
        except (ValueError, KeyError, TypeError):
            return 400, {"error": "no such document"}, (), None
        if not isinstance(asked.get("size"), int):
            return 422, {"error": "`size` must be a whole number", "field": "size"}, (), None
        return await self._create(run, turn, key)

    async def _create(self, run: int, turn: int, key: str) -> _Told:
        fault = self._faults.get((run, turn))
        if fault is None or fault.kind is Kind.FORMAT:
            return *self._made(run, turn, key), (), None
        if fault.kind is Kind.CAPACITY:
            return 503, {"error": "out of capacity"}, ("Retry-After: 0",), None
        del self._faults[run, turn]
        answer = None if fault.moment is Moment.BEFORE else self._made(run, turn, key)
        match fault.kind:
            case Kind.DROP:
                raise _Struck
            case Kind.EXCEPTION:
                return 500, {"error": "unhandled exception"}, (), None
            case _ if fault.moment is Moment.ANSWERED and answer is not None:
                return *answer, (), run
            case _:
                await self._strike(run)
                raise _Struck

    def _made(self, run: int, turn: int, key: str) -> tuple[int, object]:
        resource = self.ledger.create(run, turn, key)
        return 201, {"id": resource.id, "turn": turn}

    async def _strike(self, run: int) -> None:
        if self.strike is not None:
            await self.strike(run)
