"""Which call is a repeat of which step, and what becomes of it.

A caller's own key decides alone where there is one. Else the same action (operation and canonical arguments) in the same
run is the same step for as long as the earlier one is in flight, in doubt, or undelivered; once its answer has reached the
agent, or it certainly failed, the same action is a new step with the next occurrence. A pivot is never taken twice.

Source: design section 3, "Which call is a repeat?"; draft-ietf-httpapi-idempotency-key-header-07 (409 in flight, 422 other
content); Stripe API reference, "Idempotent requests" (a failed validation does not use the key up).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import assert_never

from gateway.core.manifest import Tier
from gateway.core.trajectory import Step, StepState, Trajectory

__all__ = [
    "Deferred",
    "Deliver",
    "Doubtful",
    "Join",
    "Mismatch",
    "New",
    "Recalled",
    "Staged",
    "Undone",
    "caller_digest",
    "recall",
]


@dataclass(frozen=True, slots=True)
class New:
    """Not a repeat: take a new step."""


@dataclass(frozen=True, slots=True)
class Join:
    """The step is in flight: wait for its outcome and share it."""

    step: Step


@dataclass(frozen=True, slots=True)
class Deliver:
    """The step is done: deliver its recorded answer."""

    step: Step


@dataclass(frozen=True, slots=True)
class Doubtful:
    """The step was sent and its effect is unknown: settle it, never send it anew."""

    step: Step


@dataclass(frozen=True, slots=True)
class Staged:
    """The step is kept until the pivot commits: say so again."""

    step: Step


@dataclass(frozen=True, slots=True)
class Deferred:
    """The step failed past the pivot and has to be done: try it again, as itself."""

    step: Step


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The caller's key names a step with other content."""

    step: Step


@dataclass(frozen=True, slots=True)
class Undone:
    """The caller's key names a step that was, or is being, undone."""

    step: Step


Recalled = New | Join | Deliver | Doubtful | Staged | Deferred | Mismatch | Undone


def recall(state: Trajectory, *, action: str, fingerprint: str, caller: str | None) -> Recalled:
    """Return what a call is in this run.

    Args:
        state: the run.
        action: digest of operation and canonical arguments.
        fingerprint: digest of the exact content.
        caller: digest of the agent's own key, or None.
    """
    number = state.actions.get(action) if caller is None else state.callers.get(caller)
    if number is None:
        return New()
    step = state.steps[number]
    if caller is not None and step.fingerprint != fingerprint:
        return Mismatch(step)
    return _by_state(step, has_key=caller is not None)


def _by_state(step: Step, *, has_key: bool) -> Recalled:
    match step.state:
        case StepState.INTENDED:
            return Join(step)
        case StepState.IN_DOUBT:
            return Doubtful(step)
        case StepState.COMMITTED:
            is_repeat = has_key or not step.is_delivered or step.tier is Tier.PIVOT
            return Deliver(step) if is_repeat else New()
        case StepState.FAILED:
            return New()
        case StepState.STAGED:
            return Staged(step)
        case StepState.DEFERRED:
            return Deferred(step)
        case StepState.COMPENSATING | StepState.COMPENSATED | StepState.SKIPPED | StepState.COMPENSATION_FAILED:
            return Undone(step) if has_key else New()
        case _ as never:
            assert_never(never)


def caller_digest(agent: str, tool: str, key: str) -> str:
    """Return the digest under which a caller's own key is remembered: scoped, so that no two agents share a key."""
    text = b"".join(len(part := p.encode()).to_bytes(4, "big") + part for p in (agent, tool, key))
    return blake2b(text, digest_size=16).hexdigest()
