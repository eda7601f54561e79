"""Asks the operator's rules about a call, before anything is spent on it.

Which rules concern an operation is settled when the manifest is loaded; one that none concerns does without this stage
(`concerns`). What a condition does not speak of is not made. What the rules decide, or would decide in shadow, is counted by
rule here, and in the run's own audit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Lane
from gateway.core.codes import Code
from gateway.core.environment import EVALUATED_LIMIT, request_env
from gateway.core.expression import Environment
from gateway.core.manifest import ApprovalPolicy, ApprovalSettings
from gateway.core.message import body_bytes
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.core.policy import Effect, Finding, Rule, judge, time_env
from gateway.core.tool import Catalog, Operation, ToolSpec
from gateway.core.trajectory import Trajectory
from gateway.journal.trajectories import Trajectories

__all__ = ["DECIDED", "PolicyStage", "call_facts", "run_facts"]

DECIDED = "policy/"
"""Prefix of the names under which the counts are remembered over restarts."""

_HELD = 10_000
"""Operations kept as they are once a rule holds them; those of MCP servers come and go."""

Remember = Callable[[str, bytes], None]
Contain = Callable[[Call, str, str], None]
"""Quarantines the run of a call, at once: the call, who says so, and why."""


@dataclass(slots=True)
class _Count:
    times: int = 0
    first_at: int = 0
    last_at: int = 0
    last_run: str = ""
    last_agent: str = ""


class PolicyStage:
    """Lets a call pass, refuses it, has people asked, or has its run quarantined.

    `on_quarantine` is set by whoever can do that; until then such a rule denies.
    """

    def __init__(
        self, trajectories: Trajectories, clock: Clock, remember: Remember, *, is_shadow: bool = False
    ) -> None:
        self.on_quarantine: Contain | None = None
        self.is_shadow = is_shadow
        self._trajectories = trajectories
        self._clock = clock
        self._remember = remember
        self._held: dict[tuple[Operation, str], Operation] = {}
        self._counts: dict[tuple[str, str, str, bool], _Count] = {}

    @staticmethod
    def concerns(tool: ToolSpec, operation: Operation) -> bool:
        """Whether any rule concerns the operation."""
        return bool(operation.rules)

    @staticmethod
    def may_hold(operation: Operation) -> bool:
        """Whether a rule may have people asked about a call of the operation."""
        return any(rule.effect is Effect.HOLD for rule in operation.rules)

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Ask the rules. Calls of our own (compensators, probes, what a run has left to send) are nobody's wish."""
        rules = call.operation.rules
        if not rules or call.lane is not Lane.FORWARD or call.step is not None:
            return await proceed(call)
        env = await self._environment(call, rules)
        at = self._clock.at()
        times: dict[object, dict[str, object]] = {}

        def env_of(rule: Rule) -> Environment:
            if "time" not in rule.names:
                return env
            told = times.get(rule.zone)
            if told is None:
                told = times[rule.zone] = {**env, "time": time_env(at, rule.zone)}
            return told

        judgement = judge(rules, env_of, is_shadow=self.is_shadow)
        if judgement.shadow is not None:
            self._note(call, judgement.shadow, is_shadow=True)
        decision = judgement.decision
        if decision is None:
            return await proceed(call)
        self._note(call, decision, is_shadow=False)
        if decision.effect is Effect.HOLD:
            self._hold(call, decision)
            return await proceed(call)
        if decision.effect is Effect.QUARANTINE and self.on_quarantine is not None:
            self.on_quarantine(call, f"rule {decision.rule}", _why(decision))
            return Rejected(_refusal(call, decision, Code.QUARANTINED))
        return Rejected(_refusal(call, decision, Code.POLICY_DENIED))

    def _hold(self, call: Call, finding: Finding) -> None:
        """Have people decide about this call: from here on its operation is one that needs an approval."""
        operation = call.operation
        if operation.approval is ApprovalPolicy.REQUIRED:
            return
        key = (operation, finding.rule)
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= _HELD:
                self._held.clear()
            asks = finding.asks if isinstance(finding.asks, ApprovalSettings) else ApprovalSettings()
            held = self._held[key] = replace(operation, approval=ApprovalPolicy.REQUIRED, approved_by=asks)
        call.operation = held

    # --- what the rules see

    async def _environment(self, call: Call, rules: tuple[Rule, ...]) -> dict[str, object]:
        wanted: frozenset[str] = frozenset().union(*(rule.names for rule in rules))
        env = call_facts(call)
        if "request" in wanted:
            request, body = call.request, b""
            if request.body is not None and request.body.is_replayable:
                body = await body_bytes(request.body, EVALUATED_LIMIT) or b""
            target = request.target.decode("latin-1")
            env["request"] = request_env(request.method, target, request.headers, body, call.params)
        if "trajectory" in wanted:
            env["trajectory"] = run_facts(self._state(call), self._clock.at())
        return env

    def _state(self, call: Call) -> Trajectory:
        """The run as far as it is known before it is looked up: a rule never waits for the disk."""
        run = self._trajectories.at_hand(call)
        return Trajectory(id=call.trajectory, agent=call.agent) if run is None else run.state

    # --- what they said

    def _note(self, call: Call, finding: Finding, *, is_shadow: bool) -> None:
        at = self._clock.at()
        operation = f"{call.tool.name}.{call.operation.name}"
        key = (finding.rule, finding.effect.value, operation, is_shadow)
        count = self._counts.setdefault(key, _Count(first_at=at))
        count.times += 1
        count.last_at, count.last_run, count.last_agent = at, call.trajectory, call.agent
        self._remember(DECIDED + orjson.dumps(key).decode(), orjson.dumps(count))
        run = self._trajectories.at_hand(call)
        self._trajectories.note_decision(
            call.trajectory if run is None else run.state.id,
            finding.rule,
            finding.effect.value,
            operation,
            is_shadow=is_shadow,
        )

    def note_shadow(self, call: Call, what: str, effect: Effect) -> None:
        """Count what another stage would have done, were the gateway not in shadow; `what` is in round brackets."""
        self._note(call, Finding(what, effect), is_shadow=True)

    def restore(self, remembered: dict[str, bytes]) -> None:
        """Take over the counts of earlier lives; what cannot be read is left out."""
        for name, value in remembered.items():
            try:
                rule, effect, operation, is_shadow = orjson.loads(name.removeprefix(DECIDED))
                self._counts[(rule, effect, operation, is_shadow)] = _Count(**orjson.loads(value))
            except (ValueError, TypeError):
                continue

    def reconfigure(self, catalog: Catalog) -> None:
        """Forget the counts of rules that are gone."""
        self._held.clear()
        known = {rule.name for tool in catalog.tools.values() for one in tool.operations.values() for rule in one.rules}
        self._counts = {key: count for key, count in self._counts.items() if key[0] in known or key[0].startswith("(")}

    def totals(self) -> dict[tuple[str, str, str], int]:
        """Return how often each rule decided, by rule, effect, and whether in shadow."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for (rule, effect, _, is_shadow), count in self._counts.items():
            totals[(rule, effect, str(is_shadow).lower())] += count.times
        return dict(totals)

    def statistics(self) -> dict[str, object]:
        """Return how often each rule decided, or would have; times are UTC milliseconds."""
        rows = [
            {
                "rule": rule,
                "effect": effect,
                "operation": operation,
                "is_shadow": is_shadow,
                "times": count.times,
                "first_at": count.first_at,
                "last_at": count.last_at,
                "last_run": count.last_run,
                "last_agent": count.last_agent,
            }
            for (rule, effect, operation, is_shadow), count in sorted(self._counts.items())
        ]
        return {"is_shadow": self.is_shadow, "decisions": rows}


def call_facts(call: Call) -> dict[str, object]:
    """Return the plain facts of a call that rules may speak of."""
    return {
        "agent": call.agent,
        "proven": call.is_agent_proven,
        "tool": call.tool.name,
        "operation": call.operation.name,
        "tier": call.operation.tier.value,
        "params": dict(call.params),
    }


def run_facts(state: Trajectory, at: int) -> dict[str, object]:
    """Return `trajectory` for rules: of constant size, however long the run is."""
    return {
        "id": state.id,
        "agent": state.agent,
        "state": state.phase.value,
        "labels": dict(state.labels),
        "age_s": (at - state.opened_at) / 1000 if state.opened_at else 0.0,
        "steps": len(state.steps),
        "reads": state.reads,
        "refusals": state.refusals,
        "in_doubt": len(state.in_doubt),
        "has_pivot": state.pivot is not None,
    }


def _why(finding: Finding) -> str:
    return finding.detail or finding.problem or f"the rule {finding.rule} holds for this call."


def _refusal(call: Call, finding: Finding, code: Code) -> Refusal:
    said = f" {finding.detail}" if finding.detail is not None else ""
    problem = f" ({finding.problem})" if finding.problem is not None else ""
    what = "quarantines this run" if code is Code.QUARANTINED else f"forbids {call.tool.name}.{call.operation.name}"
    advice = "" if finding.detail is not None else " Do not send it again; choose an allowed way."
    return Refusal(
        code=code,
        dependency=call.tool.name,
        detail=f"The rule {finding.rule} {what}; nothing was sent.{said}{problem}{advice}",
        extra={"rule": finding.rule, "effect": finding.effect.value},
    )
