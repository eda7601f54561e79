"""A whole gateway on loopback, in this process or in one of its own, and a client that speaks plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.app import Gateway
from gateway.core.server import RunSettings, ServerSettings

__all__ = ["MANIFEST", "Answered", "Child", "Client", "serving", "write_manifest"]

MANIFEST = """
version: 1
domains:
  saas:
    concurrency: 8
    queue: 16
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 3, base: 1ms, cap: 5ms}
    breaker: {cooldown: 200ms, max_cooldown: 1s}
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    domain: saas
    idempotency: {header: Idempotency-Key, window: 1h}
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
      release: {match: "DELETE /holds/{id}", tier: reversible, idempotent: true}
      payout: {match: POST /payouts, tier: pivot}
  keyless:
    upstream: http://127.0.0.1:PORT
    domain: saas
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
      payout: {match: POST /payouts, tier: pivot}
  plain:
    upstream: http://127.0.0.1:PORT
    domain: saas
"""


def write_manifest(folder: Path, port: int, text: str = MANIFEST) -> Path:
    """Write the manifest for an origin on `port`."""
    path = folder / "manifest.yaml"
    path.write_text(text.replace("PORT", str(port)))
    return path


@dataclass
class Answered:
    """An answer, as it came."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    is_truncated: bool = False

    def __getitem__(self, name: str) -> str:
        return next(value for key, value in self.headers if key.lower() == name.lower())

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


class Client:
    """One request a connection, bytes by hand."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.fields: list[tuple[str, str]] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    def head(
        self, method: str, target: str, headers: Sequence[tuple[str, str]] = (), length: int | None = None
    ) -> bytes:
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def send(
        self,
        method: str,
        target: str,
        body: bytes | object | None = None,
        *,
        run: str | None = None,
        key: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Answered:
        """Send one request and read its answer whole."""
        fields = [*self.fields, *headers]
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            fields.append(("Content-Type", "application/json"))
        if run is not None:
            fields.append(("Seawall-Trajectory", run))
        if key is not None:
            fields.append(("Idempotency-Key", key))
        reader, writer = await self.open()
        try:
            length = None if body is None else len(body)
            writer.write(self.head(method, target, fields, length) + (body or b""))
            return await read_answer(reader, method)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader, method: str = "GET") -> Answered:
    """Read one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    answer = Answered(int(head[0].split(" ")[1]))
    answer.headers = [(line.split(":", 1)[0], line.split(":", 1)[1].strip()) for line in head[1:] if line]
    if method == "HEAD" or answer.status in (204, 304):
        return answer
    try:
        if (answer.get("transfer-encoding") or "") == "chunked":
            while size := int((await reader.readline()).strip() or b"-", 16):
                answer.body += await reader.readexactly(size)
                await reader.readexactly(2)
        elif (length := answer.get("content-length")) is not None:
            answer.body = await reader.readexactly(int(length))
        else:
            answer.body = await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
        answer.is_truncated = True
        answer.body += getattr(error, "partial", b"")
    return answer


@dataclass
class Serving:
    """A running gateway and clients for both of its ports."""

    gateway: Gateway
    agent: Client
    operator: Client


@contextlib.asynccontextmanager
async def serving(folder: Path, port: int, text: str = MANIFEST, **settings: Any) -> AsyncIterator[Serving]:
    """Run a gateway in this process."""
    manifest = write_manifest(folder, port, text)
    runs = settings.pop("runs", None) or RunSettings(implicit_idle=settings.pop("implicit_idle", 600.0))
    gateway = Gateway(
        ServerSettings(
            manifest=str(manifest),
            data=str(folder / "data"),
            listen=settings.pop("listen", "127.0.0.1:0"),
            control=settings.pop("control", "127.0.0.1:0"),
            watch=settings.pop("watch", False),
            drain=settings.pop("drain", 2.0),
            runs=runs,
            **settings,
        ),
        environ={},
    )
    await gateway.start()
    try:
        yield Serving(gateway, Client(gateway.listen), Client(gateway.control))
    finally:
        await gateway.stop()


class Child:
    """A gateway in a process of its own, to be killed."""

    def __init__(
        self,
        folder: Path,
        port: int,
        text: str = MANIFEST,
        *,
        file_limit: int | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        self.folder = folder
        self.listen = listen
        self.manifest = write_manifest(folder, port, text)
        self.file_limit = file_limit
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, **environment: str) -> Client:
        """Start it and return a client once it listens."""
        command = [
            sys.executable, "-P", "-m", "gateway", "serve", "--manifest", str(self.manifest),
            "--data", str(self.folder / "data"), "--listen", self.listen, "--control", "127.0.0.1:0", "--drain", "3s",
        ]  # fmt: skip
        self.log = (self.folder / "gateway.log").open("ab")
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
            preexec_fn=self._limit if self.file_limit is not None else None,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise AssertionError((self.folder / "gateway.log").read_text())
        told = json.loads(line)
        self.operator = Client(told["control"])
        return Client(told["listen"])

    def _limit(self) -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        assert self.file_limit is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_limit, self.file_limit))

    async def kill(self) -> None:
        """SIGKILL: no goodbye."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await self.process.wait()
        self.log.close()
        return code
