"""May the irreversible step be sent? What has to hold before, and how the answer stays true until it leaves.

The gates are asked outside (a person, a verifier, an expression); what they said is a `GatePassed` record, bound to the
action and to a snapshot of everything the run has done. The intent of the step is admitted only on exactly that snapshot:
a step that slips in between makes the clearance void, and so does time where an approval or a lease has run out. Without a
clearance nothing leaves, so a gate that is forgotten, fails or is taken out of the pipeline keeps the step in.

A lease is how long a step's effect is good for: a card authorisation, a lock, a reserved machine. Where the same lease was
renewed by a later step, the later one counts. One whose end nobody knows is over.

Source: seed 000, "The pivot boundary" (all preconditions met, all temporary leases active, paths verified, a person's
signature where policy asks for one); research, durability section 1b (a gate record with a digest of all prior outcomes).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from gateway.core.approval import ApprovalState, state_at
from gateway.core.codes import Code
from gateway.core.manifest import ApprovalPolicy, Tier
from gateway.core.outcome import Refusal
from gateway.core.tool import Operation
from gateway.core.trajectory import Step, StepState, Trajectory

__all__ = ["cleared", "closed_gate", "lease_problems", "leases", "run_env", "snapshot"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_PIVOT: Final = Tier.PIVOT
_REQUIRED: Final = ApprovalPolicy.REQUIRED


def snapshot(state: Trajectory) -> str:
    """Return a digest of all that the run has done: equal if and only if no step began, ended or was undone between."""
    digest = blake2b(digest_size=16)
    for step in state.steps.values():
        digest.update(f"{step.number}:{step.state}:{step.order};".encode())
    return digest.hexdigest()


def leases(state: Trajectory) -> list[Step]:
    """Return the step that each lease of the run rests on: of those that gave or renewed it, the one that lasts longest."""
    latest: dict[str, Step] = {}
    for number in sorted(state.leases):
        step = state.steps[number]
        if step.lease is not None and step.state is StepState.COMMITTED:
            known = latest.get(step.lease)
            if known is None or (step.lease_until or 0) >= (known.lease_until or 0):
                latest[step.lease] = step
    return list(latest.values())


def lease_problems(state: Trajectory, at: int | None, margin_s: float = 0.0) -> list[str]:
    """Return what is wrong with the leases of the run: a sentence for each that does not last until `at` plus the margin.

    `at` is UTC milliseconds; without it every lease counts as over.
    """
    problems = []
    for step in leases(state):
        left_s = ((step.lease_until or 0) - at) / 1000 if at is not None else 0.0
        if not step.lease_until:
            problems.append(f"nobody knows how long what step {step.number} ({step.operation}) gave is good for")
        elif left_s <= margin_s:
            over = f"has run out {-left_s:.0f} s ago" if left_s <= 0 else f"runs out in {left_s:.0f} s"
            problems.append(f"what step {step.number} ({step.operation}) gave {over}")
    return problems


def cleared(state: Trajectory, operation: Operation, action: str, at: int | None) -> Refusal | None:
    """Return why a step may not be intended, or None if it needs no clearance or has one that still holds.

    Args:
        state: the run, as it is at this moment.
        operation: what the step does.
        action: digest of its exact arguments, hexadecimal.
        at: UTC milliseconds.
    """
    if operation.tier is _PIVOT and not operation.is_staged and (problems := lease_problems(state, at)):
        return closed_gate(operation.name, problems)
    if operation.approval is not _REQUIRED and not operation.gates:
        return None
    clearance = state.clearance
    if clearance is None or clearance.action != action:
        return closed_gate(operation.name, ["its gates have not let it pass"])
    if clearance.snapshot != snapshot(state):
        return closed_gate(operation.name, ["the run went on while its gates were asked"])
    if operation.approval is ApprovalPolicy.REQUIRED:
        approval = state.approvals.get(clearance.approval or "")
        if approval is None or approval.asked.action != action or state_at(approval, at) is not ApprovalState.GRANTED:
            return closed_gate(operation.name, ["it has no approval that may be used"])
    return None


def closed_gate(operation: str, problems: list[str]) -> Refusal:
    """Return the refusal of a gate, naming everything that is in the way."""
    return Refusal(
        code=Code.PIVOT_GATE,
        detail=f"{operation} was not sent: {'; '.join(problems)}. Resolve that and send it again, or abort the run.",
        extra={"problems": problems},
    )


def run_env(state: Trajectory, at: int, replies: Mapping[int, object]) -> dict[str, object]:
    """Return `trajectory` for expressions at the gate.

    `trajectory.steps` has every step that is not a read, with what its tool answered (`response.status`,
    `response.json`; null where the answer is large): evidence, where the agent's own word would be none.
    """
    return {
        "id": state.id,
        "agent": state.agent,
        "state": state.phase.value,
        "labels": dict(state.labels),
        "age_s": (at - state.opened_at) / 1000,
        "steps": [
            {
                "number": step.number,
                "tool": step.tool,
                "operation": step.operation,
                "tier": step.tier.value,
                "state": step.state.value,
                "is_bad": step.bad is not None,
                "response": replies.get(step.number),
            }
            for step in state.steps.values()
        ],
    }
