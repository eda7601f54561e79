"""The scoreboard in small: real processes and kills, and the ledger's arithmetic by hand.

The full thousand runs are `make storm`; here enough of them that every kind of fault happens.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from loadtests.scoreboard.__main__ import BARE, JOURNALED, SAGA, WHOLE, contest
from loadtests.scoreboard.contestants import Ending
from loadtests.scoreboard.plan import RATES, TURNS, Kind, plan
from loadtests.scoreboard.table import SEED_000, score, table
from loadtests.scoreboard.world import Ledger


def test_a_fifth_of_the_turns_is_faulty_and_the_kinds_have_their_rates() -> None:
    runs = 4_000
    counts = Counter(fault.kind for fault in plan(runs, seed=3).values())
    counts[Kind.EXCEPTION] += counts.pop(Kind.CAPACITY)
    for kind, rate in RATES.items():
        assert counts[kind] / (runs * TURNS) == pytest.approx(rate, rel=0.1)
    assert plan(50, seed=3) == plan(50, seed=3) != plan(50, seed=4)


@pytest.mark.timeout(300)
def test_the_whole_gateway_ends_every_run_and_orphans_and_doubles_nothing() -> None:
    """Design section 2, lines 2 and 6, under every fault of the benchmark, at the tool's own ledger."""
    ours = asyncio.run(contest(WHOLE, runs=14, seed=1, lanes=2))
    assert ours.is_flawless
    assert ours.kills >= 3
    assert ours.repaired >= 1
    assert ours.completed + ours.aborted == ours.runs
    assert max(ours.recovery_s) < 30.0, "wide, since the machine of a build server is shared"


@pytest.mark.parametrize("name", [BARE, JOURNALED])
def test_what_has_no_recovery_leaves_a_mess(name: str) -> None:
    theirs = asyncio.run(contest(name, runs=40, seed=1, lanes=1))
    assert theirs.completed < 0.5 * theirs.runs
    assert theirs.orphans > 0
    assert not theirs.is_flawless


def test_verdicts_are_taken_from_the_ledger_not_from_what_was_said() -> None:
    ledger = Ledger()
    for turn in range(TURNS):
        ledger.create(0, turn, f"0/{turn}")
        ledger.create(1, turn, "")
    ledger.create(1, 3, "")
    ledger.create(2, 0, "2/0").is_alive = False
    ledger.create(3, 0, "3/0")
    endings = {0: Ending("finished"), 1: Ending("finished"), 2: Ending("aborted"), 3: Ending("aborted")}
    told = score(SAGA, endings, ledger, kills=0, seconds=1.0)
    assert (told.completed, told.aborted, told.neither) == (1, 1, 2)
    assert (told.doubled, told.orphans) == (1, 1)
    assert "| saga without durable journal | 4 | 25.0% | 49.1 % |" in table([told.document()])


def test_a_known_key_does_nothing_more() -> None:
    ledger = Ledger()
    assert ledger.create(0, 0, "k") is ledger.create(0, 0, "k")
    assert ledger.create(0, 0, "") is not ledger.create(0, 0, "")
    assert list(SEED_000.values()) == [14.2, 38.6, 49.1, 94.8]
