"""What is compared: each system, how it is started, what it carries, and how its work is proved.

A system to compare with (Envoy, nginx, HAProxy, a Node proxy) is a class here and an entry in `SYSTEMS`: it writes its
configuration into `site.folder`, starts on `site.cores.system`, and names the workloads that it carries.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from loadtests.journal import journal_problems, records_by_kind
from loadtests.process import ROOT, Cores, Server, python, start
from loadtests.wire import LARGE, READ, REFUSED, STREAM, TLS, WRITE

__all__ = [
    "FORWARDED",
    "SYSTEMS",
    "BareProxy",
    "Direct",
    "Seawall",
    "Site",
    "System",
    "ledger_problems",
    "manifest_for",
]

_MANIFEST = Path(__file__).with_name("bench.yaml")
_TLS_TOOL = """
  tls: # the same tool behind TLS
    upstream: https://localhost:PORT
    domain: bench
    tls: {ca: authority/ca.pem}
    operations:
      item: {match: "GET /v1/items/{id}", tier: read}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a benchmark takes place: the tool, a port where nobody listens, a folder on a real disk, the cores.

    `tls_port`, unless it is 0, is the tool's with TLS for `localhost`, under the authority whose certificate is `ca`.
    """

    upstream: Server
    dead_port: int
    folder: Path
    cores: Cores
    tls_port: int = 0

    @property
    def ca(self) -> Path:
        """The authority's certificate."""
        return self.folder / "authority" / "ca.pem"


_PLAIN = {workload.name: "" for workload in (READ, WRITE, LARGE, STREAM)}
FORWARDED: Mapping[str, str] = {**_PLAIN, TLS.name: "/tls"}
"""What whoever only forwards carries; the tool does not mind the prefix."""


class System(Protocol):
    """Something that carries calls to the tool.

    Attributes:
        prefixes: the workloads it carries, and the path in front of each one's targets.
        adds_keys: whether it gives each write an idempotency key of its own.
    """

    name: str
    prefixes: ClassVar[Mapping[str, str]] = FORWARDED
    adds_keys: bool = False

    def lacks(self) -> str | None:
        """Return what it takes to install it, where it is not installed."""
        return None

    def start(self, site: Site) -> Server:
        """Start it and wait until it listens."""
        ...

    def mark(self, site: Site) -> Mapping[str, int]:
        """Return where its records stand before a sample; nothing if it keeps none."""
        return {}

    def problems(self, site: Site, mark: Mapping[str, int], workload: str, sent: int) -> list[str]:
        """Return what its records lack after a sample of `sent` calls."""
        return []

    @property
    def is_strict(self) -> bool:
        """Whether each of its writes is on the disk before it is answered."""
        return False

    def verdict(self, site: Site) -> list[str]:
        """Return what is wrong with its records as a whole, once it has stopped."""
        return []


class Direct(System):
    """No proxy at all: what the generator and the tool cost by themselves."""

    name = "direct"
    prefixes: ClassVar[Mapping[str, str]] = _PLAIN

    def start(self, site: Site) -> Server:
        return site.upstream


class BareProxy(System):
    """A plain aiohttp reverse proxy, on either event loop."""

    def __init__(self, loop: str) -> None:
        self.name, self._loop = f"bare-{loop}", loop

    def start(self, site: Site) -> Server:
        upstream = f"http://127.0.0.1:{site.upstream.port}"
        where = ["--upstream", upstream]
        if site.tls_port:
            where += ["--tls-upstream", f"https://localhost:{site.tls_port}", "--ca", str(site.ca)]
        command = python("loadtests.bare_proxy", "--loop", self._loop, *where)
        return start(self.name, command, core=site.cores.system, folder=site.folder)


class Seawall(System):
    """The gateway: with its embedded journal, every write strictly journaled, or with a journal in memory alone.

    Args:
        name: what the report calls it.
        backend: `sqlite` or `memory`.
        prefixes: the workloads, and the tool of `bench.yaml` that each one goes to.
        adds_keys: whether that tool takes idempotency keys.
    """

    def __init__(self, name: str, backend: str, prefixes: Mapping[str, str], *, adds_keys: bool = True) -> None:
        self.name, self._backend, self.prefixes, self.adds_keys = name, backend, prefixes, adds_keys  # type: ignore[misc]

    def start(self, site: Site) -> Server:
        manifest = site.folder / f"{self.name}.yaml"
        manifest.write_text(manifest_for(site.upstream.port, site.dead_port, site.tls_port))
        where: tuple[str, ...] = ("--listen", "127.0.0.1:0", "--control", "127.0.0.1:0")
        where += ("--journal-backend", self._backend)
        where += ("--limits-in-flight", "8192")
        what = ("--manifest", str(manifest), "--data", str(self._data(site)))
        command = python("gateway", "serve", *what, *where)
        return start(self.name, command, core=site.cores.system, folder=site.folder)

    @property
    def is_strict(self) -> bool:
        return self._backend == "sqlite"

    def mark(self, site: Site) -> Mapping[str, int]:
        return records_by_kind(self._data(site)) if self.is_strict else {}

    def problems(self, site: Site, mark: Mapping[str, int], workload: str, sent: int) -> list[str]:
        if workload != WRITE.name or not self.is_strict:
            return []
        return journal_problems(mark, records_by_kind(self._data(site)), sent)

    def verdict(self, site: Site) -> list[str]:
        """Have every seal of the chain checked."""
        if not self.is_strict:
            return []
        command = python("gateway", "journal", "verify", "--data", str(self._data(site)))
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return [] if ran.returncode == 0 else [f"the chain does not verify: {(ran.stdout + ran.stderr)[-500:]}"]

    def _data(self, site: Site) -> Path:
        return site.folder / f"{self.name}-data"


_FULL = {
    **{workload.name: "/bench" for workload in (READ, WRITE, LARGE, STREAM)},
    REFUSED.name: "/dead",
    TLS.name: "/tls",
}
SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        Direct(),
        BareProxy("asyncio"),
        BareProxy("uvloop"),
        Seawall("seawall", "sqlite", _FULL),
        Seawall("seawall-memory", "memory", _FULL),
        Seawall("seawall-pass", "memory", dict.fromkeys(_PLAIN, "/plain"), adds_keys=False),
    )
}


def manifest_for(upstream_port: int, dead_port: int, tls_port: int = 0) -> str:
    """Return the manifest of the benchmark with the ports that were free; with `tls_port` also the tool behind TLS."""
    text = _MANIFEST.read_text()
    if tls_port:
        text += _TLS_TOOL.replace("PORT", str(tls_port))
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
