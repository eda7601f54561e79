"""What is empty is shared, so it takes no room; what somebody puts something in is theirs alone."""

from __future__ import annotations

import orjson
import pytest

from gateway.core.sparse import NONE, NOTHING, excluding, including, own
from gateway.core.trajectory import Trajectory


def test_the_first_value_makes_a_set_of_ones_own_and_the_last_gives_it_up() -> None:
    mine = including(NONE, 1)
    assert mine == {1}
    assert including(mine, 2) is mine
    assert excluding(mine, 1) is mine == {2}
    assert excluding(mine, 2) is NONE
    assert not NONE


def test_taking_out_what_is_not_there_changes_nothing() -> None:
    assert excluding(NONE, 1) is NONE
    assert excluding({2}, 1) == {2}


def test_the_shared_dict_cannot_be_put_into_and_an_own_one_can() -> None:
    """A bug that wrote into it would write into every run."""
    shared = NOTHING
    with pytest.raises(TypeError, match="shared"):
        NOTHING["usd"] = 1.0
    with pytest.raises(TypeError, match="shared"):
        NOTHING.update(usd=1.0)
    with pytest.raises(TypeError, match="shared"):
        NOTHING.setdefault("usd", 1.0)
    with pytest.raises(TypeError, match="shared"):
        shared |= {"usd": 1.0}
    mine = own(NOTHING)
    mine["usd"] = 1.0
    assert own(mine) is mine
    assert orjson.dumps(NOTHING) == b"{}"


def test_runs_that_have_nothing_share_it() -> None:
    one, other = Trajectory(id="a"), Trajectory(id="b")
    assert one.in_flight is other.in_flight
    assert one.usage is other.usage == {}
