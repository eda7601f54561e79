"""The three gates, one by one and together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.antispin import Spin
from gateway.core.codes import CODES, Code, Directive
from gateway.core.economics import Chance, Costs
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Refusal, Rejected, Success
from gateway.core.recovery import AT_ONCE, Headroom, Situation, Trouble, decide_recovery, trouble_of
from tests.builders import reply_of

WORTH_IT = {"s": Costs(unwind=40.6, rerun=46.0, repair=4.1)}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [(400, Trouble.SEMANTIC), (404, Trouble.SEMANTIC), (409, Trouble.SEMANTIC), (422, Trouble.SEMANTIC),
     (401, Trouble.FATAL), (403, Trouble.FATAL), (507, Trouble.FATAL)],
)  # fmt: skip
def test_a_tools_no_is_semantic_unless_no_argument_can_help(status: int, trouble: Trouble) -> None:
    assert trouble_of(Failed(Fault.CLIENT_ERROR, reply=reply_of(status))) is trouble


@pytest.mark.parametrize("fault", [Fault.CONNECT, Fault.TIMEOUT, Fault.RESET, Fault.SERVER, Fault.THROTTLED])
def test_what_passes_by_itself_is_transient(fault: Fault) -> None:
    assert trouble_of(Failed(fault)) is Trouble.TRANSIENT


def test_every_code_is_some_kind_of_trouble_and_success_is_none() -> None:
    for code in CODES:
        assert isinstance(trouble_of(Rejected(Refusal(code=code, detail="x"))), Trouble)
    assert trouble_of(Success(reply_of())) is None
    doubt = InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="x"))
    assert trouble_of(doubt) is Trouble.UNKNOWN


def test_transient_trouble_is_retried_whatever_else_is_true() -> None:
    decision = decide_recovery(Situation(trouble=Trouble.TRANSIENT, is_past_pivot=True, spin=Spin.CYCLE))
    assert decision.directive is Directive.TRANSIENT_RETRY


@pytest.mark.parametrize("trouble", list(AT_ONCE))
@given(past=st.booleans(), undo=st.integers(0, 9), spin=st.sampled_from(list(Spin)), left=st.floats(0, 100))
def test_what_is_decided_at_once_is_so_in_every_situation(
    trouble: Trouble, past: bool, undo: int, spin: Spin, left: float
) -> None:
    """Stages do not even look at the run then."""
    tight = Headroom(name="steps", left=left, repair=1, reserve=2)
    situation = Situation(trouble=trouble, is_past_pivot=past, to_undo=undo, spin=spin, headroom=(tight,))
    decided = decide_recovery(situation)
    assert decided == AT_ONCE[trouble]
    assert (decided.gate, decided.figures) == (1, {"class": trouble.value})


@pytest.mark.parametrize(
    ("past", "directive"), [(False, Directive.BACKWARD_ROLLBACK), (True, Directive.OPERATOR_ESCALATE)]
)
def test_fatal_trouble_goes_back_or_past_the_pivot_to_a_person(past: bool, directive: Directive) -> None:
    decision = decide_recovery(Situation(trouble=Trouble.FATAL, is_past_pivot=past, to_undo=3))
    assert (decision.directive, decision.gate) == (directive, 1)


def test_a_repair_that_does_not_fit_the_budget_is_not_tried() -> None:
    tight = Headroom(name="tokens", left=2_500, repair=2_570, reserve=1_000)
    decision = decide_recovery(Situation(trouble=Trouble.SEMANTIC, to_undo=5, costs=WORTH_IT, headroom=(tight,)))
    assert (decision.directive, decision.gate) == (Directive.BACKWARD_ROLLBACK, 2)
    assert "tokens" in decision.why


@pytest.mark.parametrize("spin", [Spin.CYCLE, Spin.EXHAUSTED])
def test_repairs_that_lead_nowhere_end(spin: Spin) -> None:
    decision = decide_recovery(Situation(trouble=Trouble.SEMANTIC, to_undo=5, costs=WORTH_IT, spin=spin))
    assert (decision.directive, decision.gate) == (Directive.BACKWARD_ROLLBACK, 3)


def test_the_seeds_migration_is_repaired_from_six_percent_on() -> None:
    often, seldom = Chance(worked=10, failed=90), Chance(worked=3, failed=97)
    money = {"usd": Costs(unwind=0.0, rerun=0.162, repair=0.010)}
    for chance, directive in ((often, Directive.FORWARD_REPAIR), (seldom, Directive.BACKWARD_ROLLBACK)):
        decision = decide_recovery(
            Situation(trouble=Trouble.SEMANTIC, to_undo=5, costs=WORTH_IT | money, chance=chance)
        )
        assert decision.directive is directive
    assert decision.explain().keys() >= {"directive", "gate", "why", "p", "repairs_seen"}


def test_with_nothing_to_undo_the_step_is_corrected() -> None:
    assert decide_recovery(Situation(trouble=Trouble.SEMANTIC)).directive is Directive.FORWARD_REPAIR


@given(
    trouble=st.sampled_from(list(Trouble)), past=st.booleans(), undo=st.integers(0, 9), spin=st.sampled_from(list(Spin)),
    worked=st.integers(0, 99), failed=st.integers(0, 99), left=st.floats(0, 100),
)  # fmt: skip
def test_nothing_is_ever_unwound_past_the_pivot(
    trouble: Trouble, past: bool, undo: int, spin: Spin, worked: int, failed: int, left: float
) -> None:
    """Invariant 5, and a decision for every situation."""
    situation = Situation(
        trouble=trouble, is_past_pivot=past, to_undo=undo, spin=spin, costs=WORTH_IT, chance=Chance(worked, failed),
        headroom=(Headroom(name="steps", left=left, repair=1, reserve=2),),
    )  # fmt: skip
    decision = decide_recovery(situation)
    assert decision == decide_recovery(situation)
    assert decision.gate in (1, 2, 3)
    if past:
        assert decision.directive is not Directive.BACKWARD_ROLLBACK
