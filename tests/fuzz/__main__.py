"""`python -m tests.fuzz TARGET --runs N`: atheris looks for inputs that break a target, led by what they reach.

The gateway and h11 are instrumented as they are imported. The same seed and number of runs look at the same inputs. An input
that breaks it is written to the folder of `--out`, where new inputs of interest are kept, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

LONGEST_BYTES = 512
ATHERIS = Path(__file__).parent.parent.parent / ".suites/fuzz"


def main() -> None:
    """Fuzz one target; ends the process, with 0 if nothing broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sys.path.append(str(ATHERIS))
    import atheris

    with atheris.instrument_imports(include=["gateway", "h11"]):
        from tests.fuzz.targets import TARGETS, seeds
    target = TARGETS[given.target]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "words").write_text("".join(map(_word, target.tokens)))
        (folder / "seeds").mkdir()
        for number, data in enumerate(seeds(given.target).values()):
            (folder / "seeds" / str(number)).write_bytes(data)
        out = given.out or folder / "out"
        out.mkdir(parents=True, exist_ok=True)
        options = [
            f"-runs={given.runs}",
            f"-seed={given.seed}",
            f"-max_len={LONGEST_BYTES}",
            "-len_control=0",
            f"-dict={folder / 'words'}",
            f"-artifact_prefix={out}/",
        ]
        atheris.Setup([sys.argv[0], *options, str(out), str(folder / "seeds")], target.check)
        atheris.Fuzz()


def _word(token: bytes) -> str:
    return '"{}"\n'.format("".join(f"\\x{byte:02x}" for byte in token))


if __name__ == "__main__":
    main()
