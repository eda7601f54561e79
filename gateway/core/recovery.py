"""Retry, repair, go back, or call a person: the recovery policy D(Omega), three gates in a row.

1. **What kind of trouble.** Transient trouble passes by itself: wait and retry. A fatal one (credentials, policy, exhausted
   hardware) cannot be repaired by other arguments: go back, or, past the pivot, call a person. Blocked content is never sent
   again as it is. What is left is semantic: the tool said what is wrong, and the agent can correct it.
2. **What is left to spend.** A repair must fit into the run's budget with a reserve for its own failure.
3. **What it is worth.** A repair is tried while its measured chance is above the break-even p* (`core/economics.py`), at
   most K times a step and never once an error comes back (`core/antispin.py`). With nothing to undo, correcting the step is
   all there is to going back, so it is repaired.

Past the pivot nothing is unwound: what cannot be retried or repaired goes to a person.

Source: seed 000, "Dynamic arbitration: the recovery policy function"; Avizienis et al., "Basic Concepts and Taxonomy of
Dependable and Secure Computing", 2004 (forward and backward recovery).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Final

from annotated_types import Ge, Gt, Le

from gateway.core.antispin import MAX_REPAIRS, Spin
from gateway.core.codes import CODES, Code, Directive, ErrorClass
from gateway.core.economics import Chance, Costs, break_even
from gateway.core.expression import Environment, Expression, ExpressionError
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.setting import CEL, SECONDS, Doc

__all__ = [
    "AT_ONCE",
    "Decision",
    "Headroom",
    "RecoveryMode",
    "RecoverySettings",
    "Situation",
    "Trouble",
    "decide_recovery",
    "trouble_by_rules",
    "trouble_of",
]


MAX_REWORDINGS = 6
"""Reworded attempts after content was blocked (seed 003, section 4)."""


class RecoveryMode(StrEnum):
    """What becomes of a decision."""

    ADVISE = "advise"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    """What a tool's failures lead to."""

    mode: Annotated[
        RecoveryMode,
        Doc("`advise` tells the agent; `enforce` also aborts the named run, or freezes it past the pivot."),
    ] = RecoveryMode.ADVISE
    repairs: Annotated[int, Ge(1), Le(MAX_REPAIRS), Doc("Corrected tries of a step in a row.")] = MAX_REPAIRS
    repair_cost: Annotated[float, SECONDS, Gt(0), Doc("What one correction by the agent takes, model and call.")] = 5.0
    repair_tokens: Annotated[float, Ge(0), Doc("Tokens that one correction is expected to take.")] = 3000.0
    repair_usd: Annotated[float, Ge(0), Doc("USD that one correction is expected to take.")] = 0.01
    transient: Annotated[
        str | None, CEL, Doc("Over `response`, `request`, `params`: such a failed answer passes by itself.")
    ] = None
    semantic: Annotated[str | None, CEL, Doc("Such a failed answer says what is wrong with the arguments.")] = None
    fatal: Annotated[str | None, CEL, Doc("No other arguments help against such a failed answer.")] = None
    content_block: Annotated[
        str | None, CEL, Doc("Such a failed answer blocks the content: the same arguments are never sent again.")
    ] = None
    rewordings: Annotated[
        int, Ge(0), Le(MAX_REWORDINGS), Doc("Reworded attempts after blocked content; then the step is blocked.")
    ] = MAX_REWORDINGS
    reserve: Annotated[
        float, Ge(0), Le(0.9), Doc("Share of each cap that a repair must leave, for what follows if it fails.")
    ] = 0.05


class Trouble(StrEnum):
    """What kind of failure it is."""

    TRANSIENT = "transient"
    SEMANTIC = "semantic"
    CONTENT_BLOCK = "content_block"
    FATAL = "fatal"
    UNKNOWN = "unknown"


FATAL_STATUSES = frozenset({401, 403, 407, 451, 507})
"""Credentials, permission, law, and full hardware: no other argument helps."""

_BY_CLASS = {
    ErrorClass.CAPACITY: Trouble.TRANSIENT,
    ErrorClass.RATE: Trouble.TRANSIENT,
    ErrorClass.TRANSPORT: Trouble.TRANSIENT,
    ErrorClass.OUTCOME: Trouble.UNKNOWN,
    ErrorClass.REQUEST: Trouble.SEMANTIC,
    ErrorClass.RUN: Trouble.FATAL,
    ErrorClass.POLICY: Trouble.FATAL,
    ErrorClass.INTERNAL: Trouble.FATAL,
}
_BY_CODE = {
    Code.JOURNAL_UNAVAILABLE: Trouble.TRANSIENT,
    Code.POSTCONDITION: Trouble.SEMANTIC,
    Code.PIVOT_GATE: Trouble.SEMANTIC,
    Code.HELD_FOR_APPROVAL: Trouble.TRANSIENT,
}


_REFUSED: Final = {code: _BY_CODE.get(code) or _BY_CLASS[row.error_class] for code, row in CODES.items()}


def trouble_of(outcome: Outcome) -> Trouble | None:
    """Return what kind of trouble an outcome is, or None if it is none. A manifest's own rules go before this table."""
    match outcome:
        case Rejected(refusal):
            return _REFUSED[refusal.code]
        case Success():
            return None
        case InDoubt():
            return Trouble.UNKNOWN
        case Failed(fault=Fault.CLIENT_ERROR, reply=reply):
            is_fatal = reply is not None and reply.status in FATAL_STATUSES
            return Trouble.FATAL if is_fatal else Trouble.SEMANTIC
        case Failed():
            return Trouble.TRANSIENT


def trouble_by_rules(rules: tuple[tuple[Trouble, Expression], ...], env: Environment) -> Trouble | None:
    """Return the class that a manifest's own rules give a failed answer, the first that holds; None if none does.

    A rule that cannot be evaluated on this answer does not hold.
    """
    for trouble, rule in rules:
        try:
            if rule(env) is True:
                return trouble
        except ExpressionError:
            continue
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What is left of one budget of the run, what a repair is expected to take of it, and the reserve for its failure."""

    name: str
    left: float
    repair: float
    reserve: float

    @property
    def is_enough(self) -> bool:
        """Whether a repair fits."""
        return self.left >= self.repair + self.reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Omega: everything the decision rests on.

    Attributes:
        trouble: gate 1.
        is_past_pivot: the run can only go forward.
        to_undo: committed steps that an abort would undo.
        headroom: gate 2, one for each budget that is set.
        spin: what the repairs of this step so far say.
        costs: gate 3, by unit (`s`, `usd`); a unit without figures is left out.
        chance: how often repairs after such a failure worked.
    """

    trouble: Trouble
    is_past_pivot: bool = False
    to_undo: int = 0
    headroom: tuple[Headroom, ...] = ()
    spin: Spin = Spin.MAY_REPAIR
    costs: dict[str, Costs] = field(default_factory=dict)
    chance: Chance = field(default_factory=Chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, which gate said so, why in one sentence, and the figures behind it."""

    directive: Directive
    gate: int
    why: str
    figures: dict[str, object] = field(default_factory=dict)

    def explain(self) -> dict[str, object]:
        """Return the `explain` member of a refusal."""
        return {"directive": self.directive.value, "gate": self.gate, "why": self.why, **self.figures}


AT_ONCE: Final[Mapping[Trouble, Decision]] = {
    Trouble.TRANSIENT: Decision(
        directive=Directive.TRANSIENT_RETRY,
        gate=1,
        why="such trouble passes by itself",
        figures={"class": Trouble.TRANSIENT.value},
    ),
    Trouble.UNKNOWN: Decision(
        directive=Directive.OPERATOR_ESCALATE,
        gate=1,
        why="the effect is unknown, and only finding out what happened makes anything else safe",
        figures={"class": Trouble.UNKNOWN.value},
    ),
}
"""Trouble about which the same is decided in every situation, so that nobody need look what the situation is."""


def decide_recovery(situation: Situation) -> Decision:
    """Return what to do about a failure. The same situation always gives the same decision."""
    decided = AT_ONCE.get(situation.trouble)
    if decided is not None:
        return decided
    decision = _by_trouble(situation) or _by_budget(situation) or _by_worth(situation)
    return replace(decision, figures={"class": situation.trouble.value, **decision.figures})


def _by_trouble(situation: Situation) -> Decision | None:
    if situation.trouble is Trouble.FATAL:
        return _back(situation, 1, "no other arguments can help against this")
    return None


def _by_budget(situation: Situation) -> Decision | None:
    for headroom in situation.headroom:
        if not headroom.is_enough:
            needed = f"{headroom.repair:g} and a reserve of {headroom.reserve:g}"
            why = f"{headroom.left:g} {headroom.name} are left, and a repair needs {needed}"
            return _back(situation, 2, why)
    return None


def _by_worth(situation: Situation) -> Decision:
    if situation.spin is Spin.CYCLE:
        return _back(situation, 3, "this error was met before in the same repairs: they go in circles")
    if situation.spin is Spin.EXHAUSTED:
        again = "reworded" if situation.trouble is Trouble.CONTENT_BLOCK else "repaired"
        return _back(situation, 3, f"the step was {again} as often as it may be")
    if situation.is_past_pivot or not situation.to_undo:
        why = "nothing can be undone any more" if situation.is_past_pivot else "there is nothing to undo"
        return Decision(directive=Directive.FORWARD_REPAIR, gate=3, why=f"{why}, so the step itself is corrected")
    figures: dict[str, object] = {"p": round(situation.chance.mean, 4), "repairs_seen": situation.chance.seen}
    for unit, costs in situation.costs.items():
        threshold = break_even(costs)
        figures[f"p_star_{unit}"] = None if threshold == float("inf") else round(threshold, 4)
        if situation.chance.mean < threshold:
            why = f"repairs like this work too seldom for what they cost in {unit}"
            return _back(situation, 3, why, figures)
    return Decision(directive=Directive.FORWARD_REPAIR, gate=3, why="a repair is the better bet", figures=figures)


def _back(situation: Situation, gate: int, why: str, figures: dict[str, object] | None = None) -> Decision:
    directive = Directive.OPERATOR_ESCALATE if situation.is_past_pivot else Directive.BACKWARD_ROLLBACK
    return Decision(directive=directive, gate=gate, why=why, figures=figures or {})
