"""People decide on one exact call: who may, how many must, by when, and what a decision is worth.

        pending ──(N of M approve)──► granted ──(its step is intended)──► used
           │  │                          │ │                               │
           │  └──(one rejects)──► rejected◄┘ └──(not used in time)──► expired └──(certainly no effect)──► granted
           └──(time is up)──► expired                 any of the living ──(the run is undone or over)──► void

An approval is bound to the digest of the canonical arguments, to the run and to where the call would go; nothing else can
use it. Whatever is not a clear yes is a no: time running out, a rejection after an approval, a principal who is not named,
the agent itself. A vote that is cast twice counts once, so a double click changes nothing.

Source: design section 4; archestra-ai/archestra#5132 (an approval clicked twice dispatched twice), verifywise-ai/
verifywise#4078 (an approval that was not tied to the arguments).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.codes import Code
from gateway.core.outcome import Refusal
from gateway.core.records import ApprovalDecided, ApprovalExpired, ApprovalRequested, Record

__all__ = [
    "Approval",
    "ApprovalState",
    "Verdict",
    "Vote",
    "approval_view",
    "expired",
    "fold_approval",
    "state_at",
    "vote",
]


class ApprovalState(StrEnum):
    """Where an approval stands."""

    PENDING = "pending"
    GRANTED = "granted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    USED = "used"
    VOID = "void"


class Verdict(StrEnum):
    """What a person may say."""

    APPROVE = "approve"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Vote:
    """What one person said, why, and when (UTC milliseconds)."""

    verdict: Verdict
    reason: str
    at: int


@dataclass(slots=True)
class Approval:
    """One approval as its records left it. `step` is the one that used it."""

    asked: ApprovalRequested
    requested_at: int
    state: ApprovalState = ApprovalState.PENDING
    votes: dict[str, Vote] = field(default_factory=dict)
    use_until: int | None = None
    step: int | None = None

    @property
    def id(self) -> str:
        """Its name."""
        return self.asked.approval

    @property
    def approved_by(self) -> list[str]:
        """Who said yes."""
        return [name for name, cast in self.votes.items() if cast.verdict is Verdict.APPROVE]

    @property
    def is_living(self) -> bool:
        """Whether it may still be decided or used."""
        return self.state in (ApprovalState.PENDING, ApprovalState.GRANTED)


def fold_approval(
    approvals: dict[str, Approval], record: ApprovalRequested | ApprovalDecided | ApprovalExpired, at: int
) -> None:
    """Fold a record into a run's approvals, which are changed. Raises `KeyError` if it names none of them."""
    if isinstance(record, ApprovalRequested):
        approvals[record.approval] = Approval(record, at)
        return
    approval = approvals[record.approval]
    if isinstance(record, ApprovalExpired):
        approval.state = ApprovalState.EXPIRED
        return
    verdict = Verdict(record.verdict)
    approval.votes[record.principal] = Vote(verdict, record.reason, at)
    if verdict is Verdict.REJECT:
        approval.state = ApprovalState.REJECTED
    elif record.use_until is not None:
        approval.state, approval.use_until = ApprovalState.GRANTED, record.use_until


def state_at(approval: Approval, at: int | None) -> ApprovalState:
    """Return where it stands at a time: out of time is expired, written down or not; so is everything at no time."""
    limit = approval.asked.expires_at if approval.state is ApprovalState.PENDING else approval.use_until
    is_late = at is None or (limit is not None and at >= limit)
    return ApprovalState.EXPIRED if approval.is_living and is_late else approval.state


def vote(approval: Approval, verdict: Verdict, principal: str, reason: str, at: int) -> list[Record] | Refusal:
    """Return the record of a vote (none if it was cast before), or why it does not count.

    Args:
        approval: what is decided on; not changed.
        verdict: yes or no.
        principal: who says so.
        reason: why; it is journaled.
        at: UTC milliseconds.
    """
    asked, stands = approval.asked, state_at(approval, at)
    if not principal or (asked.approvers and principal not in asked.approvers) or principal == asked.agent:
        return Refusal(
            code=Code.POLICY_DENIED,
            detail=f"{principal or 'Nobody'} may not decide on {approval.id}; "
            + (
                f"ask {', '.join(asked.approvers)}." if asked.approvers else "an agent does not decide on its own call."
            ),
        )
    cast = approval.votes.get(principal)
    if cast is not None and cast.verdict is verdict and stands not in (ApprovalState.EXPIRED, ApprovalState.VOID):
        return []
    is_revocation = verdict is Verdict.REJECT and stands is ApprovalState.GRANTED
    if stands is not ApprovalState.PENDING and not is_revocation:
        return _over(approval, stands)
    decided = ApprovalDecided(approval=approval.id, principal=principal, verdict=verdict.value, reason=reason)
    if verdict is Verdict.APPROVE and len(approval.approved_by) + 1 >= asked.required:
        decided = ApprovalDecided(
            approval=approval.id,
            principal=principal,
            verdict=verdict.value,
            reason=reason,
            use_until=at + asked.valid_ms,
        )
    return [decided]


def _over(approval: Approval, stands: ApprovalState) -> Refusal:
    how = f"used by step {approval.step}" if stands is ApprovalState.USED else stands.value
    return Refusal(
        code=Code.ALREADY_DECIDED,
        detail=f"Approval {approval.id} is {how}, so nothing more can be decided about it. The agent has to ask anew in "
        "another run.",
        extra={"state": stands.value},
    )


def expired(approvals: Mapping[str, Approval], at: int) -> list[Record]:
    """Return a record for each approval whose time is up; none for those that are over already."""
    return [
        ApprovalExpired(approval=one.id)
        for one in approvals.values()
        if one.is_living and state_at(one, at) is ApprovalState.EXPIRED
    ]


def approval_view(approval: Approval, run: str, at: int) -> dict[str, object]:
    """Return an approval as the APIs show it: what is asked, exactly, and who said what. Times are UTC milliseconds."""
    asked = approval.asked
    return {
        "id": approval.id,
        "state": state_at(approval, at).value,
        "trajectory": run,
        "agent": asked.agent,
        "tool": asked.tool,
        "operation": asked.operation,
        "tier": asked.tier,
        "call": {
            "method": asked.method,
            "origin": asked.origin,
            "target": asked.target,
            "content_type": asked.content_type,
            "body": asked.body,
            "body_bytes": asked.body_bytes,
            "body_digest": asked.body_digest,
            "action": asked.action,
        },
        "required": asked.required,
        "approvers": asked.approvers,
        "votes": [
            {"principal": name, "verdict": cast.verdict.value, "reason": cast.reason, "at": cast.at}
            for name, cast in approval.votes.items()
        ],
        "requested_at": approval.requested_at,
        "expires_at": asked.expires_at,
        "use_until": approval.use_until,
        "step": approval.step,
    }
