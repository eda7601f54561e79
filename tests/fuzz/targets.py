"""The targets by name, and the inputs that each begins with: the files of its corpus, by what is odd about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import answers, bodies, chunks, paths, requests
from tests.suites.corpus import CORPUS

__all__ = ["FOLDER", "TARGETS", "Target", "seeds"]

FOLDER = Path(__file__).parent / "corpus"
SEED_BYTES = 2_000


class Target(NamedTuple):
    """Something that takes any bytes. `check` raises what is wrong; `tokens` are words of its language."""

    check: Callable[[bytes], None]
    tokens: tuple[bytes, ...]


TARGETS: Mapping[str, Target] = {
    "answers": Target(answers.check, answers.TOKENS),
    "bodies": Target(bodies.check, bodies.TOKENS),
    "chunks": Target(chunks.check, chunks.TOKENS),
    "paths": Target(paths.check, paths.TOKENS),
    "requests": Target(requests.check, requests.TOKENS),
}


def seeds(name: str) -> dict[str, bytes]:
    """Return a target's corpus by the names of its files; for requests also what tests/suites sends to other proxies."""
    found = {path.name: path.read_bytes() for path in sorted((FOLDER / name).iterdir())}
    if name == "requests":
        found |= {case: data for case, data in CORPUS.items() if len(data) <= SEED_BYTES}
    return found
