"""Every input of the corpora holds, and so does what Hypothesis makes of them and of the words of their languages."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds

CASES = [(name, case) for name in TARGETS for case in seeds(name)]


@st.composite
def inputs(draw: st.DrawFn, name: str) -> bytes:
    """A few inputs of the corpus one behind the other, of which some were tampered with, or words in any order."""
    words = st.one_of(st.sampled_from(TARGETS[name].tokens), st.binary(max_size=8))
    if draw(st.booleans()):
        return b"".join(draw(st.lists(words, max_size=16)))
    data = b"".join(draw(st.lists(st.sampled_from(sorted(seeds(name).values())), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.one_of(words, st.just(b""))) + data[at + draw(st.sampled_from([0, 0, 1, 2])) :]
    return data


@pytest.mark.parametrize(("name", "case"), CASES)
def test_what_was_found_once_holds(name: str, case: str) -> None:
    TARGETS[name].check(seeds(name)[case])


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_whatever_is_made_of_it_holds(name: str) -> None:
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(inputs(name))
    def holds(data: bytes) -> None:
        TARGETS[name].check(data)

    holds()
