"""What an operator's rules say of a call: let it go, refuse it, ask people, or lock its run away.

A rule is a condition over the call and its run, and an effect. All rules that concern a call are asked, and the strictest
that holds decides, whatever their order: `quarantine` over `deny` over `hold` over `allow`. Where at least one `allow` rule
concerns an operation, that operation is closed: a call that no `allow` rule lets through is denied.

A rule that cannot be evaluated counts against the call: an `allow` rule does not let it through, every other one holds. So
a rule asks `request.json != null && has(request.json.amount)` before it looks at an amount that may not be there.

A rule in shadow is asked and recorded, and decides nothing; a gateway in shadow asks and records all of them so.

Source: Saltzer & Schroeder 1975 (fail-safe defaults); Cedar, "Authorization" (forbid overrides permit, deny by default).
Left out: rules that change a call, because then nobody could say any more what the agent had asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Annotated, Final, Literal

from annotated_types import MaxLen, MinLen

from gateway.core.expression import Environment, Expression, ExpressionError
from gateway.core.setting import CEL, Doc

__all__ = [
    "CLOSED",
    "POLICY_NAMES",
    "Effect",
    "Finding",
    "Judgement",
    "Rule",
    "RuleSettings",
    "judge",
    "time_env",
]

POLICY_NAMES: Final = frozenset(
    {"agent", "proven", "tool", "operation", "tier", "request", "params", "trajectory", "time"}
)
"""What a rule may speak of."""

CLOSED: Final = "(no allow rule)"
"""Stands for a rule's name where an operation is closed by `allow` rules and none of them lets the call through."""


class Effect(StrEnum):
    """What becomes of a call that a rule holds for, from mild to strict."""

    ALLOW = "allow"
    HOLD = "hold"
    DENY = "deny"
    QUARANTINE = "quarantine"


_STRICTNESS: Final = {effect: rank for rank, effect in enumerate(Effect)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """A rule about calls, asked before anything is spent on them.

    `tools`, `operations` and `tiers` narrow it down when the manifest is loaded, so that other calls pay nothing for it.
    """

    effect: Annotated[
        Effect,
        Doc(
            "`deny` refuses, `hold` asks people, `quarantine` locks the run away; `allow` closes the operation to all calls "
            "that no `allow` rule lets through. The strictest rule that holds decides."
        ),
    ]
    when: Annotated[
        str,
        CEL,
        Doc(
            "Over `agent`, `proven`, `tool`, `operation`, `tier` (texts; `proven`: by a token), `request`, `params`, "
            "`trajectory` and `time`. What cannot be evaluated counts against the call."
        ),
    ] = "true"
    tools: Annotated[tuple[str, ...], Doc("Tools that it concerns; empty: all.")] = ()
    operations: Annotated[tuple[str, ...], Doc("Operations, as `operation` or `tool.operation`; empty: all.")] = ()
    tiers: Annotated[
        tuple[Literal["read", "reversible", "compensable", "pivot", "unmanaged"], ...], Doc("Tiers; empty: all.")
    ] = ()
    detail: Annotated[
        str | None, MinLen(1), MaxLen(500), Doc("A sentence for the model: why, and what to do instead.")
    ] = None
    approval: Annotated[str | None, Doc("Policy of `approvals` that a held call is asked by; default `default`.")] = (
        None
    )
    timezone: Annotated[str, MinLen(1), Doc("Zone of `time`, such as `Europe/Berlin`.")] = "UTC"
    shadow: Annotated[bool, Doc("Ask and record it, and decide nothing by it.")] = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """A rule, ready to be asked. `names`: what its condition speaks of. `asks`: who decides about what it holds."""

    name: str
    effect: Effect
    when: Expression
    names: frozenset[str]
    detail: str | None = None
    asks: object = None
    zone: tzinfo = field(default=UTC)
    is_shadow: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds for a call. `problem`: why it could not be evaluated, which counts as holding."""

    rule: str
    effect: Effect
    detail: str | None = None
    problem: str | None = None
    asks: object = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules make of a call.

    Attributes:
        decision: the rule that decides; None lets the call pass.
        shadow: what would have decided, had no rule (or the gateway) been in shadow; None where that is the same. An `allow`
            rule here would have let through what is denied now.
        findings: every rule that holds, for `explain`.
    """

    decision: Finding | None
    shadow: Finding | None = None
    findings: tuple[Finding, ...] = ()


PASS: Final = Judgement(None)


def judge(rules: Iterable[Rule], env_of: Callable[[Rule], Environment], *, is_shadow: bool = False) -> Judgement:
    """Return what the rules make of one call.

    Args:
        rules: those that concern the operation.
        env_of: returns what a rule's condition may speak of.
        is_shadow: nothing is decided, only said.
    """
    findings: list[tuple[Rule, Finding]] = []
    closing: list[Rule] = []
    for rule in rules:
        if rule.effect is Effect.ALLOW:
            closing.append(rule)
        found = _asked(rule, env_of(rule))
        if found is not None:
            findings.append((rule, found))
    acting = None if is_shadow else _strictest([one for one in findings if not one[0].is_shadow], _open(closing))
    would = _strictest(findings, closing)
    if would is None and acting is not None:
        would = next(found for rule, found in findings if rule.effect is Effect.ALLOW and rule.is_shadow)
    all_ = tuple(found for _, found in findings)
    if acting is None and would is None and not all_:
        return PASS
    return Judgement(acting, None if would is acting or would == acting else would, all_)


def _open(closing: list[Rule]) -> list[Rule]:
    return [rule for rule in closing if not rule.is_shadow]


def _asked(rule: Rule, env: Environment) -> Finding | None:
    try:
        holds = rule.when(env) is True
    except ExpressionError as error:
        if rule.effect is Effect.ALLOW:
            return None
        return Finding(rule.name, rule.effect, rule.detail, f"it cannot be evaluated: {error}", rule.asks)
    return Finding(rule.name, rule.effect, rule.detail, None, rule.asks) if holds else None


def _strictest(findings: list[tuple[Rule, Finding]], closing: list[Rule]) -> Finding | None:
    """Return what decides among findings, or None where the call may pass; the first of equals wins."""
    if findings:
        rule, found = max(findings, key=lambda one: _STRICTNESS[one[1].effect])
        if rule.effect is not Effect.ALLOW:
            is_let = any(one.effect is Effect.ALLOW for _, one in findings)
            is_closed = bool(closing) and not is_let and _STRICTNESS[rule.effect] < _STRICTNESS[Effect.DENY]
            return _closed(closing) if is_closed else found
        return None
    return _closed(closing) if closing else None


def _closed(closing: list[Rule]) -> Finding:
    detail = next((rule.detail for rule in closing if rule.detail is not None), None)
    return Finding(CLOSED, Effect.DENY, detail)


def time_env(at: int, zone: tzinfo = UTC) -> dict[str, object]:
    """Return `time` for rules, in a zone: `ms` (UTC milliseconds), `hour`, `minute`, `weekday` (Monday is 0), `day`,
    `month`, `year`, and `date` as ISO 8601."""
    now = datetime.fromtimestamp(at / 1000, tz=zone)
    return {
        "ms": at,
        "hour": now.hour,
        "minute": now.minute,
        "weekday": now.weekday(),
        "day": now.day,
        "month": now.month,
        "year": now.year,
        "date": now.date().isoformat(),
    }
