"""Rules about calls: checked, compiled, and handed to those operations that they concern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.config.cel import ExpressionProblem, compile_condition
from gateway.config.errors import Problems, nearest, shown
from gateway.config.loader import Entry, Loaded
from gateway.core.manifest import ApprovalSettings, Tier
from gateway.core.policy import POLICY_NAMES, Effect, Rule, RuleSettings
from gateway.core.tool import Operation

__all__ = ["CompiledRule", "compile_rules", "rules_for"]


class CompiledRule:
    """A rule and what it concerns."""

    __slots__ = ("operations", "rule", "settings", "tiers", "tools")

    def __init__(self, rule: Rule, settings: RuleSettings) -> None:
        self.rule = rule
        self.settings = settings
        self.tools = frozenset(settings.tools)
        self.operations = frozenset(settings.operations)
        self.tiers = frozenset(Tier(tier) for tier in settings.tiers)

    def concerns(self, tool: str, operation: Operation) -> bool:
        """Whether a call of the operation has to ask it."""
        if self.tools and tool not in self.tools:
            return False
        if self.tiers and operation.tier not in self.tiers:
            return False
        return (
            not self.operations
            or operation.name in self.operations
            or f"{tool}.{operation.name}" in self.operations
            or not operation.is_declared
        )


def compile_rules(loaded: Loaded, problems: Problems) -> list[CompiledRule]:
    """Return the rules that are well-formed, in the order of the files; what is wrong goes to `problems`."""
    compiled = []
    for name, entry in loaded.rules.items():
        rule = _rule(name, entry, loaded, problems)
        if rule is not None:
            compiled.append(CompiledRule(rule, entry.settings))
    return compiled


def rules_for(rules: Iterable[CompiledRule], tool: str, operation: Operation) -> tuple[Rule, ...]:
    """Return the rules that calls of an operation have to ask. A call that no operation declares asks a rule for certain
    operations too: another spelling of a path must not get past it."""
    return tuple(one.rule for one in rules if one.concerns(tool, operation))


def _rule(name: str, entry: Entry[RuleSettings], loaded: Loaded, problems: Problems) -> Rule | None:
    settings = entry.settings
    _check_scope(entry, loaded, problems)
    asks = _asks(entry, loaded, problems)
    try:
        zone = ZoneInfo(settings.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        problems.add(entry.at("timezone"), f"unknown zone `{shown(settings.timezone)}`", "as in `Europe/Berlin`")
        return None
    try:
        when = compile_condition(settings.when, POLICY_NAMES)
    except ExpressionProblem as problem:
        problems.add(entry.at("when"), str(problem), problem.hint)
        return None
    return Rule(
        name=name,
        effect=settings.effect,
        when=when,
        names=when.names,
        detail=settings.detail,
        asks=asks,
        zone=zone,
        is_shadow=settings.shadow,
    )


def _check_scope(entry: Entry[RuleSettings], loaded: Loaded, problems: Problems) -> None:
    tools = loaded.names["tools"]
    for index, tool in enumerate(entry.settings.tools):
        if tool not in tools:
            problems.add(entry.at("tools", index), f"unknown tool `{shown(tool)}`", nearest(tool, tools))
    declared = _declared(loaded)
    for index, operation in enumerate(entry.settings.operations):
        if operation not in declared:
            problems.add(
                entry.at("operations", index),
                f"no tool declares an operation `{shown(operation)}`",
                nearest(operation, declared),
            )


def _declared(loaded: Loaded) -> Mapping[str, object]:
    known: dict[str, object] = {}
    for tool, entry in loaded.tools.items():
        for operation in entry.settings.operations:
            known[operation] = known[f"{tool}.{operation}"] = None
    return known


def _asks(entry: Entry[RuleSettings], loaded: Loaded, problems: Problems) -> ApprovalSettings | None:
    name = entry.settings.approval
    if name is not None and entry.settings.effect is not Effect.HOLD:
        problems.add(entry.at("approval"), "`approval` says who decides about what is held", "use `effect: hold`")
    if name is not None and name not in loaded.names["approvals"]:
        known = loaded.names["approvals"]
        problems.add(entry.at("approval"), f"unknown approval policy `{shown(name)}`", nearest(name, known))
    policy = loaded.approvals.get(name or "default")
    return None if policy is None else policy.settings
