"""What a waiting call takes is counted, and no call has grown."""

import pytest

from loadtests.limits import judge, load, version
from loadtests.waiting import CARRIED, KIND, count


@pytest.mark.parametrize("workload", CARRIED)
def test_a_waiting_call_has_not_grown(workload: str) -> None:
    """The gate of every build; `python -m loadtests.waiting --write` takes over what is worth it."""
    size, places = count(workload)
    assert judge({workload: size}, load(KIND), version(), kind=KIND) == []
    assert any(place.startswith("gateway/") for place, _, _ in places)
