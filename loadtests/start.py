"""How long a whole gateway needs to be back: from the start of `seawall serve` to the first 200 of `/readyz`.

A journal with many finished runs and open runs of every class lies on the disk that holds `--dir`, out of the page cache.
The process is started, asked until it is ready, held to the class of each open run (it logs them), killed with SIGKILL and
started again on what that left behind. The promise is five seconds with 100,000 finished and 1,000 open runs; the exit code
is 1 where a start took longer, or a run was missing. `drifted` is the same with a manifest that lost the tool, so that every
run that needs it is frozen on the way.

    python -m loadtests.start --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from loadtests.process import ROOT
from loadtests.recovery import FINISHING, FROZEN, IN_FLIGHT, UNDOING, WAITING, fill, show

__all__ = ["EXPECTED", "LIMIT_S", "Start", "measure", "start_once"]

LIMIT_S = 5.0
"""Design section 2, rule 6."""

_SHAPES = (WAITING, IN_FLIGHT, UNDOING, FINISHING, FROZEN)
EXPECTED = ("waiting", "settling", "undoing", "finalizing", "frozen")
"""The class of each shape of open runs, in their order."""

_GIVE_UP_S = 120.0
_UNPROXIED = build_opener(ProxyHandler({}))
_OPERATIONS = """
      hold:
        match: POST /v1/holds
        tier: compensable
        idempotent: true
        compensator: {request: "POST /v1/holds/${response.json.id}/cancel"}
      payout: {match: POST /v1/payouts, tier: pivot}"""


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds until it answered at all and until it was ready, and how many open runs of each class it found."""

    alive_s: float
    ready_s: float
    classes: dict[str, int]


def manifest(folder: Path, port: int, *, tool: str) -> Path:
    """Write a manifest with one tool, which nobody serves: work that goes on after a start meets a closed port."""
    path = folder / f"{tool}.yaml"
    path.write_text(
        f"version: 1\ntools:\n  {tool}:\n    upstream: http://127.0.0.1:{port}\n"
        f"    idempotency: {{header: Idempotency-Key, window: 24h}}\n    operations:{_OPERATIONS}\n"
    )
    return path


def start_once(data: Path, manifest: Path) -> Start:
    """Start a gateway on a journal, wait until it is ready, and kill it.

    Raises:
        RuntimeError: it ended, or was not ready within two minutes; holds the end of what it wrote.
    """
    log, port = data.with_suffix(".log"), _free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--manifest", str(manifest), "--data", str(data)]
    command += ["--listen", "127.0.0.1:0", "--control", f"127.0.0.1:{port}"]
    _out_of_cache(data / "journal.db")
    with log.open("wb") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd=ROOT
        )
        try:
            alive_s = ready_s = 0.0
            while not ready_s and process.poll() is None and time.perf_counter() - began < _GIVE_UP_S:
                status = _ready(port)
                passed = time.perf_counter() - began
                alive_s = alive_s or (passed if status is not None else 0.0)
                ready_s = passed if status == 200 else 0.0
                time.sleep(0.005)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    if not ready_s:
        raise RuntimeError(
            f"not ready after {_GIVE_UP_S:g} s (exit code {process.returncode}): {log.read_text()[-2000:]}"
        )
    return Start(alive_s, ready_s, _classes(log))


def _ready(port: int) -> int | None:
    try:
        with _UNPROXIED.open(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code
    except OSError:
        return None


def _classes(log: Path) -> dict[str, int]:
    for line in log.read_text().splitlines():
        if line.startswith("{") and (told := json.loads(line)).get("event") == "recovered":
            return dict(told["open_runs"])
    return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _out_of_cache(file: Path) -> None:
    """Have the next reader read it from the disk, where the system knows how."""
    if hasattr(os, "posix_fadvise"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(base: Path, finished: int, unfinished: int, rounds: int, *, has_drifted: bool = False) -> dict[str, object]:
    """Return the figures of `rounds` starts, each but the first after a SIGKILL."""
    with tempfile.TemporaryDirectory(dir=base) as name:
        folder = Path(name)
        records = asyncio.run(fill(folder / "data", finished, unfinished, _SHAPES))
        path = manifest(folder, _free_port(), tool="other" if has_drifted else "pay")
        starts = [start_once(folder / "data", path) for _ in range(rounds)]
        size = (folder / "data" / "journal.db").stat().st_size
    first, ready = starts[0].classes, sorted(each.ready_s for each in starts)
    expected = Counter(EXPECTED[number % len(EXPECTED)] for number in range(unfinished))
    if has_drifted:  # what only waits to be committed or undone needs its compensators, so all but the done are stopped
        expected = Counter({"frozen": unfinished})
    return {
        "drifted": has_drifted,
        "finished_runs": finished,
        "open_runs": unfinished,
        "records": records,
        "file_mib": round(size / (1 << 20), 1),
        "alive_ms": round(sorted(each.alive_s for each in starts)[rounds // 2] * 1e3),
        "first_ready_ms": round(starts[0].ready_s * 1e3),
        "ready_ms": round(ready[rounds // 2] * 1e3),
        "worst_ready_ms": round(ready[-1] * 1e3),
        "is_classified": dict(expected) == {name: count for name, count in first.items() if count},
        "is_in_time": ready[-1] < LIMIT_S,
    }


def main() -> None:
    """Measure, print, and say by the exit code whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [
        measure(options.dir, options.finished, options.open, options.rounds, has_drifted=has_drifted)
        for has_drifted in (False, True)
    ]
    print(json.dumps(rows, indent=2)) if options.json else show(rows)
    sys.exit(not all(row["is_classified"] and row["is_in_time"] for row in rows))


if __name__ == "__main__":
    main()
