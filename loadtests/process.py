"""The processes of a benchmark: started with a core of their own, asked what they used, ended by their id.

CPU time is the scheduler's own run time of each thread (`/proc/PID/task/*/schedstat`, nanoseconds), so it holds even
where the generator is the limit. Where a machine offers no `/proc` or no pinning, the figures are 0 and nothing is pinned.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Cores", "Server", "busy_ns", "cpu_ns", "free_port", "pin", "python", "rss_bytes", "start", "tree"]

ROOT = Path(__file__).resolve().parent.parent
_START_S = 20.0
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the system under test has, and which the generator and the tool share; None: wherever they like."""

    system: int | None = None
    load: int | None = None

    @classmethod
    def of_this_machine(cls) -> Cores:
        """Return two cores that this process may use, or none if it has just one or cannot pin."""
        allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return cls(allowed[0], allowed[1]) if len(allowed) > 1 else cls()


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: its process and the port it listens on."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def pid(self) -> int:
        """Process id of the root of its process tree."""
        return self.process.pid

    def stop(self) -> None:
        """End it and its children: asked first, killed if they do not. May be repeated."""
        pids = tree(self.pid) if self.process.poll() is None else []
        for how in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
                break


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of this repository's modules with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def pin(pid: int, core: int | None) -> None:
    """Keep a process, and the threads it starts from now on, on one core; 0 is this process."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    name: str,
    command: Sequence[str],
    *,
    core: int | None,
    folder: Path,
    port: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Server:
    """Start a server and wait until it has said where it listens: `{"listen": "HOST:PORT", …}`, a line of its output.

    With `port` it need not say so, and is waited for until it takes connections there. `environ` is added to this process's
    own. Its output goes to `NAME.out` and `NAME.err` in `folder`.

    Raises:
        RuntimeError: it ended, or said nothing in time; holds the end of what it wrote.
    """
    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **(environ or {})}
        )
    pin(process.pid, core)
    give_up = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < give_up:
        found = _port_in(output.read_text(errors="replace")) if port is None else port if _is_open(port) else None
        if found is not None:
            return Server(process, found)
        time.sleep(0.01)
    Server(process, 0).stop()
    tail = (output.read_text(errors="replace") + errors.read_text(errors="replace"))[-2000:]
    raise RuntimeError(f"{name} did not start (exit code {process.returncode}): {' '.join(command)}\n{tail}")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _port_in(output: str) -> int | None:
    for line in output.splitlines(keepends=True):
        if line.endswith("\n") and line.startswith("{"):
            with suppress(ValueError):
                address = json.loads(line).get("listen")
                if isinstance(address, str):
                    return int(address.rstrip("/").rpartition(":")[2])
    return None


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    pids = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                pids += tree(int(child))
    return pids


def cpu_ns(pids: Sequence[int]) -> int:
    """Return the CPU time that all threads of these processes have used so far."""
    total = 0
    for pid in pids:
        for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(schedstat.read_text().split()[0])
    return total


def rss_bytes(pids: Sequence[int]) -> int:
    """Return the resident memory of these processes; pages they share count for each."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def busy_ns() -> int:
    """Return the CPU time that everything on the machine has used so far, to a hundredth of a second."""
    with suppress(OSError):
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
        return (user + nice + system + irq + softirq) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return 0
