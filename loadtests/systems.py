"""What is compared: each system, how it is started, what it carries, and how its work is proved.

A system to compare with (Envoy, nginx, HAProxy, a Node proxy) is a class here and an entry in `SYSTEMS`: it writes its
configuration into `site.folder`, starts on `site.cores.system`, and names the workloads that it carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from loadtests.journal import journal_problems, records_by_kind
from loadtests.process import Cores, Server, python, start
from loadtests.wire import READ, REFUSED, WRITE

__all__ = ["SYSTEMS", "BareProxy", "Direct", "Seawall", "Site", "System", "ledger_problems", "manifest_for"]

_MANIFEST = Path(__file__).with_name("bench.yaml")


@dataclass(frozen=True, slots=True)
class Site:
    """Where a benchmark takes place: the tool, a port where nobody listens, a folder on a real disk, the cores."""

    upstream: Server
    dead_port: int
    folder: Path
    cores: Cores


class System(Protocol):
    """Something that carries calls to the tool.

    Attributes:
        prefixes: the workloads it carries, and the path in front of each one's targets.
        adds_keys: whether it gives each write an idempotency key of its own.
    """

    name: str
    prefixes: ClassVar[Mapping[str, str]] = {READ.name: "", WRITE.name: ""}
    adds_keys: bool = False

    def start(self, site: Site) -> Server:
        """Start it and wait until it listens."""
        ...

    def mark(self, site: Site) -> Mapping[str, int]:
        """Return where its records stand before a sample; nothing if it keeps none."""
        return {}

    def problems(self, site: Site, mark: Mapping[str, int], workload: str, sent: int) -> list[str]:
        """Return what its records lack after a sample of `sent` calls."""
        return []


class Direct(System):
    """No proxy at all: what the generator and the tool cost by themselves."""

    name = "direct"

    def start(self, site: Site) -> Server:
        return site.upstream


class BareProxy(System):
    """A plain aiohttp reverse proxy, on either event loop."""

    def __init__(self, loop: str) -> None:
        self.name, self._loop = f"bare-{loop}", loop

    def start(self, site: Site) -> Server:
        upstream = f"http://127.0.0.1:{site.upstream.port}"
        command = python("loadtests.bare_proxy", "--loop", self._loop, "--upstream", upstream)
        return start(self.name, command, core=site.cores.system, folder=site.folder)


class Seawall(System):
    """The gateway with its embedded journal, every write strictly journaled."""

    name = "seawall"
    prefixes: ClassVar[Mapping[str, str]] = {READ.name: "/bench", WRITE.name: "/bench", REFUSED.name: "/dead"}
    adds_keys = True

    def start(self, site: Site) -> Server:
        manifest = site.folder / "bench.yaml"
        manifest.write_text(manifest_for(site.upstream.port, site.dead_port))
        where = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
        command = python("gateway", "serve", "--manifest", str(manifest), "--data", str(self._data(site)), *where)
        return start(self.name, command, core=site.cores.system, folder=site.folder)

    def mark(self, site: Site) -> Mapping[str, int]:
        return records_by_kind(self._data(site))

    def problems(self, site: Site, mark: Mapping[str, int], workload: str, sent: int) -> list[str]:
        if workload != WRITE.name:
            return []
        return journal_problems(mark, records_by_kind(self._data(site)), sent)

    @staticmethod
    def _data(site: Site) -> Path:
        return site.folder / "data"


SYSTEMS: Mapping[str, System] = {
    system.name: system for system in (Direct(), BareProxy("asyncio"), BareProxy("uvloop"), Seawall())
}


def manifest_for(upstream_port: int, dead_port: int) -> str:
    """Return the manifest of the benchmark with the ports that were free."""
    text = _MANIFEST.read_text()
    for written, free in ((9000, upstream_port), (9999, dead_port)):
        text = text.replace(f"http://127.0.0.1:{written}\n", f"http://127.0.0.1:{free}\n")
    return text


def ledger_problems(totals: Mapping[str, int], workload: str, sent: int, *, adds_keys: bool) -> list[str]:
    """Return what is wrong with the tool's ledger after a sample of `sent` calls.

    Each call must have arrived exactly once, a refused one never; each write under a key of its own where the system
    gives keys.
    """
    due = 0 if workload == REFUSED.name else sent
    problems = []
    if totals["calls"] != due or totals["numbers"] != due:
        problems.append(
            f"{due} calls should have reached the tool, {totals['calls']} did, {totals['numbers']} different"
        )
    if totals["most"] > 1:
        problems.append(f"the tool saw a call or a key {totals['most']} times")
    if adds_keys and workload == WRITE.name and totals["keys"] != due:
        problems.append(f"{due} writes should have had a key each, the tool saw {totals['keys']} different keys")
    return problems
