"""The ordered list of stages, each line with the reason for its place (design section 3).

A stage wraps all that come after it. Forward calls, compensators and probes go down the same road; a forward call's road
leaves out the stages that have nothing to say about its operation, so that nobody pays for what he does not use. Roads are
laid out once per operation, from what the manifest says, and kept until the manifest says something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.core.call import FORWARD, Call, Foreseeing, Handler, Passable, Stage
from gateway.core.outcome import Outcome, Rejected
from gateway.core.tool import Operation, ToolSpec
from gateway.core.value import frozen
from gateway.ordinary import ordinary
from gateway.stages.admission import AdmissionStage
from gateway.stages.approval import ApprovalStage, is_gated
from gateway.stages.breaker import BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.hold import HoldStage
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.outbox import OutboxStage
from gateway.stages.policy import PolicyStage
from gateway.stages.quarantine import QuarantineStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage, watched

__all__ = ["Concerns", "Pipeline", "Stages", "compose"]

Concerns = Callable[[ToolSpec, Operation], bool]
"""Whether a stage has anything to do for forward calls of an operation. Depends on nothing but the manifest."""

_ROADS = 10_000
"""Roads kept; operations of MCP servers come and go."""


def _always(tool: ToolSpec, operation: Operation) -> bool:
    return True


def _writes(tool: ToolSpec, operation: Operation) -> bool:
    return not operation.is_read


def _gated(tool: ToolSpec, operation: Operation) -> bool:
    return is_gated(tool, operation) or PolicyStage.may_hold(operation)


def _staged(tool: ToolSpec, operation: Operation) -> bool:
    return operation.is_staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """One of each, made by the composition root."""

    telemetry: TelemetryStage
    recovery: RecoveryStage
    budget: BudgetStage
    watchdog: WatchdogStage
    quarantine: QuarantineStage
    hold: HoldStage
    policy: PolicyStage
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

    def pipeline(self) -> Pipeline:
        """Return the handler that a call is given to."""
        return Pipeline(
            (
                (self.telemetry, _always),  # sees everything; turns a bug into ERR_INTERNAL
                # sees what the agent is about to read, refusals of every stage below included
                (self.recovery, _writes),
                (self.policy, PolicyStage.concerns),  # before anything is looked up: a rule's "no" costs nothing
                # beside the rules: what a run cannot afford costs nothing; without caps it passes
                (self.budget, _always),
                (self.watchdog, watched),  # loops are stopped before they spend
                (self.idempotency, _always),  # before the saga: a repeat is not a new step and needs no new legality
                # once the run is known: what is tainted stops, and no edge between artifacts is missed
                (self.quarantine, QuarantineStage.concerns),
                (self.hold, HoldStage.concerns),  # a claim without proof stops here, with nothing spent on it
                # before the queue: an illegal step never waits; after all attempts: one outcome, one record
                (self.saga, _always),
                # in front of a pivot, once the step is known to be legal; waits hold no slot
                (self.approval, _gated),
                # what only leaves with the pivot is kept here: gated like any call, queued by none
                (self.outbox, _staged),
                (self.deadline, _always),  # bounds everything inside: attempts, waits, queue
                (self.retry, _always),  # owns the attempts; each of them queues and asks the breaker anew
                (self.admission, _always),  # one queue grants slot and rate token together; peeks at the breaker first
                (self.breaker, _always),  # the permit is taken at dispatch, so that no queued call holds one
                (self.journal, _writes),  # innermost: refusals above never touch the disk, nothing below is unrecorded
            ),
            self.dispatch,
        )


@frozen(kw_only=False)
class _Road:
    """What the forward calls of an operation of `tool` pass, and the short cut of those that are refused at its end.

    Attributes:
        foresee: says whether a call would be refused; None where there is no short cut.
        asked, begun, told: of the stages in front, whether they let a call pass; what they do before they hand it on, once
            all do; and what they do with its refusal, from the inside out, as refusals travel.
    """

    tool: ToolSpec
    handler: Handler
    foresee: Callable[[Call], Rejected | None] | None
    asked: tuple[Callable[[Call], bool], ...]
    begun: tuple[Callable[[Call], None], ...]
    told: tuple[Callable[[Call, Rejected], Rejected], ...]


def _shortcut(
    stages: Sequence[Stage],
) -> tuple[
    Callable[[Call], Rejected | None] | None,
    tuple[Callable[[Call], bool], ...],
    tuple[Callable[[Call], None], ...],
    tuple[Callable[[Call, Rejected], Rejected], ...],
]:
    """Return the short cut of a road, from the queue outwards; none where it passes a stage that does more than look."""
    in_front: list[Passable] = []
    for stage in stages:
        if isinstance(stage, Foreseeing):
            asked = [one.lets_pass for one in reversed(in_front) if type(one).lets_pass is not Passable.lets_pass]
            begun = [one.passed for one in in_front if type(one).passed is not Passable.passed]
            told = [one.refused for one in reversed(in_front) if type(one).refused is not Passable.refused]
            return stage.foresee, tuple(asked), tuple(begun), (stage.refused, *told)
        if not isinstance(stage, Passable):
            break
        in_front.append(stage)
    return None, (), (), ()


class Pipeline:
    """A handler that takes each call down the road of its operation. Calls that are our own go down the whole road."""

    def __init__(self, stages: Sequence[tuple[Stage, Concerns]], innermost: Handler) -> None:
        self._stages = stages
        self._innermost = innermost
        self._whole = compose([stage for stage, _ in stages], innermost)
        self._roads: dict[Operation, _Road] = {}

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        """Return the outcome of the call."""
        if call.lane is not FORWARD:
            return self._whole(call)
        road = self._roads.get(call.operation)
        if road is None or road.tool is not call.tool:
            road = self._lay_out(call.tool, call.operation)
        return road.handler(call)

    def refused_at_once(self, call: Call) -> Rejected | None:
        """Return the refusal that a fresh forward call meets at the queue or the breaker, where it meets one and all stages
        in front of them would only let it pass: what `await self(call)` would return, and everything done that it would do.

        None, and nothing done that anybody would notice, in every other case: then the call has to be made.
        """
        road = self._roads.get(call.operation)
        if road is None or road.tool is not call.tool:
            road = self._lay_out(call.tool, call.operation)
        outcome = None if road.foresee is None else road.foresee(call)
        if outcome is None:
            return None
        for lets_pass in road.asked:
            if not lets_pass(call):
                return None
        for passed in road.begun:
            passed(call)
        for refused in road.told:
            outcome = refused(call, outcome)
        return outcome

    def reconfigure(self) -> None:
        """Forget the roads of operations that may be gone."""
        self._roads.clear()

    def _lay_out(self, tool: ToolSpec, operation: Operation) -> _Road:
        if len(self._roads) >= _ROADS:
            self._roads.clear()
        stages = [stage for stage, concerns in self._stages if concerns(tool, operation)]
        handler = ordinary(stages, self._innermost, tool, operation, compose) or compose(stages, self._innermost)
        road = self._roads[operation] = _Road(tool, handler, *_shortcut(stages))
        return road


def compose(stages: Sequence[Stage], innermost: Handler) -> Handler:
    """Return a handler that runs the stages from the outside in, and `innermost` last."""
    handler = innermost
    for stage in reversed(stages):
        handler = _wrapped(stage, handler)
    return handler


def _wrapped(stage: Stage, proceed: Handler) -> Handler:
    act = stage.__call__  # bound once: a call of the instance would look it up each time
    return lambda call: act(call, proceed)
