"""A run as the APIs and the command line show it: plain values, no secrets, no bodies."""

from __future__ import annotations

from gateway.core.gate import leases
from gateway.core.saga import residue
from gateway.core.trajectory import Step, Trajectory

__all__ = ["trajectory_view"]


def trajectory_view(state: Trajectory, *, with_steps: bool = True) -> dict[str, object]:
    """Return `{id, state, …, steps: [{step, operation, tier, state, key}]}`; times are UTC milliseconds."""
    view: dict[str, object] = {
        "id": state.id,
        "state": state.phase.value,
        "agent": state.agent,
        "is_implicit": state.is_implicit,
        "on_abandon": state.on_abandon,
        "on_stuck": state.on_stuck,
        "ttl_s": state.ttl_s,
        "labels": state.labels,
        "opened_at": state.opened_at,
        "changed_at": state.changed_at,
        "pivot": state.pivot,
        "savepoints": list(state.savepoints),
        "rewinding": state.rewinding,
        "reads": state.reads,
        "refusals": state.refusals,
        "reason": state.reason or None,
        "incident": state.incident or None,
        "residue": [
            {"step": step.number, "operation": step.operation, "reason": step.detail} for step in residue(state)
        ],
    }
    if overdue := state.needs_recovery:
        view["needs_recovery"] = overdue
    if state.approvals:
        view["approvals"] = [{"id": one.id, "state": one.state.value} for one in state.approvals.values()]
    if state.incidents:
        view["incidents"] = [{"id": one.id, "class": one.kind, "state": one.state} for one in state.incidents]
    if (circles := state.circles) is not None:
        last = circles.last
        view["watchdog"] = {
            "interrupts": circles.interrupted, "masked": len(circles.masked), "rewinds": circles.rewinds,
            "is_deadlocked": circles.is_deadlocked,
            "last": None if last is None else {
                "pattern": last.pattern, "done": last.verdict, "operation": f"{last.tool}.{last.operation}",
                "since_step": last.since_step, "times": last.times},
        }  # fmt: skip
    if held := leases(state):
        view["leases"] = [{"name": step.lease, "step": step.number, "until": step.lease_until or None} for step in held]
    if state.plan is not None:
        view["plan"] = [{"id": one.id, "operation": f"{one.tool}.{one.operation}", "phase": one.phase, "step": one.step}
                        for one in state.plan]  # fmt: skip
    if with_steps:
        view["steps"] = [_step(step) for step in state.steps.values()]
    return view


def _step(step: Step) -> dict[str, object]:
    return {
        "step": step.number,
        "tool": step.tool,
        "operation": step.operation,
        "tier": step.tier.value,
        "state": step.state.value,
        "key": step.key,
        "intended_at": step.intended_at,
        "is_delivered": step.is_delivered,
        "compensator": None
        if step.compensator is None
        else {"tool": step.compensator.tool, "method": step.compensator.method, "target": step.compensator.target},
        "unbound": step.unbound,
        "bad": step.bad,
        "detail": step.detail or None,
        "skipped": step.skipped,
    }
