"""A plain connection to a host for a tunnel: looked up, judged address by address, and never waited for too long."""

from __future__ import annotations

import asyncio
import socket

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.reach import Reach, unreachable

__all__ = ["Streams", "dial"]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def dial(host: str, port: int, limit_s: float, reach: Reach = Reach.AUTO) -> Streams | Broken:
    """Return a connection to `host`, or why there is none. Cancellation leaves nothing behind."""
    try:
        async with asyncio.timeout(limit_s):
            return await _dial(host, port, reach)
    except TimeoutError:
        return _none(Fault.CONNECT_TIMEOUT, f"{host} could not be connected to within {limit_s:g} s")
    except socket.gaierror:
        return _none(Fault.CONNECT, f"the host name {host} could not be resolved")
    except OSError as error:
        return _none(Fault.CONNECT, f"{host} could not be connected to: {error.strerror or 'no connection'}")


async def _dial(host: str, port: int, reach: Reach) -> Streams | Broken:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    judged = {address: unreachable(host, address, reach) for address in addresses}
    error: OSError | None = None
    for address, why in judged.items():
        if why is None:
            try:
                return await asyncio.open_connection(address, port)
            except OSError as failed:
                error = failed
    if error is not None:
        raise error
    why = next(filter(None, judged.values()), "its name leads nowhere")
    return _none(Fault.CONNECT, f"{host} is not connected to: {why}")


def _none(fault: Fault, why: str) -> Broken:
    return Broken(fault, Dispatched.NO, why)
