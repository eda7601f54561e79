"""Memory of calls that wait for their tool: resident memory with N reads or writes in flight, beside bare and other proxies.

    python -m loadtests.inflight --calls 256,2000,5000 --json inflight.json --markdown docs/performance.md

Each system is started afresh for each N, and has some calls answered first, few at a time: what it keeps within fixed bounds
(pages of its journal, names of header fields) is no call's. The tool holds every call until all have arrived, which is when
memory is read; then it answers all, and each answer is compared byte for byte. Figures are bytes, not times: a busy machine
will do.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import click
import uvloop

from gateway.ingress.certificates import Authority
from loadtests.peers import PEERS, Peer
from loadtests.process import ROOT, Cores, Server, free_port, rss_bytes, tree
from loadtests.systems import SYSTEMS, Site, System
from loadtests.wire import WORKLOADS, answer_to, number_of, take_message

__all__ = ["BEGIN", "END", "Held", "main", "measure", "table"]

BEGIN, END = "<!-- inflight:begin -->", "<!-- inflight:end -->"
_WARM_UP, _FEW = 1_024, 64
_TOGETHER = 500  # callers arrive in groups: it is what waits that is measured, not a stampede
_PATIENCE_S = 120.0
_SYSTEMS = ("bare-asyncio", "bare-uvloop", "seawall", "seawall-memory", "seawall-pass", *PEERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One system with N calls in flight; memory in bytes: before, with all in flight, and after all were answered."""

    system: str
    workload: str
    calls: int
    before: int
    during: int
    after: int

    @property
    def kib_per_call(self) -> float:
        """What one call in flight takes."""
        return (self.during - self.before) / 1024 / self.calls


class _Tool(asyncio.Protocol):
    """Holds each call until `release`."""

    held: list[_Tool]
    all_here: asyncio.Event
    wanted: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._buffer = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        message = take_message(self._buffer)
        if message is not None:
            self._answer = answer_to(number_of(message[0], message[1]))
            self._buffer = self._buffer[message[2] :]
            self.held.append(self)
            if len(self.held) == self.wanted:
                self.all_here.set()

    def release(self) -> None:
        self._transport.write(self._answer)


async def measure(system: System, workload: str, calls: int, folder: Path, *, warm_up: int = _WARM_UP) -> Held:
    """Return what `calls` calls in flight take, after `warm_up` calls that were answered.

    Raises:
        RuntimeError: an answer was wrong, or not all calls reached the tool in time.
    """
    tool = type("Tool", (_Tool,), {"held": [], "all_here": asyncio.Event(), "wanted": 0})
    server = await asyncio.get_running_loop().create_server(tool, "127.0.0.1", 0, backlog=8192)
    async with server:
        running = await asyncio.to_thread(system.start, _site(system, server.sockets[0].getsockname()[1], folder))
        try:
            for first in range(0, warm_up, _FEW):
                await _hold(tool, running, system, workload, min(_FEW, warm_up - first), first=first)
            before = rss_bytes(tree(running.pid))
            during = await _hold(tool, running, system, workload, calls, first=warm_up)
            return Held(
                system=system.name, workload=workload, calls=calls, before=before, during=during,
                after=rss_bytes(tree(running.pid)),
            )  # fmt: skip
        finally:
            await asyncio.to_thread(running.stop)


def _site(system: System, tool_port: int, folder: Path) -> Site:
    tls_port = 0
    if isinstance(system, Peer):  # those are configured for a tool behind TLS, too; nobody calls it here
        Authority.create(
            folder / "authority", at=time.time_ns() // 1_000_000, days=1, name="inflight", only=("localhost",)
        )
        tls_port = free_port()
    return Site(Server(cast("subprocess.Popen[bytes]", None), tool_port), 1, folder, Cores(), tls_port)


async def _hold(tool: type[_Tool], running: Server, system: System, workload: str, calls: int, *, first: int) -> int:
    """Have so many calls in flight at once; return the memory that the system had then."""
    tool.held, asking = [], set()
    async with asyncio.timeout(_PATIENCE_S):
        for start in range(0, calls, _TOGETHER):
            tool.wanted, tool.all_here = min(calls, start + _TOGETHER), asyncio.Event()
            numbers = range(first + start, first + tool.wanted)
            asking |= {asyncio.create_task(_ask(running.port, system, workload, number)) for number in numbers}
            waiting = asyncio.create_task(tool.all_here.wait())
            done, _ = await asyncio.wait([waiting, *asking], return_when=asyncio.FIRST_COMPLETED)
            for early in done - {waiting}:
                raise RuntimeError(f"{system.name} answered before the tool did: {early.exception()!r}")
        during = rss_bytes(tree(running.pid))
        for one in tool.held:
            one.release()
        await asyncio.gather(*asking)
    return during


async def _ask(port: int, system: System, workload: str, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = WORKLOADS[workload]
    writer.write(kind.request(system.prefixes[workload].encode(), b"run-%d" % number, number))
    data = b""
    while (message := take_message(data)) is None:
        piece = await reader.read(1 << 16)
        if not piece:
            raise RuntimeError(f"{system.name} closed the connection of call {number}")
        data += piece
    writer.close()
    if not kind.is_right(message[0], message[1], number):
        raise RuntimeError(f"{system.name}: wrong answer to call {number}: {data[:300]!r}")


def table(found: Sequence[Held]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| system | calls | in flight | MiB before | with all in flight | after | KiB a call |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        before, during, after = (f"{size / 2**20:.0f}" for size in (one.before, one.during, one.after))
        lines.append(
            f"| {one.system} | {one.workload}s | {one.calls:,} | {before} | {during} | {after} | {one.kib_per_call:.1f} |"
        )
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--calls", default="256,2000,5000", show_default=True, help="How many at once.")
@click.option("--systems", default=",".join(_SYSTEMS), show_default=True, help="Which of the benchmark's.")
@click.option(
    "--data", type=click.Path(path_type=Path), default=ROOT / "var", help="Folder on a real disk; default var/."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to this file.")
@click.option(
    "--markdown", "page", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced."
)
def main(calls: str, systems: str, data: Path, json_file: Path | None, page: Path | None) -> None:
    """Measure the memory of calls in flight."""
    data.mkdir(parents=True, exist_ok=True)
    found = []
    known = {**SYSTEMS, **PEERS}
    for name in systems.split(","):
        if lacking := known[name].lacks():
            click.echo(f"{name} is left out: it takes {lacking}", err=True)
            continue
        for workload in ("read", "write"):
            for count in map(int, calls.split(",")):
                try:
                    with tempfile.TemporaryDirectory(prefix="inflight-", dir=data) as folder:
                        found.append(uvloop.run(measure(known[name], workload, count, Path(folder).resolve())))
                except (RuntimeError, TimeoutError) as error:
                    if name not in PEERS:
                        raise
                    click.echo(f"{name} did not hold {count} {workload}s: {error!r}", err=True)
                    continue
                click.echo(table(found[-1:]).splitlines()[-1], err=True)
    text = table(found)
    click.echo(text)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
