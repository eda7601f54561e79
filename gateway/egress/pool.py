"""Connections to one origin: kept ones first, new ones where there is none, each address judged before it is used.

There is no limit and no queue here: how many calls an origin gets at once is what admission decides, further out. A kept
connection is handed out last in, first out, so that those not needed grow old and close.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from gateway.clock import Alarms
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.reach import Reach, unreachable
from gateway.core.tool import Upstream
from gateway.egress.connection import Connection

__all__ = ["Pool", "Resolve", "system_names"]

RESOLVED_S = 10.0

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes a host and a port, and returns the addresses that it leads to; raises `socket.gaierror`."""


async def system_names(host: str, port: int) -> list[str]:
    """Look a name up as the system does; an address is returned as it is."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Pool:
    """The connections to one origin.

    Args:
        upstream: where it is.
        reach: what kind of addresses its name may lead to.
        tls: makes the context for https, at first use.
        server_name: looked for in the certificate, instead of the upstream's host.
        keepalive_s: how long an idle connection is kept.
        resolve: looks names up.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        reach: Reach,
        tls: Callable[[], ssl.SSLContext],
        keepalive_s: float,
        resolve: Resolve = system_names,
        server_name: str | None = None,
    ) -> None:
        self._resolve = resolve
        self._server_name = server_name or upstream.host
        self._upstream = upstream
        self._reach = reach
        self._tls = tls
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._alarms = Alarms(self._loop)
        self._idle: dict[Connection, None] = {}
        self._resolved: tuple[float, list[str]] = (0.0, [])
        self._resolving: asyncio.Future[list[str]] | None = None
        self._is_closed = False

    @property
    def idle(self) -> int:
        """Connections kept at the moment."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """Return a kept connection on which nothing waits, or None."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    def put(self, connection: Connection) -> None:
        """Have a connection back whose exchange is over; it is kept if it can serve another."""
        if connection.finish():
            if self._is_closed:
                connection.abort()
                return
            connection.alarm.set(self._loop.time() + self._keepalive_s)
            self._idle[connection] = None

    async def connect(self, name: str, limit_s: float) -> Connection | Broken:
        """Return a new connection, or why there is none; nothing has left in any case. `name` is the tool's, for people.

        Cancellation leaves nothing behind.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._connect(name, self._loop.time() + limit_s)
        except TimeoutError:
            return _none(name, Fault.CONNECT_TIMEOUT, "could not be connected to in time")
        except socket.gaierror:
            return Broken(Fault.CONNECT, Dispatched.NO, f"the host name of {name} could not be resolved")
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "handshake failed"
            return Broken(Fault.CONNECT, Dispatched.NO, f"TLS with {name} failed: {why}")
        except (OSError, EOFError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            return _none(name, Fault.CONNECT, f"could not be connected to: {why or 'the connection was closed'}")

    def close(self) -> None:
        """Close idle connections now, and the others once they are given back. May be repeated."""
        self._is_closed = True
        if self._resolving is not None:
            self._resolving.cancel()
        for connection in list(self._idle):
            connection.abort()
        self._idle.clear()

    async def _connect(self, name: str, until: float) -> Connection | Broken:
        if self._upstream.socket:
            _, connection = await self._loop.create_unix_connection(self._made, self._upstream.socket)
            return connection
        addresses = await self._addresses()
        allowed = []
        problem: str | None = None
        for address in addresses:
            why = unreachable(self._upstream.host, address, self._reach)
            if why is None:
                allowed.append(address)
            problem = problem or why
        if problem is not None and not allowed:
            return _none(name, Fault.CONNECT, f"is not connected to: {problem} (setting reach)")
        error: OSError | None = None
        for number, address in enumerate(allowed):
            share_s = (until - self._loop.time()) / (len(allowed) - number)
            try:
                async with asyncio.timeout(share_s):
                    return await self._open(address)
            except ssl.SSLError:
                raise
            except OSError as failed:  # a time-out is one, too
                error = failed
        assert error is not None
        raise error

    async def _open(self, address: str) -> Connection:
        upstream = self._upstream
        is_tls = upstream.scheme == "https"
        _, connection = await self._loop.create_connection(
            self._made,
            address,
            upstream.port,
            ssl=self._tls() if is_tls else None,
            server_hostname=self._server_name if is_tls else None,
        )
        return connection

    def _made(self) -> Connection:
        return Connection(self._loop, self._alarms, self._forget)

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    async def _addresses(self) -> list[str]:
        """Return where the name leads to, from memory if it was asked a moment ago; one look-up for all who wait."""
        known_until, addresses = self._resolved
        if self._loop.time() < known_until:
            return addresses
        if self._resolving is None:
            self._resolving = asyncio.ensure_future(self._resolve(self._upstream.host, self._upstream.port))
            self._resolving.add_done_callback(self._has_resolved)
        return await asyncio.shield(self._resolving)

    def _has_resolved(self, task: asyncio.Future[list[str]]) -> None:
        self._resolving = None
        if not task.cancelled() and task.exception() is None:
            self._resolved = (self._loop.time() + RESOLVED_S, task.result())


def _none(name: str, fault: Fault, why: str) -> Broken:
    return Broken(fault, Dispatched.NO, f"{name} {why}")
