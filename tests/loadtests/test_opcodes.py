"""Counting instructions gives the same number each time, says where they are spent, and no call has grown."""

import pytest

from loadtests.limits import judge, load, version
from loadtests.opcodes import CALLS, KIND, count


def test_a_count_is_the_same_each_time_and_names_our_functions() -> None:
    first, second = count("read"), count("read")
    assert abs(first.total - second.total) <= first.total * 0.05  # an alarm that rang, a batch that went
    names = " ".join(place for place, _ in first.by_function())
    assert "gateway/ingress/proxy.py" in names
    assert "loadtests" not in names


@pytest.mark.parametrize("workload", ["read", "refused", "write"])
def test_a_call_has_not_grown(workload: str) -> None:
    """The gate of every build; `python -m loadtests.opcodes --write` takes over what is worth it."""
    assert judge({workload: count(workload).total / CALLS}, load(KIND), version()) == []
