"""What a restart finds is read off the records; what the manifest can no longer carry is frozen, never dropped."""

from __future__ import annotations

import pytest

from gateway.core.manifest import Tier
from gateway.core.records import (
    Record,
    RecordedReply,
    StepCommitted,
    StepInDoubt,
    StepIntended,
    TrajectoryCommitted,
    TrajectoryFrozen,
    TrajectoryOpened,
    UnwindingStarted,
)
from gateway.core.restart import Standing, classify, drift
from gateway.core.tool import BoundRequest, McpUpstream
from gateway.core.trajectory import Trajectory, fold
from tests.builders import catalog_of, operation_of, tool_of

PAY = tool_of("pay", operation_of("hold"), operation_of("payout", Tier.PIVOT))
OTHER = tool_of("other")


def intended(number: int = 1, operation: str = "hold", tier: str = "compensable") -> StepIntended:
    return StepIntended(
        step=number, tool="pay", operation=operation, tier=tier, action=f"a{number}", fingerprint="f", occurrence=1,
        key=f"k{number}", method="POST", target="/holds",
    )  # fmt: skip


def committed(number: int = 1) -> StepCommitted:
    undo = BoundRequest("pay", "POST", "/cancel")
    return StepCommitted(step=number, reply=RecordedReply(status=200), compensator=undo)


def run(*records: Record) -> Trajectory:
    return fold("r", [(record, 1) for record in (TrajectoryOpened(agent="a"), *records)])


DOUBT = StepInDoubt(step=1, fault="timeout", detail="late")


@pytest.mark.parametrize(
    ("records", "standing"),
    [
        ((), Standing.WAITING),
        ((intended(), committed()), Standing.WAITING),
        ((intended(),), Standing.SETTLING),
        ((intended(), DOUBT), Standing.SETTLING),
        ((intended(), committed(), UnwindingStarted(reason="x")), Standing.UNDOING),
        ((intended(1, "payout", "pivot"), StepCommitted(step=1, reply=RecordedReply(status=200))), Standing.FINALIZING),
        ((TrajectoryFrozen(incident="X", detail="y"),), Standing.FROZEN),
        ((TrajectoryCommitted(),), Standing.OVER),
    ],
)
def test_every_run_is_in_exactly_one_class(records: tuple[Record, ...], standing: Standing) -> None:
    assert classify(run(*records)) is standing


def test_a_run_whose_doubt_cannot_be_settled_any_more_has_drifted() -> None:
    """riverqueue/river#1105: a worker that lacked the kind of a job discarded it."""
    state = run(intended(), DOUBT)
    assert drift(state, catalog_of(PAY)) is None
    assert drift(state, catalog_of(OTHER)) == "step 1 has to be settled at pay.hold"
    assert drift(state, catalog_of(tool_of("pay", operation_of("renamed")))) == "step 1 has to be settled at pay.hold"


def test_a_tool_of_an_mcp_server_need_not_be_declared() -> None:
    state = run(intended(), DOUBT)
    assert drift(state, catalog_of(tool_of("pay", operation_of("other"), mcp=McpUpstream()))) is None


def test_a_run_whose_undo_has_lost_its_tool_has_drifted() -> None:
    missing = drift(run(intended(), committed()), catalog_of(OTHER))
    assert missing == "step 1 (pay.hold) is undone by POST /cancel at pay"


def test_past_the_pivot_nothing_is_undone_so_nothing_is_missing() -> None:
    records = (
        intended(),
        committed(),
        intended(2, "payout", "pivot"),
        StepCommitted(step=2, reply=RecordedReply(status=200)),
    )
    assert drift(run(*records), catalog_of(OTHER)) is None


def test_frozen_and_finished_runs_need_nothing() -> None:
    assert drift(run(intended(), committed(), TrajectoryFrozen(incident="X", detail="y")), catalog_of(OTHER)) is None
    assert drift(run(intended(), committed(), TrajectoryCommitted()), catalog_of(OTHER)) is None
