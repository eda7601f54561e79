"""The ordered list of stages, each line with the reason for its place (design section 3).

A stage wraps all that come after it. Forward calls, compensators and probes go down the same road; stages that do not
concern a lane let it pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.core.call import Handler, Stage
from gateway.stages.admission import AdmissionStage
from gateway.stages.approval import ApprovalStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.outbox import OutboxStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage

__all__ = ["Stages", "compose"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One of each, made by the composition root."""

    telemetry: TelemetryStage
    recovery: RecoveryStage
    budget: BudgetStage
    watchdog: WatchdogStage
    idempotency: IdempotencyStage
    saga: SagaStage
    approval: ApprovalStage
    outbox: OutboxStage
    deadline: DeadlineStage
    retry: RetryStage
    admission: AdmissionStage
    breaker: BreakerStage
    journal: JournalStage
    dispatch: Dispatch

    def pipeline(self) -> Handler:
        """Return the handler that a call is given to."""
        return compose(
            (
                self.telemetry,  # sees everything; turns a bug into ERR_INTERNAL
                self.recovery,  # sees what the agent is about to read, refusals of every stage below included
                # quarantine comes here: what is quarantined stops before anything looks at it
                # policy comes here: a rule's "no" costs nothing
                self.budget,  # beside the rules: what the run cannot afford costs nothing; runs without caps just pass
                self.watchdog,  # loops are stopped before they spend; a tool with `watch: {mode: off}` leaves it out
                self.idempotency,  # before the saga: a repeat is not a new step and needs no new legality
                self.saga,  # before the queue: an illegal step never waits; after all attempts: one outcome, one record
                self.approval,  # the gate in front of a pivot, once the step is known to be legal; waits hold no slot
                self.outbox,  # what only leaves with the pivot is kept here: gated like any call, queued by none
                self.deadline,  # bounds everything inside: attempts, waits, queue
                self.retry,  # owns the attempts; each of them queues and asks the breaker anew
                self.admission,  # one queue grants slot and rate token together; peeks at the breaker first
                self.breaker,  # the permit is taken at dispatch, so that no queued call holds one
                self.journal,  # innermost: refusals above never touch the disk, nothing below is unrecorded
            ),
            self.dispatch,
        )


def compose(stages: Sequence[Stage], innermost: Handler) -> Handler:
    """Return a handler that runs the stages from the outside in, and `innermost` last."""
    handler = innermost
    for stage in reversed(stages):
        handler = partial(stage.__call__, proceed=handler)
    return handler
