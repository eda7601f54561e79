"""Finishes runs that are past their pivot: releases what was staged, in order, and tries again what failed.

One task a run, strictly one step after the other, each sent down the same pipeline as any call and recorded by the same
stage. Waiting for an open breaker or a full queue costs none of its patience; when that is spent, or a tool refuses for
good, the run freezes for a person. What comes next is always read from the run's state (`core/outbox.py`), so a restart
goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

from gateway.clock import Clock
from gateway.core.backoff import full_jitter
from gateway.core.breaker import Reason
from gateway.core.call import Call, Handler, Lane
from gateway.core.manifest import Tier
from gateway.core.message import Body, BytesBody, Request
from gateway.core.outbox import Await, Done, Send, next_finish, stalled
from gateway.core.outcome import Outcome, Rejected
from gateway.core.records import StepIntended
from gateway.core.saga import Commit, Freeze, NoteRecoveryFailure
from gateway.core.sparse import excluding, including
from gateway.core.tool import Catalog, Operation, ToolSpec
from gateway.core.trajectory import Phase, Step, StepState
from gateway.journal import Conflict, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.turns import Drivers
from gateway.workers.unwinder import Patience

__all__ = ["Finalizer"]

_UNDONE = (StepState.STAGED, StepState.DEFERRED)


class Finalizer:
    """Drives every run that has to be finished."""

    def __init__(
        self,
        trajectories: Trajectories,
        pipeline: Handler,
        catalog: Callable[[], Catalog],
        clock: Clock,
        telemetry: Telemetry,
        patience: Patience | None = None,
    ) -> None:
        self._trajectories = trajectories
        self._pipeline = pipeline
        self._catalog = catalog
        self._clock = clock
        self._telemetry = telemetry
        self._patience = patience or Patience()
        names = partial(trajectories.names_in, Phase.FINALIZING)
        self._drivers = Drivers("finish", names, self._is_due, self._finish, self._ended)

    def run_once(self) -> int:
        """Start a task for each run past its pivot that has something left and no task, a few in each pass of the event
        loop. Repeatable.

        Returns how many were started in this pass.
        """
        return self._drivers.run_once()

    def wake(self, name: str) -> bool:
        """Start the task of a run if it needs one and has none. Returns whether it was started."""
        return self._drivers.wake(name)

    def _is_due(self, name: str) -> bool:
        run = self._trajectories.get(name)
        if run is None or run.state.phase is not Phase.FINALIZING:
            return False
        return not isinstance(plan := next_finish(run.state), Done) or plan.is_closing

    async def close(self) -> None:
        """Stop. What was sent and not answered is in doubt after the next start, under the same key."""
        await self._drivers.close()

    def statistics(self) -> dict[str, int]:
        """Return how many runs are being finished here."""
        return {"finalizing": len(self._drivers)}

    def _ended(self, name: str, error: BaseException | None) -> None:
        run = self._trajectories.get(name)
        if error is not None:
            self._telemetry.background_failed(f"finishing run {name}", error)
            if run is not None:
                note = NoteRecoveryFailure(where="finishing", error=f"{type(error).__name__}: {tellable(error)}")
                self._trajectories.decide(run, note)
        else:
            # Something may have been added while the task was on its way out.
            self.wake(name)

    async def _finish(self, name: str) -> None:
        while True:
            try:
                run = await self._trajectories.find(name)
                if run is None or run.state.phase is not Phase.FINALIZING or not await self._advance(run):
                    return
            except (JournalUnavailable, Conflict):
                await self._clock.sleep(1.0)

    async def _advance(self, run: Run) -> bool:
        """Do the next thing. Returns whether there may be more."""
        plan = next_finish(run.state)
        match plan:
            case Done(is_closing):
                if is_closing:
                    await self._trajectories.decided(run, Commit(by="finalizer"))
                elif run.state.is_implicit:
                    self._trajectories.close_if_done(run, by="pivot")
                return False
            case Await():
                await run.changed()
                return True
            case Send(step):
                if step.number in run.busy:
                    await run.changed()
                    return True
                return await self._send(run, step)
            case _ as never:
                assert_never(never)

    async def _send(self, run: Run, step: Step) -> bool:
        found = self._found(step)
        intended = await self._trajectories.intent(run, step.number)
        if isinstance(found, str) or intended.request is None:
            what = (
                found if isinstance(found, str) else "its request was not kept, so only the agent could send it again"
            )
            incident = "MANIFEST_DRIFT" if isinstance(found, str) else "POST_PIVOT_STALLED"
            detail = f"Step {step.number} ({step.tool}.{step.operation}) cannot be completed: {what}."
            await self._trajectories.decided(run, Freeze(incident=incident, detail=detail, step=step.number))
            return False
        tool, operation = found
        elapsed_s, attempt = 0.0, 0
        while True:
            _still_there(run)
            if run.state.phase is not Phase.FINALIZING or step.state not in _UNDONE:
                return True
            if step.number in run.busy:
                return True  # the agent has taken it meanwhile
            attempt += 1
            began = self._clock.now()
            run.busy = including(run.busy, step.number)
            try:
                outcome = await self._once(run, step, tool, operation, intended)
            finally:
                run.busy = excluding(run.busy, step.number)
                run.notify()
            _still_there(run)
            if run.state.phase is not Phase.FINALIZING or step.state not in _UNDONE:
                return True
            jitter = full_jitter(attempt, self._patience.base_s, self._patience.cap_s, self._clock.draw())
            wait_s = _wait_s(outcome)
            pause = jitter if wait_s is None else wait_s + jitter / 10
            elapsed_s += self._clock.now() - began + pause if _is_charged(outcome) else 0.0
            if elapsed_s > self._patience.elapsed_s:
                why = f"{step.detail or 'it was not sent'}; given up after {elapsed_s:.0f} s"
                await self._trajectories.recorded(run, [stalled(step, why)])
                return False
            await self._clock.sleep(pause)
            found = self._found(step)
            if not isinstance(found, str):
                tool, operation = found

    async def _once(
        self, run: Run, step: Step, tool: ToolSpec, operation: Operation, intended: StepIntended
    ) -> Outcome:
        assert intended.request is not None
        body = await self._body(intended)
        now = self._clock.now()
        call = Call(
            tool=tool,
            operation=operation,
            request=Request(
                intended.method,
                intended.target.encode("latin-1"),
                intended.request.raw_headers(),
                body,
                fresh_connection=operation.tier is Tier.PIVOT,
            ),
            agent=run.state.agent,
            started=now,
            deadline=now + operation.timeouts.total,
            trajectory=run.state.id,
            is_run_named=True,
            lane=Lane.FINALIZATION,
            params=dict(intended.request.params),
            action=bytes.fromhex(step.action),
            fingerprint=bytes.fromhex(step.fingerprint),
            step=step.number,
            key=step.key,
        )
        try:
            outcome = await self._pipeline(call)
        finally:
            if body is not None:
                await body.aclose()
        reply = None if isinstance(outcome, Rejected) else outcome.reply
        if reply is not None:
            await reply.aclose()
        return outcome

    async def _body(self, intended: StepIntended) -> Body | None:
        kept = intended.request
        assert kept is not None
        if kept.blob is not None:
            return await self._trajectories.journal.kept(kept.blob)
        data = kept.inline_body()
        return None if data is None else BytesBody(data)

    def _found(self, step: Step) -> tuple[ToolSpec, Operation] | str:
        tool = self._catalog().tools.get(step.tool)
        if tool is None:
            return f"{step.tool} is no longer in the manifest"
        operation = tool.operations.get(step.operation)
        if operation is None:
            return f"{step.tool} no longer declares {step.operation}"
        return tool, operation


def _still_there(run: Run) -> None:
    """Have the run read again, after a pause, if a write of it failed: a disk that hangs refuses the next one at once."""
    if run.is_lost:
        raise JournalUnavailable(f"run {run.state.id} has to be read again after a failed write")


def _is_charged(outcome: Outcome) -> bool:
    """Whether waiting on costs patience: not for a breaker's cooldown or a place in a queue, which come to an end.

    A tool that only a harmless call may try (docs/adr/0100-owed-canaries.md) may wait for that call for ever.
    """
    if isinstance(outcome, Rejected):
        return outcome.refusal.extra.get("reason") == Reason.NO_ELIGIBLE_CANARY.value
    return True


def _wait_s(outcome: Outcome) -> float | None:
    match outcome:
        case Rejected(refusal):
            return (refusal.retry_after_ms or 1000) / 1000
        case _:
            hint = getattr(outcome, "retry_after_ms", None)
            return None if hint is None else hint / 1000
