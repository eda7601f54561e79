"""What rules make of a call, whatever their order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from hypothesis.stateful import rule as stateful

from gateway.core.expression import Environment, ExpressionError
from gateway.core.policy import CLOSED, Effect, Judgement, Rule, judge, time_env


class When:
    """A condition with a fixed answer."""

    source = "given"

    def __init__(self, answer: bool | None) -> None:
        self.answer = answer

    def __call__(self, env: Environment) -> object:
        if self.answer is None:
            raise ExpressionError("`x` is missing")
        return self.answer


def rule(name: str, effect: str, answer: bool | None = True, *, is_shadow: bool = False) -> Rule:
    return Rule(name=name, effect=Effect(effect), when=When(answer), names=frozenset(), is_shadow=is_shadow)


def _answer(asked: Rule) -> bool | None:
    assert isinstance(asked.when, When)
    return asked.when.answer


def judged(*rules: Rule, is_shadow: bool = False) -> Judgement:
    return judge(rules, lambda _: {}, is_shadow=is_shadow)


def decided(*rules: Rule, is_shadow: bool = False) -> tuple[str, str] | None:
    decision = judged(*rules, is_shadow=is_shadow).decision
    return None if decision is None else (decision.rule, decision.effect.value)


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        ([], None),
        ([rule("a", "deny", False)], None),
        ([rule("a", "deny")], ("a", "deny")),
        ([rule("a", "hold"), rule("b", "deny")], ("b", "deny")),
        ([rule("a", "quarantine"), rule("b", "deny")], ("a", "quarantine")),
        ([rule("a", "allow"), rule("b", "deny")], ("b", "deny")),
        ([rule("a", "allow"), rule("b", "hold")], ("b", "hold")),
        ([rule("a", "allow")], None),
        ([rule("a", "allow", False)], (CLOSED, "deny")),
        ([rule("a", "allow", False), rule("b", "allow")], None),
        ([rule("a", "allow", False), rule("b", "hold")], (CLOSED, "deny")),
        ([rule("a", "deny", None)], ("a", "deny")),
        ([rule("a", "allow", None)], (CLOSED, "deny")),
        ([rule("a", "deny", is_shadow=True)], None),
        ([rule("a", "allow", False, is_shadow=True)], None),
    ],
)
def test_the_strictest_rule_decides(rules: Sequence[Rule], decision: tuple[str, str] | None) -> None:
    assert decided(*rules) == decision
    assert decided(*reversed(rules)) == decision


def test_a_rule_in_shadow_says_what_it_would_have_done() -> None:
    said = judged(rule("a", "deny", is_shadow=True), rule("b", "hold"))
    assert (said.decision and said.decision.rule, said.shadow and said.shadow.rule) == ("b", "a")
    closed = judged(rule("a", "allow", False, is_shadow=True))
    assert closed.decision is None
    assert closed.shadow is not None
    assert (closed.shadow.rule, closed.shadow.effect) == (CLOSED, Effect.DENY)


def test_an_allow_rule_in_shadow_says_what_it_would_have_let_through() -> None:
    said = judged(rule("a", "allow", True, is_shadow=True), rule("b", "allow", False))
    assert said.decision is not None
    assert said.decision.rule == CLOSED
    assert said.shadow is not None
    assert (said.shadow.rule, said.shadow.effect) == ("a", Effect.ALLOW)


def test_a_gateway_in_shadow_decides_nothing() -> None:
    said = judged(rule("a", "quarantine"), is_shadow=True)
    assert said.decision is None
    assert said.shadow is not None
    assert said.shadow.effect is Effect.QUARANTINE


def test_what_cannot_be_evaluated_says_so() -> None:
    found = judged(rule("a", "deny", None)).decision
    assert found is not None
    assert found.problem == "it cannot be evaluated: `x` is missing"


_RULES = st.lists(
    st.builds(
        lambda effect, answer, is_shadow: rule("r", effect, answer, is_shadow=is_shadow),
        st.sampled_from(list(Effect)), st.sampled_from([True, False, None]), st.booleans(),
    ),
    max_size=6,
)  # fmt: skip


@given(_RULES)
def test_no_rule_makes_another_one_milder(rules: list[Rule]) -> None:
    """Fail-safe defaults: a call passes only if nothing strict holds and, where `allow` closes it, something lets it."""
    acting = [one for one in rules if not one.is_shadow]
    against = [one for one in acting if one.effect is not Effect.ALLOW and _answer(one) is not False]
    allows = [one for one in acting if one.effect is Effect.ALLOW]
    is_let = not allows or any(_answer(one) is True for one in allows)
    assert (decided(*rules) is None) == (not against and is_let)


@given(_RULES, _RULES)
def test_shadow_rules_change_nothing(rules: list[Rule], others: list[Rule]) -> None:
    shadows = [rule(one.name, one.effect.value, _answer(one), is_shadow=True) for one in others]
    assert decided(*rules, *shadows) == decided(*rules)


@pytest.mark.parametrize(
    ("zone", "hour", "weekday"),
    [(UTC, 23, 6), (ZoneInfo("Europe/Berlin"), 0, 0), (ZoneInfo("America/New_York"), 18, 6)],
)
def test_time_is_told_in_the_rules_own_zone(zone: ZoneInfo, hour: int, weekday: int) -> None:
    told = time_env(1_795_993_200_000, zone)  # 2026-11-29 23:00 UTC, a Sunday
    assert (told["hour"], told["weekday"]) == (hour, weekday)


class Machine(RuleBasedStateMachine):
    """An operator who adds, removes and shadows rules: what decides is always what the rules in force say, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[str, Rule] = {}
        self.is_shadow = False

    @stateful(
        name=st.sampled_from("abcd"), effect=st.sampled_from(list(Effect)), answer=st.sampled_from([True, False, None]),
        is_shadow=st.booleans(),
    )  # fmt: skip
    def put(self, name: str, effect: Effect, answer: bool | None, is_shadow: bool) -> None:
        before = decided(*self.rules.values(), is_shadow=self.is_shadow)
        is_new = name not in self.rules
        self.rules[name] = rule(name, effect.value, answer, is_shadow=is_shadow)
        if is_new and is_shadow:
            assert decided(*self.rules.values(), is_shadow=self.is_shadow) == before

    @stateful(name=st.sampled_from("abcd"))
    def remove(self, name: str) -> None:
        self.rules.pop(name, None)

    @stateful()
    def switch(self) -> None:
        self.is_shadow = not self.is_shadow

    @invariant()
    def the_strictest_that_holds_decides(self) -> None:
        said = judged(*self.rules.values(), is_shadow=self.is_shadow)
        acting = [] if self.is_shadow else [one for one in self.rules.values() if not one.is_shadow]
        assert (None if said.decision is None else said.decision.effect) == _expected(acting)
        would = _expected(list(self.rules.values()))
        shown = said.shadow or said.decision
        assert (None if shown is None or shown.effect is Effect.ALLOW else shown.effect) == would


def _expected(rules: list[Rule]) -> Effect | None:
    """The page's table, read aloud."""
    against = {one.effect for one in rules if one.effect is not Effect.ALLOW and _answer(one) is not False}
    allows = [one for one in rules if one.effect is Effect.ALLOW]
    is_closed = bool(allows) and not any(_answer(one) is True for one in allows)
    for effect in (Effect.QUARANTINE, Effect.DENY):
        if effect in against:
            return effect
    return Effect.DENY if is_closed else Effect.HOLD if Effect.HOLD in against else None


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
