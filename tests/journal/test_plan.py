"""From appends to rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.journal import Conflict, Head, KeyClaim
from gateway.journal.plan import Standing, plan_batch
from tests.journal.backends import append


def head(stream, version, is_open=True):
    return Head(stream, version, "preparing", is_open, "agent", 1, 1)


def test_a_head_is_written_once_however_many_appends_moved_it():
    known = {"old": Standing(4, head("old", 2))}
    plan = plan_batch(
        [append("new", 0, "a"), append("old", 2, "b", at=8), append("new", 1, "c", "d"), append("old", 3, at=9)],
        known,
        5,
    )
    assert plan.errors == [None] * 4
    assert [record[:2] for record in plan.records] == [(5, 1), (4, 3), (5, 2), (5, 3), (4, 4)]
    assert {name: standing.head.version for name, standing in plan.created.items()} == {"new": 3}
    assert {name: standing.head.version for name, standing in plan.advanced.items()} == {"old": 4}
    assert (plan.advanced["old"].head.opened_at, plan.advanced["old"].head.changed_at) == (1, 9)
    assert not plan.changed
    assert plan.opened == 1


@pytest.mark.parametrize("other", [{"state": "committed"}, {"is_open": False}, {"agent": "somebody"}])
def test_a_head_that_differs_in_more_than_version_and_time_is_updated_whole(other):
    """Also if the batch's last append to it says nothing new: what counts is what the file has."""
    known = {"run": Standing(4, head("run", 2))}
    appends = [append("run", 2, is_open=True), replace(append("run", 3), **other)]
    plan = plan_batch(appends, known, 5)
    assert (list(plan.changed), list(plan.advanced)) == (["run"], [])
    again = [replace(appends[1], expected=2), replace(append("run", 3), **other)]
    assert list(plan_batch(again, known, 5).changed) == ["run"]


def test_after_a_failed_append_the_rest_of_the_stream_is_left_out():
    claim = KeyClaim(b"k", 1, 9)
    plan = plan_batch([append("a", 1, claims=(claim,)), append("a", 0), append("b", 0, claims=(claim,))], {}, 1)
    assert [type(error) for error in plan.errors] == [Conflict, Conflict, type(None)]
    assert plan.claims == [(b"k", 1, 1, 9)]
    assert list(plan.created) == ["b"]


def test_opening_and_closing_are_counted():
    known = {"closed": Standing(1, head("closed", 1, is_open=False)), "open": Standing(2, head("open", 1))}
    plan = plan_batch([append("open", 1, is_open=False), append("fleeting", 0, is_open=False)], known, 3)
    assert plan.opened == -1
    assert plan_batch([append("closed", 1)], known, 3).opened == 1
