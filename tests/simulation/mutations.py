"""The protocol with one step taken out: each must turn the simulation red, or the simulation shows nothing.

A mutation patches the real code in one place. The name is the step that is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from gateway.core import approval, budget, gate, saga, settle, trajectory, watchdog
from gateway.core.call import Lane
from gateway.core.manifest import Tier
from gateway.core.outbox import Send
from gateway.core.outcome import Failed, InDoubt, Success
from gateway.core.records import StepCommitted, StepReleased
from gateway.core.saga import Nothing, Stuck, Undo, Wait
from gateway.core.sparse import including
from gateway.core.trajectory import Phase, StepState
from gateway.ingress import desk
from gateway.journal import trajectories
from gateway.stages import approval as approval_stage
from gateway.stages import dispatch, idempotency, journal, outbox, retry
from gateway.stages import saga as saga_stage
from gateway.workers import finalizer, settler, unwinder
from tests.simulation import process

__all__ = ["MUTATIONS"]

Mutation = Callable[[], AbstractContextManager[Any]]
MUTATIONS: dict[str, Mutation] = {}


def mutation(name: str) -> Callable[[Callable[[], AbstractContextManager[Any]]], Mutation]:
    def add(patch: Mutation) -> Mutation:
        MUTATIONS[name] = patch
        return patch

    return add


_patch = mock.patch.object


@mutation("the intent is durable before the call leaves")
def _intent_not_awaited() -> AbstractContextManager[Any]:
    async def at_once(self: object, run: object, call: object, future: object) -> None:
        return None

    return _patch(journal.JournalStage, "_durable", at_once)


@mutation("the intent to undo is durable before the compensator leaves")
def _undo_intent_not_awaited() -> AbstractContextManager[Any]:
    real = journal.JournalStage._intend_compensation

    async def at_once(self: Any, run: Any, call: Any) -> None:
        waiting = asyncio.ensure_future(real(self, run, call))
        await asyncio.sleep(0)
        del waiting
        call.is_committed_to_send = True

    return _patch(journal.JournalStage, "_intend_compensation", at_once)


@mutation("the outcome and its compensator are durable before the agent has the answer")
def _outcome_not_awaited() -> AbstractContextManager[Any]:
    real = trajectories.Trajectories.record

    def record(self: Any, run: Any, records: Any, **more: Any) -> Any:
        future = real(self, run, records, **more)
        if any(isinstance(each, StepCommitted) for each in records):
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return future

    return _patch(trajectories.Trajectories, "record", record)


@mutation("the key of a step stays the same over restarts")
def _new_keys() -> AbstractContextManager[Any]:
    count = itertools.count()
    return _keyed_by(lambda: f"k{next(count)}")


def _keyed_by(key: Callable[[], str | None]) -> AbstractContextManager[Any]:
    real = dispatch.Dispatch._request

    def fresh(self: Any, call: Any) -> Any:
        old, call.key = call.key, key()
        try:
            return real(self, call)
        finally:
            call.key = old

    return _patch(dispatch.Dispatch, "_request", fresh)


@mutation("a compensator has one key for all its attempts")
def _new_undo_keys() -> AbstractContextManager[Any]:
    count = itertools.count()
    return _patch(unwinder, "undo_key", lambda *args: f"u{next(count)}")


@mutation("the key is sent")
def _no_key() -> AbstractContextManager[Any]:
    return _keyed_by(lambda: None)


@mutation("a loop is held back")
def _no_watchdog() -> AbstractContextManager[Any]:
    return _patch(watchdog.Watchdog, "check", lambda self, action, *, is_read: None)


@mutation("a cap of steps is kept over restarts")
def _no_meter() -> AbstractContextManager[Any]:
    return _patch(budget.Meter, "spent", lambda self, at, *, is_step, is_retry: None)


@mutation("unwinding is last in, first out")
def _fifo() -> AbstractContextManager[Any]:
    def first(state: Any) -> Any:
        left = [s for s in state.steps.values() if s.is_to_undo]
        if not left:
            return Nothing() if not state.in_flight else Wait(state.steps[min(state.in_flight)])
        return saga._undo(min(left, key=lambda step: step.order))

    return _both("next_undo", first)


@contextlib.contextmanager
def _both(name: str, value: object) -> Iterator[None]:
    with _patch(saga, name, value), _patch(unwinder, name, value):
        yield


@mutation("unwinding waits for what is in flight")
def _no_wait() -> AbstractContextManager[Any]:
    real = saga.next_undo

    def hasty(state: Any) -> Any:
        flying, state.in_flight = state.in_flight, set()
        try:
            return real(state)
        finally:
            state.in_flight = flying

    return _both("next_undo", hasty)


@mutation("a step in doubt is settled before it is undone")
def _doubt_skipped() -> AbstractContextManager[Any]:
    real = saga.next_undo

    def careless(state: Any) -> Any:
        plan = real(state)
        return saga.Skip(plan.step, "in doubt", is_residue=False) if isinstance(plan, Stuck) else plan

    return _both("next_undo", careless)


@mutation("what never landed is not undone")
def _undo_all() -> AbstractContextManager[Any]:
    from gateway.core.tool import BoundRequest

    real = saga._undo

    def always(step: Any) -> Any:
        if step.state is StepState.FAILED and step.tier is Tier.COMPENSABLE:
            item = f"{step.tool}-0"
            step.compensator = BoundRequest(step.tool, "DELETE", f"/undo/{item}/id-{item}")
            return Undo(step)
        return real(step)

    return _patch(saga, "_undo", always)


@mutation("an attempt in doubt is settled before it is repeated")
def _blind_retry() -> AbstractContextManager[Any]:
    async def assumed(self: Any, call: Any, proceed: Any, budget: Any, doubt: InDoubt) -> Failed:
        return Failed(doubt.fault, doubt.refusal)

    return _patch(retry.RetryStage, "_settled", assumed)


@mutation("absence counts only when the call can no longer land")
def _no_delay() -> AbstractContextManager[Any]:
    real = settle.Inquiry.begun.__func__  # type: ignore[attr-defined]
    return _patch(
        settle.Inquiry,
        "begun",
        classmethod(
            lambda cls, probe, given_up, now: real(cls, dataclasses.replace(probe, delay_s=0.0), given_up, now)
        ),
    )


@mutation("absence needs a second answer")
def _one_answer() -> AbstractContextManager[Any]:
    real = settle.Inquiry.told

    def told(self: Any, answer: Any, asked_at: float) -> Any:
        return answer if answer.verdict is settle.Verdict.NOT_LANDED else real(self, answer, asked_at)

    return _patch(settle.Inquiry, "told", told)


@mutation("unknown is not taken for absence")
def _unknown_is_absent() -> AbstractContextManager[Any]:
    real = settle.Inquiry.told

    def told(self: Any, answer: Any, asked_at: float) -> Any:
        is_unknown = answer.verdict is settle.Verdict.UNKNOWN
        taken = dataclasses.replace(answer, verdict=settle.Verdict.NOT_LANDED) if is_unknown else answer
        return real(self, taken, asked_at)

    return _patch(settle.Inquiry, "told", told)


@mutation("nothing is sent again after the tool forgot the key")
def _no_window() -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in (journal, retry, idempotency, settler):
                stack.enter_context(_patch(module, "why_not_resent", lambda *args: None))
            stack.enter_context(_patch(retry, "may_resend_until", lambda *args: float("inf")))
            yield

    return everywhere()


@mutation("a call without a key is not sent again")
def _no_key_needed() -> AbstractContextManager[Any]:
    return _no_window()


@mutation("what a crash left in flight is in doubt")
def _crash_means_failed() -> AbstractContextManager[Any]:
    from gateway.core.records import StepFailed

    return _patch(
        trajectories, "_crashed", lambda number: StepFailed(step=number, fault="crash", detail="taken for failed")
    )


@mutation("one pivot at most, and nothing undoable after it")
def _no_pivot_order() -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        def any_step(state: Any, operation: Any) -> Any:
            return None if state.phase in (Phase.PREPARING, Phase.FINALIZING) else saga._closed(state)

        with contextlib.ExitStack() as stack:
            stack.enter_context(_patch(saga, "admits", any_step))
            stack.enter_context(_patch(saga_stage, "admits", any_step))
            stack.enter_context(_patch(trajectory, "_expect", lambda *args: None))
            yield

    return everywhere()


@mutation("a run that sent its pivot is not undone")
def _undo_after_pivot() -> AbstractContextManager[Any]:
    def abort(state: Any, command: Any) -> Any:
        if state.phase in (Phase.PREPARING, Phase.FINALIZING):
            return [saga.UnwindingStarted(reason=command.reason)]
        return []

    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        with _patch(saga, "_abort", abort), _patch(trajectory, "_expect", lambda *args: None):
            yield

    return everywhere()


@mutation("the pivot waits until everything before it is settled")
def _no_gate() -> AbstractContextManager[Any]:
    return _patch(saga, "_pivot_gate", lambda state, operation: None)


@mutation("a run is committed only when nothing in it is in doubt")
def _commit_in_doubt() -> AbstractContextManager[Any]:
    from gateway.core.records import TrajectoryCommitted

    def commit(state: Any, command: Any) -> Any:
        is_open = state.phase in (Phase.PREPARING, Phase.FINALIZING)
        return [TrajectoryCommitted()] if is_open else []

    return _patch(saga, "_commit", commit)


@mutation("the compensator is bound when the step commits")
def _not_bound() -> AbstractContextManager[Any]:
    return _patch(saga_stage, "_bind", lambda call, env: (None, None))


@mutation("a repeat of the agent is the same step")
def _no_recall() -> AbstractContextManager[Any]:
    return _patch(idempotency, "recall", lambda *args, **more: idempotency.New())


@mutation("what was undone is recorded")
def _undone_twice() -> AbstractContextManager[Any]:
    async def forget(self: Any, run: Any, step: Any, outcome: Any, *, is_proven: bool) -> None:
        run.state.steps[step.number].state = StepState.COMPENSATED

    return _patch(unwinder.Unwinder, "_finish", forget)


@mutation("an unwinding run admits no new step")
def _open_while_undone() -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_patch(saga, "admits", lambda state, operation: None))
            stack.enter_context(_patch(saga_stage, "admits", lambda *args: None))
            stack.enter_context(_patch(trajectory, "_expect", lambda *args: None))
            yield

    return everywhere()


@mutation("a stuck compensator stops the unwinding")
def _go_on_when_stuck() -> AbstractContextManager[Any]:
    real = saga._refuse_compensation

    def refuse(state: Any, command: Any) -> Any:
        return real(state, command)[:1]

    return _patch(saga, "_refuse_compensation", refuse)


@mutation("doubts are settled in the background")
def _no_settler() -> AbstractContextManager[Any]:
    return _patch(settler.Settler, "run_once", lambda self: 0)


@mutation("a rewind stops at its savepoint")
def _rewind_all() -> AbstractContextManager[Any]:
    return _patch(trajectory.Trajectory, "undone_since", property(lambda self: 0))


@mutation("a rewind undoes what came after its savepoint")
def _rewind_nothing() -> AbstractContextManager[Any]:
    def since(self: Any) -> int:
        return 0 if self.rewinding is None else 10_000

    return _patch(trajectory.Trajectory, "undone_since", property(since))


@mutation("a connection that broke leaves the tool its time")
def _no_grace() -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in (idempotency, retry):
                stack.enter_context(_patch(module, "still_working_s", lambda *args: 0.0))
            yield

    return everywhere()


# --- gates, approvals, the outbox


def _all(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return everywhere()


@mutation("what is staged waits for the pivot")
def _staged_at_once() -> AbstractContextManager[Any]:
    real = outbox.OutboxStage.__call__

    async def at_once(self: Any, call: Any, proceed: Any) -> Any:
        staged = await real(self, call, proceed)
        is_new = call.operation.is_staged and call.lane is Lane.FORWARD and isinstance(staged, Success)
        return await proceed(call) if is_new else staged

    return _all(_patch(outbox.OutboxStage, "__call__", at_once), _patch(trajectory, "_expect", lambda *args: None))


@mutation("a release is durable before the call leaves")
def _release_not_awaited() -> AbstractContextManager[Any]:
    async def hasty(self: Any, run: Any, call: Any, number: int) -> None:
        run.busy = including(run.busy, number)
        call.is_committed_to_send = True
        if run.state.steps[number].state in (StepState.STAGED, StepState.DEFERRED):
            self._trajectories.record(run, [StepReleased(step=number)])

    return _patch(journal.JournalStage, "_again", hasty)


@mutation("staged calls leave in order")
def _latest_first() -> AbstractContextManager[Any]:
    real = finalizer.next_finish

    def latest(state: Any) -> Any:
        left = [state.steps[n] for n in state.staged | state.deferred]
        return Send(max(left, key=lambda step: step.number)) if left and not state.released else real(state)

    return _patch(finalizer, "next_finish", latest)


@mutation("gates are asked")
def _gates_skipped() -> AbstractContextManager[Any]:
    async def passing(self: Any, call: Any, proceed: Any) -> Any:
        return await proceed(call)

    return _all(_patch(approval_stage.ApprovalStage, "__call__", passing), _patch(saga, "cleared", lambda *args: None))


@mutation("what the gates said is void once the run went on")
def _no_snapshot() -> AbstractContextManager[Any]:
    return _all(_patch(gate, "snapshot", lambda state: ""), _patch(approval_stage, "snapshot", lambda state: ""))


@mutation("an approval is for exactly these arguments")
def _any_arguments() -> AbstractContextManager[Any]:
    real = saga.cleared

    def latest(self: Any, state: Any, call: Any) -> Any:
        return next(reversed(state.approvals.values()), None)

    def lax(state: Any, operation: Any, action: str, at: int) -> Any:
        for one in state.approvals.values():
            one.asked = dataclasses.replace(one.asked, action=action)
        return real(state, operation, action, at)

    return _all(_patch(approval_stage.ApprovalStage, "_latest", latest), _patch(saga, "cleared", lax))


@mutation("an approval runs out")
def _for_ever() -> AbstractContextManager[Any]:
    real = approval.state_at

    def timeless(one: Any, at: Any) -> Any:
        return one.state if one.state is approval.ApprovalState.GRANTED else real(one, at)

    return _all(*(_patch(module, "state_at", timeless) for module in (approval, gate, approval_stage)))


@mutation("a rejection is a no")
def _deaf() -> AbstractContextManager[Any]:
    real = trajectory.fold_approval

    def hear(approvals: Any, record: Any, at: int) -> None:
        if getattr(record, "verdict", "") != "reject":
            real(approvals, record, at)

    return _patch(trajectory, "fold_approval", hear)


def _voting(change: Callable[[Any, str], None]) -> AbstractContextManager[Any]:
    real = desk.vote

    def vote(one: Any, verdict: Any, principal: str, reason: str, at: int) -> Any:
        change(one, principal)
        return real(one, verdict, principal, reason, at)

    return _patch(desk, "vote", vote)


@mutation("as many approve as the policy asks for")
def _one_is_enough() -> AbstractContextManager[Any]:
    def change(one: Any, principal: str) -> None:
        one.asked = dataclasses.replace(one.asked, required=1)

    return _voting(change)


@mutation("only those approve who are named")
def _anybody() -> AbstractContextManager[Any]:
    def change(one: Any, principal: str) -> None:
        one.asked = dataclasses.replace(one.asked, approvers=[], agent="")

    return _voting(change)


@mutation("a double click is one vote")
def _twice() -> AbstractContextManager[Any]:
    def change(one: Any, principal: str) -> None:
        if principal in one.votes:
            one.votes[f"{principal} again"] = one.votes.pop(principal)

    return _voting(change)


@mutation("a lease that has run out keeps the pivot in")
def _stale_leases() -> AbstractContextManager[Any]:
    return _all(*(_patch(module, "lease_problems", lambda *args: []) for module in (gate, approval_stage)))


# --- a disk that fails


@mutation("a run whose write failed is read again")
def _memory_believed() -> AbstractContextManager[Any]:
    def appended(
        self: Any, run: Any, before: int, records: Any, entries: Any, is_lazy: bool, seen_to: Any, future: Any
    ) -> None:
        run.pending.pop(future, None)
        if not future.cancelled() and (error := future.exception()) is not None:
            seen_to.set_exception(error)
        elif not seen_to.done():
            seen_to.set_result(None)

    return _patch(trajectories.Trajectories, "_appended", appended)


@mutation("a refusal of ours delivers nothing")
def _refusals_deliver() -> AbstractContextManager[Any]:
    return _patch(process, "is_result", lambda outcome: not isinstance(outcome, InDoubt))


@mutation("a failure past the pivot is not the end of a step, whenever it is recorded")
def _notice_lost() -> AbstractContextManager[Any]:
    return _patch(trajectories, "_amounts", lambda state, record: [record])
