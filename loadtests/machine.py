"""What the figures depend on: the machine, the interpreter and its build, versions, and what one sync of the disk costs."""

from __future__ import annotations

import os
import platform
import random
import shlex
import subprocess
import sysconfig
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from loadtests.figures import Histogram
from loadtests.process import ROOT

__all__ = ["facts", "fdatasync_us"]

_PACKAGES = ("aiohttp", "uvloop", "aiosqlite", "orjson", "multidict", "yarl")
_BUILD_FLAGS = ("--enable-", "--disable-", "--with-", "--without-")  # without --enable-optimizations: 0.8 of the speed
_RECORD = b"r" * 700
_SYNCS = 500
_PACED_PER_S = 600.0
"""Two for each write of the open loop."""


def facts(folder: Path) -> dict[str, object]:
    """Return everything a reader needs to judge the figures; `folder` is where the journal is kept."""
    p50_us, p99_us = fdatasync_us(folder)
    paced_p50_us, paced_p99_us = fdatasync_us(folder, per_s=_PACED_PER_S)
    flags = shlex.split(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "processor": _after("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _after("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "python build": " ".join(flag.partition("=")[0] for flag in flags if flag.startswith(_BUILD_FLAGS))
        or "no flags",
        "packages": {name: version(name) for name in _PACKAGES},
        "journal's file system": _file_system(folder),
        "fdatasync p50 us": round(p50_us),
        "fdatasync p99 us": round(p99_us),
        "fdatasync at 600/s p50 us": round(paced_p50_us),
        "fdatasync at 600/s p99 us": round(paced_p99_us),
    }


def fdatasync_us(folder: Path, *, per_s: float = 0.0) -> tuple[float, float]:
    """Return median and 99th percentile of appending 700 bytes to a preallocated file and syncing it, in microseconds.

    `per_s`: at random times, so many a second; 0: one after the other. A disk and a core that had nothing to do are
    slower to answer, and a journal at a low rate meets them so.
    """
    sync = getattr(os, "fdatasync", os.fsync)
    times = random.Random(1)
    histogram, path = Histogram(), folder / "sync-probe"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(_SYNCS * len(_RECORD)))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(_SYNCS):
            if per_s:
                time.sleep(times.expovariate(per_s))
            start_ns = time.perf_counter_ns()
            file.write(_RECORD)
            sync(file.fileno())
            histogram.record(time.perf_counter_ns() - start_ns)
    path.unlink()
    return histogram.percentile(0.5) / 1e3, histogram.percentile(0.99) / 1e3


def _commit() -> str:
    with suppress(OSError, subprocess.CalledProcessError):
        describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        return subprocess.run(describe, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return "unknown"


def _after(file: str, name: str) -> str:
    with suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def _file_system(folder: Path) -> str:
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        above = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
        return max(above, key=lambda mount: len(mount[1]))[2]
    return "unknown"
