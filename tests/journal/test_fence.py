"""Fences on streams whose last append failed."""

from __future__ import annotations

from gateway.journal import Conflict, JournalUnavailable
from gateway.journal.fence import Fences


def test_a_fence_refuses_with_the_class_of_the_first_error():
    fences = Fences()
    assert fences.refusal("run") is None
    fences.put("run", Conflict("first"))
    fences.put("run", JournalUnavailable("second"))
    assert isinstance(fences.refusal("run"), Conflict)
    assert fences.refusal("other") is None


def test_a_reading_that_began_before_the_failure_lifts_nothing():
    """It has not seen what the failed writer met."""
    fences = Fences()
    began_with = fences.find("run")
    fences.put("run", Conflict("in between"))
    fences.lift("run", began_with)
    assert fences.refusal("run") is not None
    fences.lift("run", fences.find("run"))
    assert fences.refusal("run") is None


def test_fences_are_bounded():
    """In a disk-full storm each new run leaves a fence that nobody ever lifts."""
    fences = Fences(capacity=2)
    for name in "abc":
        fences.put(name, JournalUnavailable("full"))
    assert fences.refusal("a") is None
    assert fences.refusal("c") is not None
