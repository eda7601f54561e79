"""Memory over an hour of load: agents whose runs begin and end, and the gateway's resident memory meanwhile.

    python -m loadtests.soak                       # an hour; exit code 1: it grew, or an answer was wrong
    python -m loadtests.soak --minutes 5 --rate 500 --json soak.json

Each agent has a connection of its own and one run after the other: reads, strictly journaled writes, 64 KiB, streams, calls
that an open breaker refuses, and now and then a call that it does not wait for. Four runs in five are committed, the others
are aborted, and what they did is undone. So what is kept for a run, a call, or a connection would add up if it were not let
go. Memory is read every few seconds; what counts is the median of the last quarter against that of the second, since pages
of the journal and names seen are kept within fixed bounds that take a while to fill. Open files are held to the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import uvloop

from loadtests.process import ROOT, Cores, Server, python, rss_bytes, start, tree
from loadtests.systems import SYSTEMS, Site
from loadtests.wire import WORKLOADS, take_message

__all__ = ["BEGIN", "END", "Soak", "main", "soak", "table"]

BEGIN, END = "<!-- soak:begin -->", "<!-- soak:end -->"
GROWTH = 0.05
"""What memory may grow by: a twentieth, as for everything else that must not grow."""
MORE_FILES = 16
"""Open files come and go with connections: what is allowed on top is one for each agent."""

_AGENTS = MORE_FILES
_KINDS = ("read",) * 8 + ("write",) * 5 + ("large", "stream", "refused")
_CALLS_PER_RUN = 12
_LEFT_ALONE = 0.01
_ABORTED = 0.2
_PATIENCE_S = 60.0
_ROWS = 12


@dataclass(frozen=True, slots=True)
class Sight:
    """The gateway at one moment: seconds since the start, resident bytes, open files, calls answered so far."""

    at_s: float
    rss: int
    files: int
    calls: int


@dataclass(slots=True)
class Soak:
    """What came of it: what was seen of the gateway, the calls of each kind, and answers that were wrong."""

    seen: list[Sight] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """By which part resident memory in the last quarter lies above that in the second; medians."""
        early, late = self._medians("rss")
        return late / early - 1

    @property
    def more_files(self) -> float:
        """How many more files were open in the last quarter than in the second; medians."""
        early, late = self._medians("files")
        return late - early

    @property
    def is_good(self) -> bool:
        """Whether every answer was right, and neither memory nor open files grew."""
        return not self.wrong and self.growth <= GROWTH and self.more_files <= MORE_FILES

    def _medians(self, what: str) -> tuple[float, float]:
        quarter = max(1, len(self.seen) // 4)
        early, late = self.seen[quarter : 2 * quarter] or self.seen, self.seen[-quarter:]
        return (
            float(statistics.median(getattr(one, what) for one in early)),
            float(statistics.median(getattr(one, what) for one in late)),
        )


class _Agents:
    """Agents that share a pace and a count of calls; each is a task with a connection of its own."""

    def __init__(self, port: int, rate: float, until: float, found: Soak) -> None:
        self._port, self._pause_s, self._until, self._found = port, _AGENTS / rate if rate else 0.0, until, found
        self._number = 0

    async def live(self, index: int) -> None:
        """Have runs until the time is up."""
        chance, run = random.Random(index), 0
        while time.monotonic() < self._until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                for _ in range(5):  # an agent's process lives for five runs
                    run += 1
                    await self._run(reader, writer, b"soak-%d-%d" % (index, run), chance)
            finally:
                writer.close()

    async def _run(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: bytes, chance: random.Random
    ) -> None:
        for _ in range(_CALLS_PER_RUN):
            kind = WORKLOADS[chance.choice(_KINDS)]
            self._number += 1
            number, prefix = self._number, SYSTEMS["seawall"].prefixes[kind.name].encode()
            request = kind.request(prefix, run, number)
            if kind.name == "read" and chance.random() < _LEFT_ALONE:
                await self._leave(request)
                continue
            head, body = await _exchange(reader, writer, request)
            is_canary = kind.name == "refused" and b'"ERR_UPSTREAM_CONNECT"' in body  # the breaker's hour is over
            self._count(
                "canary" if is_canary else kind.name, is_canary or kind.is_right(head, body, number), head, body
            )
            await asyncio.sleep(chance.uniform(0, 2 * self._pause_s))
        end = b"abort" if chance.random() < _ABORTED else b"commit"
        ask = b"POST /seawall/v1/trajectories/%b/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n" % (
            run,
            end,
        )
        head, body = await _exchange(reader, writer, ask)
        self._count(end.decode(), head[9:10] == b"2", head, body)

    async def _leave(self, request: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        await writer.drain()
        writer.close()
        self._found.calls["left"] += 1

    def _count(self, kind: str, is_right: bool, head: bytes, body: bytes) -> None:
        self._found.calls[kind] += 1
        if not is_right and len(self._found.wrong) < 10:
            self._found.wrong.append(f"{kind}: {head[:60]!r} {body[:300]!r}")


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[bytes, bytes]:
    writer.write(request)
    data = b""
    async with asyncio.timeout(_PATIENCE_S):
        while (message := take_message(data)) is None:
            piece = await reader.read(1 << 17)
            if not piece:
                raise ConnectionError(f"the gateway closed the connection after {data[:200]!r}")
            data += piece
    return message[0], message[1]


async def soak(gateway: Server, *, seconds: float, rate: float, every_s: float) -> Soak:
    """Offer `rate` calls a second (0: as many as it takes) for so long, and look at the gateway's memory meanwhile.

    Raises:
        ExceptionGroup: an agent lost its connection, or had no answer in a minute.
    """
    found, began = Soak(), time.monotonic()
    await _open_the_breaker(gateway.port)
    async with asyncio.TaskGroup() as group:
        agents = _Agents(gateway.port, rate, began + seconds, found)
        for index in range(_AGENTS):
            group.create_task(agents.live(index))
        while (left_s := began + seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(every_s, left_s))
            pids = tree(gateway.pid)
            files = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
            found.seen.append(Sight(time.monotonic() - began, rss_bytes(pids), files, found.calls.total()))
    return found


async def _open_the_breaker(port: int) -> None:
    """Call the dead tool until its breaker is open, so that all refusals to come are the same."""
    refused = WORKLOADS["refused"]
    for number in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head, body = await _exchange(reader, writer, refused.request(b"/dead", b"soak-first", 10**9 + number))
        writer.close()
        if refused.is_right(head, body, number):
            return
    raise RuntimeError(f"the dead tool's breaker does not open: {body[:300]!r}")


def table(found: Soak) -> str:
    """Return what was seen as Markdown: a dozen moments, and the verdict."""
    step = max(1, len(found.seen) // _ROWS)
    lines = ["| minutes | calls answered | resident MiB | open files |", "| --: | --: | --: | --: |"]
    lines += [
        f"| {one.at_s / 60:.1f} | {one.calls:,} | {one.rss / 2**20:.1f} | {one.files} |"
        for one in found.seen[step - 1 :: step]
    ]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.calls.items()))
    lines += [
        "",
        f"Last quarter against the second: memory {found.growth:+.1%}, open files {found.more_files:+.0f}. "
        f"{'No' if not found.wrong else len(found.wrong)} wrong answers. Calls: {kinds}.",
    ]
    return "\n".join(lines) + "\n"


def _plain(found: Soak) -> dict[str, object]:
    return {"seen": [asdict(one) for one in found.seen], "calls": dict(found.calls), "wrong": found.wrong}


def _run(minutes: float, rate: float, every_s: float, folder: Path) -> tuple[Soak, Sequence[str]]:
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))  # bound and never listening: whoever connects is refused
    with nobody:
        upstream = start("upstream", python("loadtests.upstream"), core=None, folder=folder)
        try:
            seawall = SYSTEMS["seawall"]
            site = Site(upstream, nobody.getsockname()[1], folder, Cores())
            gateway = seawall.start(site)
            try:
                found = uvloop.run(soak(gateway, seconds=minutes * 60, rate=rate, every_s=every_s))
            finally:
                gateway.stop()
            return found, seawall.verdict(site)
        finally:
            upstream.stop()


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05, 1440), default=60.0, show_default=True, help="How long.")
@click.option(
    "--rate", type=click.FloatRange(0), default=300.0, show_default=True, help="Calls a second; 0: all it takes."
)
@click.option(
    "--every", "every_s", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Seconds between looks."
)
@click.option(
    "--data", type=click.Path(path_type=Path), default=ROOT / "var", help="Folder on a real disk; default var/."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write what was seen to this file.")
@click.option(
    "--markdown", "page", type=click.Path(path_type=Path, exists=True), help="Page whose section is replaced."
)
def main(minutes: float, rate: float, every_s: float, data: Path, json_file: Path | None, page: Path | None) -> None:
    """Watch the gateway's memory under load. Exit code 1: it grew by more than 5 %, or something was wrong."""
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir=data) as folder:
        found, problems = _run(minutes, rate, every_s, Path(folder).resolve())
    text = table(found)
    click.echo(text)
    for problem in (*found.wrong, *problems):
        click.echo(problem, err=True)
    if json_file is not None:
        json_file.write_text(json.dumps(_plain(found), indent=1) + "\n")
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")
    if problems or not found.is_good:
        sys.exit(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
