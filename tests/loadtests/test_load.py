from itertools import pairwise

import pytest

from loadtests.load import Load, due_times


def test_open_loop_calls_are_due_at_the_rate_and_within_the_time() -> None:
    """Gaps of a Poisson process: the mean is 1/rate, and they are as often short as an exponential law says."""
    due = list(due_times(Load(port=0, workload="read", rate=1000.0, seconds=20.0), start_ns=5))
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(due)]
    assert due[0] > 5
    assert due[-1] < 5 + 20e9
    assert sum(gaps) / len(gaps) == pytest.approx(0.001, rel=0.05)
    assert sum(gap > 0.001 for gap in gaps) / len(gaps) == pytest.approx(0.368, rel=0.05)


def test_the_same_load_has_the_same_due_times() -> None:
    load = Load(port=0, workload="read", rate=100.0, calls=50)
    assert list(due_times(load, 0)) == list(due_times(load, 0))
    assert len(list(due_times(load, 0))) == 50
