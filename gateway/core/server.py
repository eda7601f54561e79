"""Settings of the gateway itself, as against the tools it serves (`core/manifest.py`).

Each can be given in three ways; the nearest to the process wins: command line, then `SEAWALL_…`, then the file. The
name of a nested setting joins its keys: `limits.header_field`, `--limits-header-field`, `SEAWALL_LIMITS_HEADER_FIELD`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, MinLen

from gateway.core.setting import BYTES, SECONDS, Doc
from gateway.core.telemetry import TelemetrySettings

__all__ = [
    "Address",
    "ForwardSettings",
    "JournalBackend",
    "JournalSettings",
    "LimitSettings",
    "RunSettings",
    "ServerSettings",
    "UnknownHosts",
]

KIB: Final = 1 << 10
MIB: Final = 1 << 20


class JournalBackend(StrEnum):
    """Where records are kept."""

    SQLITE = "sqlite"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bounds on what one process holds at a time."""

    in_flight: Annotated[int, Ge(1), Doc("Calls in the gateway at once; further ones are refused.")] = 4096
    memory: Annotated[int, BYTES, Ge(0), Doc("A captured body larger than this is spooled to disk.")] = MIB
    body: Annotated[int, BYTES, Gt(0), Doc("A larger request body of a write is refused with 413.")] = 64 * MIB
    answer: Annotated[int, BYTES, Gt(0), Doc("A larger answer to a write is given up; the step is then in doubt.")] = (
        64 * MIB
    )
    request_line: Annotated[int, BYTES, Ge(1024), Doc("Longest request line.")] = 16 * KIB
    header_field: Annotated[int, BYTES, Ge(1024), Doc("Longest header field.")] = 32 * KIB
    header_fields: Annotated[int, Ge(16), Doc("Header fields of a request.")] = 128
    mcp_sessions: Annotated[int, Ge(1), Doc("MCP clients in memory; idle ones give way and are opened again.")] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Runs: when those that nobody named close by themselves, and how patiently a run is undone."""

    implicit_idle: Annotated[float, SECONDS, Gt(0), Doc("A run that nobody named is closed after this pause.")] = 600.0
    implicit_steps: Annotated[int, Ge(1), Doc("A run that nobody named is closed after this many steps.")] = 1000
    unwind: Annotated[
        float,
        SECONDS,
        Gt(0),
        Doc("How long a compensator is tried, waits for an open breaker not counted, before its run freezes."),
    ] = 3600.0
    finalize: Annotated[
        float,
        SECONDS,
        Gt(0),
        Doc("How long a step past the pivot is tried again, likewise, before its run freezes."),
    ] = 3600.0
    settle: Annotated[
        float, SECONDS, Gt(0), Doc("How long an unknown outcome is asked about before its run freezes.")
    ] = 3600.0


class UnknownHosts(StrEnum):
    """What becomes of calls to hosts that no tool of the manifest has."""

    REFUSE = "refuse"
    READ = "read"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSettings:
    """The gateway as its clients' proxy (HTTP_PROXY, HTTPS_PROXY)."""

    unknown_hosts: Annotated[
        UnknownHosts,
        Doc(
            "Calls to hosts that are no tool's: `refuse` them, pass on what only reads (`read`), public hosts only, or "
            "refuse them and `quarantine` the run that tried."
        ),
    ] = UnknownHosts.REFUSE
    tunnel: Annotated[
        tuple[str, ...],
        Doc("Hosts to which CONNECT opens a blind tunnel; nothing in it is recorded: `host`, `host:port`, `*.domain`."),
    ] = ()
    tunnel_idle: Annotated[float, SECONDS, Gt(0), Doc("A tunnel in which nothing moves is closed after this.")] = 600.0
    tunnels: Annotated[int, Ge(1), Doc("Tunnels open at once; further ones are refused.")] = 1024
    intercept: Annotated[
        bool, Doc("Read HTTPS to the manifest's tools under certificates of our own authority (`seawall ca init`).")
    ] = False
    ca: Annotated[str | None, MinLen(1), Doc("Folder of that authority; by default `ca` in the data folder.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Where the records go. The files lie in `data`."""

    backend: Annotated[JournalBackend, Doc("`memory` forgets everything at the end; for tests only.")] = (
        JournalBackend.SQLITE
    )
    keys: Annotated[
        str | None,
        Doc("Key ring that seals the records. Unset: a file beside the data folder, made at the first start."),
    ] = None
    checkpoint: Annotated[
        str | None, Doc("File that tells how far the log had reached. Unset: beside the data folder.")
    ] = None
    checkpoint_every: Annotated[float, SECONDS, Ge(1), Doc("How often the checkpoint is told, to file and log.")] = 60.0
    retention: Annotated[
        float | None,
        SECONDS,
        Gt(0),
        Doc("Closed runs are archived and pruned this long after their last record. Unset: never."),
    ] = None
    patience: Annotated[
        float, SECONDS, Gt(0), Doc("What the disk has not answered for so long fails; calls are refused until it does.")
    ] = 10.0
    archive: Annotated[str | None, Doc("Folder for archived runs. Unset: `archive` in the data folder.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything about the process."""

    manifest: Annotated[str | None, Doc("Manifest: a file, or a folder of *.yaml.")] = None
    data: Annotated[str, MinLen(1), Doc("Folder for the journal and spooled bodies; one gateway per folder.")] = "var"
    secrets: Annotated[str | None, Doc("Folder with a file per secret, named like the secret.")] = None
    listen: Annotated[str, MinLen(1), Doc("Where agents connect: `HOST:PORT`, or `unix:/path`.")] = "127.0.0.1:8080"
    socket_mode: Annotated[
        Literal["0600", "0660", "0666"],
        Doc("Who may connect to a Unix socket: its owner, its group too, or everybody on the machine."),
    ] = "0600"
    control: Annotated[str, MinLen(1), Doc("Health, metrics and operators: `HOST:PORT`, or `unix:/path`.")] = (
        "127.0.0.1:9090"
    )
    tokens: Annotated[
        str | None,
        MinLen(1),
        Doc("File of tokens (`seawall token`); agents and operators must then prove who they are."),
    ] = None
    metrics: Annotated[
        str | None,
        Doc("Health and metrics once more, and nothing else, for probes and scrapers on other machines: `HOST:PORT`."),
    ] = None
    allow_unauthenticated: Annotated[
        bool, Doc("Listen beyond loopback without `tokens`; only behind a network policy.")
    ] = False
    shadow: Annotated[
        bool, Doc("Ask every rule and record what it decides, but act on none; `seawall rules report` tells.")
    ] = False
    drain: Annotated[float, SECONDS, Ge(0), Doc("After SIGTERM, calls in flight have this long to finish.")] = 30.0
    watch: Annotated[bool, Doc("Load the manifest again when one of its files changes; SIGHUP does so always.")] = True
    limits: Annotated[LimitSettings, Doc("Bounds.")] = LimitSettings()
    runs: Annotated[RunSettings, Doc("Runs and their ends.")] = RunSettings()
    forward: Annotated[ForwardSettings, Doc("The gateway as a proxy.")] = ForwardSettings()
    journal: Annotated[JournalSettings, Doc("Where records go.")] = JournalSettings()
    telemetry: Annotated[TelemetrySettings, Doc("Logs and traces.")] = field(default_factory=TelemetrySettings)

    @property
    def listen_address(self) -> Address:
        """`listen`, read; `ValueError` if it is none."""
        return Address.parse(self.listen)

    @property
    def control_address(self) -> Address:
        """`control`, read; `ValueError` if it is none."""
        return Address.parse(self.control)

    @property
    def metrics_address(self) -> Address | None:
        """`metrics`, read, or None if it is not wanted; `ValueError` if it is none."""
        return None if self.metrics is None else Address.parse(self.metrics)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener is: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`, `[IPv6]:PORT`, `:PORT` (all interfaces) or `unix:/path`.

        Raises:
            ValueError: it is none of these; the message says what is expected.
        """
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path or "\0" in path:
                raise ValueError("`unix:` is followed by the path of a socket")
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
            raise ValueError("expected HOST:PORT with a port up to 65535, or unix:/path")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address stands in brackets, as in [::1]:8080")
        if any(character.isspace() or character in "/[]@" for character in host):
            raise ValueError("expected HOST:PORT, or unix:/path")
        return cls(host=host, port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect. A host name other than `localhost` is taken for reachable."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
