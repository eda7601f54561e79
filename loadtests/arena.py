"""Where systems meet: who is measured when, and one turn of measuring and proving.

All systems are up the whole time and measured in turn, in alternating rounds whose order is reversed each time, after a
warm-up round that is thrown away. After each sample the tool's ledger and the gateway's journal are compared with what
was sent, so that a fast wrong answer scores nothing.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.ingress.certificates import Authority
from loadtests.figures import Point, Sample
from loadtests.generator import Generator
from loadtests.load import Load, Tally
from loadtests.process import Cores, Server, free_port, python, rss_bytes, start, tree
from loadtests.syncs import CountedSyncs, syncs_can_be_counted
from loadtests.systems import Site, System, ledger_problems
from loadtests.wire import WORKLOADS, WRITE

__all__ = ["Arena", "Plan"]

_RATE_CONNECTIONS = 32
_SYNC_CALLS = 10
_PRIMING_TRIES = 10  # more than the calls that open the dead tool's breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: systems, connections of the closed loops, calls a second of the open one (0: none), rounds.

    `workloads`: those named alone; every one where none is.
    """

    systems: Sequence[System]
    connections: Sequence[int]
    rate: float
    rounds: int
    seconds: float
    workloads: Sequence[str] = ()

    def points(self) -> list[Point]:
        """Return every load that some system carries."""
        wanted = self.workloads or tuple(WORKLOADS)
        carried = [name for name in WORKLOADS if name in wanted and any(name in one.prefixes for one in self.systems)]
        points = [Point(name, connections) for name in carried for connections in self.connections]
        return points + [Point(name, _RATE_CONNECTIONS, self.rate) for name in carried if self.rate]

    def turns(self) -> Iterator[tuple[int, Point, System]]:
        """Yield who is measured when; round 0 warms up, and every other round goes backwards through the systems."""
        for number in range(self.rounds + 1):
            for point in self.points():
                for system in self.systems if number % 2 else reversed(self.systems):
                    if point.workload in system.prefixes:
                        yield number, point, system


class Arena:
    """All processes of a benchmark, from start to end: a context manager that measures one turn at a time."""

    def __init__(self, systems: Sequence[System], folder: Path, cores: Cores) -> None:
        self._systems, self._folder, self._cores = systems, folder, cores
        self._stack = ExitStack()
        self._servers: dict[str, Server] = {}
        self._next_number = 0

    def __enter__(self) -> Arena:
        with self._stack as stack:
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        cores = self._cores
        nobody = self._stack.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))  # bound and never listening: whoever connects is refused
        self._generator = Generator(cores.load)
        self._stack.callback(self._generator.stop)
        authority, tls_port = self._folder / "authority", free_port()
        Authority.create(authority, at=time.time_ns() // 1_000_000, days=1, name="bench", only=("localhost",))
        command = python("loadtests.upstream", "--authority", str(authority), "--tls-port", str(tls_port))
        upstream = start("upstream", command, core=cores.load, folder=self._folder)
        self._stack.callback(upstream.stop)
        self._site = Site(upstream, nobody.getsockname()[1], self._folder, cores, tls_port)
        for system in self._systems:
            self._servers[system.name] = system.start(self._site)
            self._stack.callback(self._servers[system.name].stop)

    def verdicts(self) -> dict[str, list[str]]:
        """Return what is wrong with the records of each system as a whole. Ask once everything has stopped."""
        return {system.name: problems for system in self._systems if (problems := system.verdict(self._site))}

    def sample(
        self, system: System, point: Point, *, seconds: float, calls: int = sys.maxsize, number: int = 0
    ) -> Sample:
        """Measure one system under one load until time or calls are used up, and prove that it did what it should."""
        self._prime(system, point)
        self._ledger()
        mark = system.mark(self._site)
        pids = tree(self._servers[system.name].pid)
        tally = self._offer(system, point, seconds=seconds, calls=calls, pids=pids)
        problems = [f"{tally.problem} ({tally.wrong} wrong answers)"] if tally.problem else []
        problems += ledger_problems(self._ledger(), point.workload, tally.sent, adds_keys=system.adds_keys)
        problems += system.problems(self._site, mark, point.workload, tally.sent)
        syncs = (
            self._syncs(system)
            if system.is_strict and point.workload == WRITE.name and syncs_can_be_counted()
            else None
        )
        if syncs is not None and syncs < 1:
            problems.append(f"a write that was answered should have cost a sync of the disk, it cost {syncs:.2f}")
        return Sample(
            system=system.name,
            point=point,
            round=number,
            calls=tally.calls,
            calls_per_s=tally.calls / max(tally.seconds, 1e-9),
            p50_us=tally.histogram.percentile(0.5) / 1e3,
            p99_us=tally.histogram.percentile(0.99) / 1e3,
            cpu_us=tally.cpu_ns / 1e3 / max(tally.calls, 1),
            rss_mib=rss_bytes(pids) / 2**20,
            foreign_cores=tally.foreign_ns / 1e9 / max(tally.seconds, 1e-9),
            syncs=syncs,
            problems=tuple(problems),
        )

    def _syncs(self, system: System) -> float:
        """Return how often the disk was synced for each write that was answered, one at a time: the kernel's count."""
        with CountedSyncs(tree(self._servers[system.name].pid)[0], self._folder) as counted:
            tally = self._offer(system, Point(WRITE.name, 1), calls=_SYNC_CALLS)
        return counted.syncs / max(1, tally.sent)

    def _prime(self, system: System, point: Point) -> None:
        """Call until the answer is right: breakers open, and lazy records of the load before are flushed."""
        for _ in range(_PRIMING_TRIES):
            tally = self._offer(system, Point(point.workload, 1), calls=1)
            if not tally.problem:
                return

    def _offer(
        self, system: System, point: Point, *, seconds: float = 10.0, calls: int = sys.maxsize, pids: Sequence[int] = ()
    ) -> Tally:
        servers = [self._site.upstream, *self._servers.values()]
        own = {pid for server in servers for pid in tree(server.pid)} | {self._generator.pid}
        tally = self._generator.run(
            Load(
                port=self._servers[system.name].port,
                workload=point.workload,
                prefix=system.prefixes[point.workload],
                connections=point.connections,
                rate=point.rate,
                first=self._next_number,
                seconds=seconds,
                calls=calls,
                pids=tuple(pids),
                own_pids=tuple(own),
            )
        )
        self._next_number += tally.sent
        return tally

    def _ledger(self) -> dict[str, int]:
        connection = http.client.HTTPConnection("127.0.0.1", self._site.upstream.port, timeout=10)
        try:
            connection.request("GET", "/ledger")
            totals: dict[str, int] = json.loads(connection.getresponse().read())
            return totals
        finally:
            connection.close()
