"""What an idle run takes is counted, and nothing else of it is left."""

from __future__ import annotations

from loadtests.idle import LIMIT_BYTES, count


def test_a_parked_run_takes_five_hundred_bytes_at_most() -> None:
    """The gate of every build (docs/adr/0180)."""
    size, left = count()
    assert size <= LIMIT_BYTES
    assert not left
