"""Leases: found while they are good, and never after."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.credential import Lease, LeaseBook, LeaseSource, StaticSource, good_for_s

SOURCE = LeaseSource(header="Authorization", ttl_s=900.0, source=StaticSource("canary"))
OTHER = LeaseSource(header="Authorization", ttl_s=900.0, source=StaticSource("canary"))


def lease(run: str = "r1", tool: str = "pay", expires_s: float = 100.0, source: LeaseSource = SOURCE) -> Lease:
    return Lease(
        id="l", tool=tool, run=run, agent="a", kind="static", expires_s=expires_s, source=source, value="canary"
    )


@pytest.mark.parametrize(
    ("ttl", "told", "good"),
    [(900, None, 900), (900, 3600, 900), (900, 600, 570), (900, 100, 90), (60, 61, 54.9), (900, 0, 0)],
)
def test_a_lease_ends_before_its_issuer_says_so(ttl: float, told: float | None, good: float) -> None:
    assert good_for_s(ttl, told) == pytest.approx(good)


def test_a_lease_is_of_one_run_one_tool_one_source_and_one_time() -> None:
    book = LeaseBook()
    mine = lease()
    book.add(mine)
    assert book.find("pay", "r1", SOURCE, 99.9) is mine
    assert book.find("pay", "r1", SOURCE, 100.0) is None
    assert book.find("pay", "r2", SOURCE, 1.0) is None
    assert book.find("git", "r1", SOURCE, 1.0) is None
    assert book.find("pay", "r1", OTHER, 1.0) is None
    assert book.keep_only({OTHER}) == [mine]
    assert book.find("pay", "r1", SOURCE, 1.0) is None


def test_no_lease_prints_its_secret() -> None:
    assert "canary" not in repr(lease()) + str(lease()) + repr(SOURCE)


class Machine(RuleBasedStateMachine):
    """A lease that was ended, by whatever, is never found again."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.now, self.ended, self.all = LeaseBook(), 0.0, set[int](), list[Lease]()

    @rule(run=st.sampled_from("ab"), tool=st.sampled_from("xy"), ttl=st.floats(0.1, 10))
    def take(self, run: str, tool: str, ttl: float) -> None:
        made = lease(run, tool, self.now + ttl)
        before = self.book.add(made)
        self.all.append(made)
        if before is not None:
            self.ended.add(id(before))

    @rule(run=st.sampled_from("ab"))
    def revoke(self, run: str) -> None:
        self.ended |= {id(one) for one in self.book.end_run(run)}

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.ended |= {id(one) for one in self.book.expired(self.now)}

    @invariant()
    def what_is_found_is_good(self) -> None:
        for run in "ab":
            for tool in "xy":
                found = self.book.find(tool, run, SOURCE, self.now)
                assert found is None or (id(found) not in self.ended and found.expires_s > self.now)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, deadline=None)
