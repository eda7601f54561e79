"""`tools/call` direct, through the gateway, and through two other MCP gateways: what each adds to p50 and p99.

One server with one tool that adds two numbers, over Streamable HTTP and over stdio. One client, one call after the other,
every system measured in turn in several rounds, so that the machine's moods fall on all of them. The gateway journals each
call as a step (its intent and its outcome are durable before the answer), unless the row says that it is a read.

    make clients && .venv/bin/python -m loadtests.mcp_calls --markdown docs/mcp.md

`mcp-proxy` needs an older SDK than ours, so it has an environment of its own (`environments/mcp_proxy.txt`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import aiohttp
import click

from loadtests.machine import facts
from loadtests.process import ROOT

__all__ = ["main", "written"]

BEGIN = "<!-- mcp_calls -->"
END = "<!-- /mcp_calls -->"

SERVER = Path(__file__).parent / "mcp_server.py"
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


@dataclass(frozen=True, slots=True)
class Row:
    """One way to the tool: what it is called, where it listens, the tool's name there, and what it is compared with."""

    name: str
    url: str
    tool: str
    base: str | None = None


Measured = tuple[Sequence[Row], dict[str, list[float]]]
"""The rows, and the times of each by its name, in milliseconds."""


class Session:
    """A client of the handshake era, as thin as can be, so that its own cost is small and the same for all."""

    def __init__(self, http: aiohttp.ClientSession, row: Row) -> None:
        self._http = http
        self._row = row
        self._headers = dict(HEADERS)
        self._next = 0

    async def open(self) -> None:
        """Introduce ourselves."""
        info = {"name": "bench", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        answer = await self._send("initialize", params)
        self._headers["Mcp-Session-Id"] = answer[0]
        await self._send("notifications/initialized", None)

    async def call(self, number: int) -> None:
        """Call the tool once and check its answer."""
        _, text = await self._send("tools/call", {"name": self._row.tool, "arguments": {"a": number, "b": 1}})
        if f"{number + 1}" not in text or 'isError":true' in text:
            raise RuntimeError(f"{self._row.name} answered {text[:300]}")

    async def _send(self, method: str, params: object) -> tuple[str, str]:
        self._next += 1
        body: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            body |= {"id": self._next, "params": params}
        async with self._http.post(self._row.url, data=json.dumps(body), headers=self._headers | _JSON) as answer:
            return answer.headers.get("Mcp-Session-Id", ""), await answer.text()


class Pipes:
    """The same client on the pipes of a server of its own."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._next = 0
        self._child: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        """Start the server and introduce ourselves."""
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, str(SERVER), "stdio", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=1 << 20,
        )  # fmt: skip
        info = {"name": "bench", "version": "1"}
        await self._send("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})
        await self._send("notifications/initialized", None)

    async def call(self, number: int) -> None:
        """Call the tool once and check its answer."""
        text = await self._send("tools/call", {"name": self._row.tool, "arguments": {"a": number, "b": 1}})
        if f"{number + 1}" not in text:
            raise RuntimeError(f"{self._row.name} answered {text[:300]}")

    async def close(self) -> None:
        """End the server."""
        if self._child is not None:
            self._child.kill()
            await self._child.wait()

    async def _send(self, method: str, params: object) -> str:
        assert self._child is not None
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._next += 1
        body: dict[str, object] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            body |= {"id": self._next, "params": params}
        self._child.stdin.write(json.dumps(body).encode() + b"\n")
        return "" if params is None else (await self._child.stdout.readline()).decode()


_JSON = {"Content-Type": "application/json"}


@click.command()
@click.option(
    "--mcp-proxy",
    type=click.Path(exists=True, path_type=Path),
    default=ROOT / ".clients/mcp-proxy/bin/mcp-proxy",
    show_default=True,
    help="The program to compare with.",
)
@click.option("--calls", default=200, show_default=True, help="Calls a round.")
@click.option("--rounds", default=5, show_default=True, help="Rounds.")
@click.option(
    "--markdown",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A page to write the table into, between {BEGIN} and {END}.",
)
def main(mcp_proxy: Path, calls: int, rounds: int, markdown: Path | None) -> None:
    """Measure, and print a table."""
    table = _report(asyncio.run(_measure(mcp_proxy, calls, rounds)), mcp_proxy, calls * rounds)
    click.echo(table)
    if markdown is not None:
        markdown.write_text(written(markdown.read_text(), table))


def written(page: str, table: str) -> str:
    """Return a page with the table in its place.

    Raises:
        click.ClickException: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise click.ClickException(f"the page has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _report(measured: Measured, mcp_proxy: Path, calls: int) -> str:
    python = mcp_proxy.with_name("python")
    code = "from importlib.metadata import version; print(version('mcp-proxy'))"
    proxy = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    of = f"mcp {version('mcp')}, fastmcp {version('fastmcp')}, mcp-proxy {proxy}; {calls} calls each"
    where = facts(ROOT / "var")
    on = ", ".join(f"{where[key]}" for key in ("date", "commit", "processor", "python"))
    return f"{_table(*measured)}\n\n{on}, {where['cores']} cores; {of}."


async def _measure(mcp_proxy: Path, calls: int, rounds: int) -> Measured:
    ports = [_free_port() for _ in range(5)]
    upstream = f"http://127.0.0.1:{ports[0]}/mcp"
    python = sys.executable
    (ROOT / "var").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "var") as folder:
        manifest = Path(folder) / "manifest.yaml"
        manifest.write_text(_manifest(upstream))
        commands = [
            [python, str(SERVER), str(ports[0])],
            [python, "-P", "-m", "gateway", "serve", "--manifest", str(manifest), "--data", folder,
             "--listen", f"127.0.0.1:{ports[1]}", "--control", f"127.0.0.1:{ports[2]}", "--watch", "false"],
            [python, str(SERVER), str(ports[3]), upstream],
        ]  # fmt: skip
        gateway = f"http://127.0.0.1:{ports[1]}/seawall/mcp"
        rows = [
            Row("direct, Streamable HTTP", upstream, "add"),
            Row("Seawall, step journaled", f"{gateway}/http", "add", "direct, Streamable HTTP"),
            Row("Seawall, read", f"{gateway}/http", "look", "direct, Streamable HTTP"),
            Row("FastMCP proxy", f"http://127.0.0.1:{ports[3]}/mcp", "add", "direct, Streamable HTTP"),
            Row("direct, stdio", "", "add"),
            Row("Seawall in front of stdio, step journaled", f"{gateway}/pipes", "add", "direct, stdio"),
            Row("Seawall in front of stdio, read", f"{gateway}/pipes", "look", "direct, stdio"),
        ]
        commands.append([str(mcp_proxy), "--port", str(ports[4]), "--", python, str(SERVER), "stdio"])
        rows.append(Row("mcp-proxy in front of stdio", f"http://127.0.0.1:{ports[4]}/mcp", "add", "direct, stdio"))
        started = [await _start(command) for command in commands]
        try:
            for row in rows:
                if row.url:
                    await _listening(row.url)
            return rows, await _rounds(rows, calls, rounds)
        finally:
            for process in started:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
            await asyncio.gather(*(process.wait() for process in started))


async def _rounds(rows: Sequence[Row], calls: int, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {row.name: [] for row in rows}
    async with aiohttp.ClientSession() as http, contextlib.AsyncExitStack() as ending:
        sessions = {row.name: Session(http, row) if row.url else Pipes(row) for row in rows}
        for row in rows:
            session = sessions[row.name]
            if isinstance(session, Pipes):
                ending.push_async_callback(session.close)
            await session.open()
            for number in range(20):
                await session.call(number)
        for turn in range(rounds):
            for row in rows:
                for number in range(calls):
                    began = perf_counter()
                    await sessions[row.name].call(1_000 * (turn + 1) + number)
                    found[row.name].append((perf_counter() - began) * 1000)
    return found


def _table(rows: Sequence[Row], found: dict[str, list[float]]) -> str:
    lines = ["| tools/call | p50 ms | p99 ms | added p50 | added p99 |", "|---|---|---|---|---|"]
    for row in rows:
        p50, p99 = _quantiles(found[row.name])
        added = "| |"
        if row.base is not None:
            base50, base99 = _quantiles(found[row.base])
            added = f"| {p50 - base50:+.2f} | {p99 - base99:+.2f} |"
        lines.append(f"| {row.name} | {p50:.2f} | {p99:.2f} {added}")
    return "\n".join(lines)


def _quantiles(times: Sequence[float]) -> tuple[float, float]:
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def _manifest(upstream: str) -> str:
    operations = {
        "add": {"match": "CALL add", "tier": "reversible", "idempotent": True},
        "look": {"match": "CALL look", "tier": "read"},
    }
    command = [sys.executable, str(SERVER), "stdio"]
    tools = {
        "http": {"mcp": {"url": upstream}, "operations": operations},
        "pipes": {"mcp": {"command": command}, "operations": operations},
    }
    return json.dumps({"version": 1, "tools": tools})


async def _start(command: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _listening(url: str) -> None:
    port = int(url.split(":")[2].split("/")[0])
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


if __name__ == "__main__":
    main()
