"""`python -m tests.simulation SEED…` replays schedules with their traces; `--schedules N [--from SEED]` runs many."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.schedule import play_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int, help="schedules to replay, traces printed")
    parser.add_argument("--schedules", type=int, default=0, help="how many to run, one seed each")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed")
    options = parser.parse_args()
    failed = 0
    for seed in options.seeds:
        try:
            report = play_seed(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {error}", *getattr(error, "__notes__", ()), sep="\n")
        else:
            print(*report.trace, f"seed {seed}: {report.phase}, {report.crashes} crashes", sep="\n")
    began, ends, crashes = time.monotonic(), Counter[str](), 0
    for seed in range(options.first, options.first + options.schedules):
        try:
            report = play_seed(seed)
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {error}   (python -m tests.simulation {seed})")
        else:
            ends[report.phase] += 1
            crashes += report.crashes
    if options.schedules:
        took = time.monotonic() - began
        print(f"{options.schedules} schedules, {crashes} crashes, {failed} failed, {took:.1f} s; ends: {dict(ends)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
