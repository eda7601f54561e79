"""The load generator as a process of its own: takes a `Load` a line, answers with a `Tally` a line.

`Generator` is the other end. The process lives for the whole benchmark, so that every system meets the same one.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from dataclasses import asdict

import uvloop

from loadtests.load import Load, Tally
from loadtests.process import ROOT, pin, python
from loadtests.session import offer

__all__ = ["Generator", "main"]


class Generator:
    """The generator's process, seen from the benchmark."""

    def __init__(self, core: int | None = None) -> None:
        self._process = subprocess.Popen(
            python("loadtests.generator"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        self.pid = self._process.pid
        pin(self.pid, core)

    def run(self, load: Load) -> Tally:
        """Offer a load and wait for what came of it.

        Raises:
            RuntimeError: the generator's process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(load)).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load generator ended (exit code {self._process.wait()}); its message is above")
        tally = Tally(**json.loads(line))
        tally.latencies_ns = {int(bucket): count for bucket, count in tally.latencies_ns.items()}
        return tally

    def stop(self) -> None:
        """End the process. May be repeated."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def main() -> None:
    """Take loads from standard input until it ends."""
    gc.disable()
    for line in sys.stdin:
        tally = uvloop.run(offer(Load(**json.loads(line))))
        print(json.dumps(asdict(tally)), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
