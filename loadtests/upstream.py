"""The tool behind every system under test: answers at once, and keeps a ledger of what reached it.

The ledger is the proof: after each sample the benchmark reads it at `GET /ledger` (which also empties it) and compares
it with what the generator sent. A gateway that sent a call twice, or answered one that it never sent, is found here.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click
import uvloop

from gateway.ingress.certificates import Authority
from loadtests.wire import answers_to, number_of, take_message

__all__ = ["Ledger", "main"]


class Ledger:
    """How often each call, by its number, and each idempotency key arrived."""

    def __init__(self) -> None:
        self._numbers: Counter[bytes] = Counter()
        self._keys: Counter[bytes] = Counter()

    def enter(self, head: bytes, number: bytes) -> None:
        """Count one call. `head` is in lower case."""
        self._numbers[number] += 1
        field = head.find(b"\r\nidempotency-key:")
        if field >= 0:
            self._keys[head[field + 18 : head.index(b"\r\n", field + 18)].strip()] += 1

    def close(self) -> dict[str, int]:
        """Return the totals and begin anew.

        `calls` arrived in all, `numbers` and `keys` are how many different ones, `most` is how often the most frequent
        number or key came.
        """
        most = max(max(self._numbers.values(), default=0), max(self._keys.values(), default=0))
        totals = {"calls": self._numbers.total(), "numbers": len(self._numbers), "keys": len(self._keys), "most": most}
        self._numbers.clear()
        self._keys.clear()
        return totals


class _Tool(asyncio.Protocol):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (message := take_message(self._buffer)) is not None:
            head, body, used = message
            self._buffer = self._buffer[used:]
            self._say(self._answer(head, body))

    def _say(self, pieces: Sequence[bytes]) -> None:
        """Write one piece now, and each further one in a pass of the loop of its own."""
        self._transport.write(pieces[0])
        if len(pieces) > 1:
            asyncio.get_running_loop().call_soon(self._say, pieces[1:])

    def _answer(self, head: bytes, body: bytes) -> Sequence[bytes]:
        if head.startswith(b"get /ledger "):
            totals = json.dumps(self._ledger.close()).encode()
            return (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(totals) + totals,)
        number = number_of(head, body)
        self._ledger.enter(head, number)
        return answers_to(head, number)


async def _serve(port: int, tls_port: int, authority: Path | None) -> None:
    ledger, loop = Ledger(), asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: _Tool(ledger), "127.0.0.1", port, backlog=4096)]
    if authority is not None:
        context = Authority.load(authority).context_for("localhost", time.time_ns() // 1_000_000)
        servers.append(
            await loop.create_server(lambda: _Tool(ledger), "127.0.0.1", tls_port, ssl=context, backlog=4096)
        )
    host, bound = servers[0].sockets[0].getsockname()
    print(json.dumps({"listen": f"{host}:{bound}"}), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


@click.command()
@click.option("--port", type=int, default=0, help="Where to listen; 0 takes a free port.")
@click.option("--tls-port", type=int, default=0, help="Where to listen with TLS.")
@click.option("--authority", type=click.Path(path_type=Path), help="Folder of the authority that TLS is under.")
def main(port: int, tls_port: int, authority: Path | None) -> None:
    """Serve until killed; prints where it listens as one line of JSON."""
    gc.disable()
    uvloop.run(_serve(port, tls_port, authority))


if __name__ == "__main__":
    main()
