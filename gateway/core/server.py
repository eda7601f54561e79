"""Settings of the gateway itself, as against the tools it serves (`core/manifest.py`).

Each can be given in three ways; the nearest to the process wins: command line, then `SEAWALL_…`, then the file. The
name of a nested setting joins its keys: `limits.body_max`, `--limits-body-max`, `SEAWALL_LIMITS_BODY_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Final

from annotated_types import Ge, Gt, MinLen

from gateway.core.setting import BYTES, SECONDS, Doc

__all__ = [
    "Address",
    "JournalBackend",
    "JournalSettings",
    "LimitSettings",
    "LogFormat",
    "LogLevel",
    "RunSettings",
    "ServerSettings",
    "TelemetrySettings",
]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30


class JournalBackend(StrEnum):
    """Where records are kept."""

    SQLITE = "sqlite"
    MEMORY = "memory"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least serious lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Bounds on what one process holds at a time."""

    in_flight: Annotated[int, Ge(1), Doc("Calls in the gateway at once; further ones are refused.")] = 4096
    connections: Annotated[int, Ge(1), Doc("Open connections from agents.")] = 8192
    body_memory: Annotated[int, BYTES, Ge(0), Doc("A request body larger than this is spooled to disk.")] = MIB
    body_max: Annotated[int, BYTES, Gt(0), Doc("A larger request body of a write is refused with 413.")] = 64 * MIB
    answer_memory: Annotated[int, BYTES, Ge(0), Doc("A captured answer larger than this is spooled to disk.")] = MIB
    answer_max: Annotated[
        int, BYTES, Gt(0), Doc("A captured answer is cut off here; the outcome of the write is then in doubt.")
    ] = 64 * MIB
    spool: Annotated[int, BYTES, Gt(0), Doc("Disk space for spooled bodies, all calls together.")] = 2 * GIB
    header_line: Annotated[int, BYTES, Ge(1024), Doc("Longest request line or header field.")] = 8 * KIB
    header_total: Annotated[int, BYTES, Ge(4096), Doc("All header fields of a request together.")] = 64 * KIB
    header_time: Annotated[float, SECONDS, Gt(0), Doc("Time an agent has to send the head of a request.")] = 10.0
    body_idle: Annotated[float, SECONDS, Gt(0), Doc("Longest pause between two pieces of a request body.")] = 30.0
    keep_alive: Annotated[float, SECONDS, Gt(0), Doc("An idle agent connection is closed after this.")] = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Runs (trajectories) and when they end by themselves."""

    implicit_idle: Annotated[float, SECONDS, Gt(0), Doc("A run that nobody named is closed after this pause.")] = 600.0
    implicit_steps: Annotated[int, Ge(1), Doc("A run that nobody named is closed after this many steps.")] = 1000
    ttl: Annotated[float, SECONDS, Gt(0), Doc("A named run is abandoned when nothing happened for this long.")] = (
        86_400.0
    )
    max_steps: Annotated[int, Ge(1), Doc("Steps that a named run may take.")] = 10_000
    unwind: Annotated[float, SECONDS, Gt(0), Doc("Undoing a run may take this long before it is frozen.")] = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSettings:
    """Where the records go. The files lie in `data`."""

    backend: Annotated[JournalBackend, Doc("`memory` forgets everything at the end; for tests only.")] = (
        JournalBackend.SQLITE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What is told to the outside. Exporters take the standard `OTEL_*` variables."""

    metrics: Annotated[bool, Doc("Serve Prometheus metrics at `/metrics` on the control port.")] = True
    tracing: Annotated[bool, Doc("Make spans; needs the `otel` extra.")] = False
    instrument_server: Annotated[
        bool, Doc("Use OpenTelemetry's own aiohttp server instrumentation too; costs more than a whole call.")
    ] = False
    instrument_client: Annotated[
        bool, Doc("Use OpenTelemetry's own aiohttp client instrumentation too; costs more than a whole call.")
    ] = False
    log_level: Annotated[LogLevel, Doc("Least serious lines that are written.")] = LogLevel.INFO
    log_format: Annotated[LogFormat, Doc("How log lines are written.")] = LogFormat.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything about the process."""

    manifest: Annotated[str | None, Doc("Manifest: a file, or a folder of *.yaml.")] = None
    data: Annotated[str, MinLen(1), Doc("Folder for the journal and spooled bodies; one gateway per folder.")] = "var"
    secrets: Annotated[str | None, Doc("Folder with a file per secret, named like the secret.")] = None
    listen: Annotated[str, MinLen(1), Doc("Where agents connect: `HOST:PORT`, or `unix:/path`.")] = "127.0.0.1:8080"
    control: Annotated[str, MinLen(1), Doc("Health, metrics and operators: `HOST:PORT`, or `unix:/path`.")] = (
        "127.0.0.1:9090"
    )
    allow_unauthenticated: Annotated[
        bool, Doc("Listen beyond loopback though nobody proves who they are; only behind a network policy.")
    ] = False
    drain: Annotated[float, SECONDS, Ge(0), Doc("After SIGTERM, calls in flight have this long to finish.")] = 30.0
    watch: Annotated[bool, Doc("Load the manifest again when one of its files changes; SIGHUP does so always.")] = True
    limits: Annotated[LimitSettings, Doc("Bounds.")] = LimitSettings()
    runs: Annotated[RunSettings, Doc("Runs and when they end.")] = RunSettings()
    journal: Annotated[JournalSettings, Doc("Where records go.")] = JournalSettings()
    telemetry: Annotated[TelemetrySettings, Doc("Metrics, traces and logs.")] = TelemetrySettings()

    @property
    def listen_address(self) -> Address:
        """`listen`, read; `ValueError` if it is none."""
        return Address.parse(self.listen)

    @property
    def control_address(self) -> Address:
        """`control`, read; `ValueError` if it is none."""
        return Address.parse(self.control)


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
