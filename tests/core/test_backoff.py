"""Waits are spread evenly over their whole range, also at the cap, and a tool's own wish wins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.backoff import BackoffClass, backoff_class, full_jitter, wait_s
from gateway.core.fault import Fault


def chi_square(draws: list[float], top: float, bins: int = 20) -> float:
    """Return the statistic of `draws` against a uniform distribution over [0, top)."""
    counts = [0] * bins
    for draw in draws:
        counts[int(draw / top * bins)] += 1
    expected = len(draws) / bins
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("attempt", "top_s"), [(1, 0.1), (4, 0.8), (30, 30.0), (10**9, 30.0)])
def test_waits_are_uniform_from_zero_to_the_bound_also_at_the_cap(attempt: int, top_s: float, seed: int) -> None:
    """Regression: jd/tenacity#529 and #703, where the jitter vanished at the cap and everybody came back together."""
    source = random.Random(seed)
    waits = [full_jitter(attempt, 0.1, 30.0, source.random()) for _ in range(4_000)]
    assert chi_square(waits, top_s) < 43.8, "beyond the 99.9th percentile of chi-square with 19 degrees of freedom"
    assert len(set(waits)) > 0.9 * len(waits)


@given(
    attempt=st.integers(1, 10**12),
    base_s=st.floats(1e-6, 1e6),
    cap_s=st.floats(1e-6, 1e6),
    u=st.floats(0, 1, exclude_max=True),
)
def test_no_attempt_overflows_or_waits_beyond_the_cap(attempt: int, base_s: float, cap_s: float, u: float) -> None:
    """Regression: App-vNext/Polly#2163, where a large attempt overflowed to a negative wait."""
    assert 0 <= full_jitter(attempt, base_s, cap_s, u) <= cap_s


def wait(backoff: BackoffClass, asked_s: float | None = None, attempt: int = 1, u: float = 0.5) -> float | None:
    return wait_s(backoff, attempt, base_s=0.1, cap_s=30.0, u=u, asked_s=asked_s, asked_cap_s=60.0)


def test_each_class_has_its_own_patience() -> None:
    assert wait(BackoffClass.TRANSPORT) == 0.05
    assert wait(BackoffClass.SERVER) == 0.05
    assert wait(BackoffClass.RATE) == 0.5
    assert wait(BackoffClass.CAPACITY) == 5.0


def test_what_waiting_cannot_mend_is_never_repeated() -> None:
    assert wait(BackoffClass.AUTH) is None
    assert wait(BackoffClass.CONTENT_BLOCK, asked_s=1.0) is None


@pytest.mark.parametrize("backoff", [BackoffClass.RATE, BackoffClass.CAPACITY])
def test_the_wait_that_the_tool_asked_for_wins_within_its_cap(backoff: BackoffClass) -> None:
    assert wait(backoff, asked_s=7.0, u=0.0) == 7.0
    assert wait(backoff, asked_s=7.0, u=0.5) == 7.05, "spread, since everybody was asked the same"
    assert wait(backoff, asked_s=0.0, u=0.0) == 0.0
    assert wait(backoff, asked_s=3_600.0, u=0.0) == 60.0


def test_a_broken_connection_asks_for_nothing() -> None:
    assert wait(BackoffClass.TRANSPORT, asked_s=50.0) == 0.05


@pytest.mark.parametrize(
    ("fault", "status", "expected"),
    [
        (Fault.NONE, 200, None),
        (Fault.CANCELLED, None, None),
        (Fault.CONNECT, None, BackoffClass.TRANSPORT),
        (Fault.TIMEOUT, None, BackoffClass.TRANSPORT),
        (Fault.SERVER, 500, BackoffClass.SERVER),
        (Fault.THROTTLED, 429, BackoffClass.RATE),
        (Fault.THROTTLED, 503, BackoffClass.CAPACITY),
        (Fault.CLIENT_ERROR, 401, BackoffClass.AUTH),
        (Fault.CLIENT_ERROR, 422, BackoffClass.CONTENT_BLOCK),
    ],
)
def test_a_fault_and_a_status_name_the_class(fault: Fault, status: int | None, expected: BackoffClass | None) -> None:
    assert backoff_class(fault, status) is expected
