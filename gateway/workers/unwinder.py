"""Undoes runs: takes what `core/saga.py` says comes next, and sends it down the same pipeline as any call.

One task a run, so that a stuck compensator holds up its own run only; inside a run strictly one after the other. Each
compensator has its own stable key, the domain's reserved slots, and a patience of its own: while the tool's breaker is open
or a queue is full it waits, and the clock of its patience stands. What a tool refuses for good freezes the run, or, where
the run was opened with `on_stuck: continue`, is left for the end. A step in doubt is settled first. Where a probe can tell
whether an effect is gone it is asked after the compensator; an effect that came back is undone once more, then escalated.
A restart finds the run by its records and goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from gateway.clock import Clock
from gateway.core.backoff import full_jitter
from gateway.core.call import Call, Handler, Lane
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import ExpressionError
from gateway.core.fault import Fault
from gateway.core.keys import undo_key
from gateway.core.manifest import Tier
from gateway.core.message import BytesBody, Reply, Request, body_bytes
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.saga import (
    FinishCompensation,
    FinishUnwinding,
    Freeze,
    NoteRecoveryFailure,
    Nothing,
    RefuseCompensation,
    Skip,
    SkipCompensation,
    Stuck,
    Undo,
    Wait,
    next_undo,
)
from gateway.core.secret import SecretMissing
from gateway.core.settle import judge_gone
from gateway.core.tool import BoundRequest, Catalog, Compensator, Operation, ToolSpec
from gateway.core.trajectory import Phase, Step
from gateway.journal import Conflict, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.probes import Prober, Unheard
from gateway.stages.environment import call_env
from gateway.telemetry import Telemetry
from gateway.workers.settler import Settler
from gateway.workers.turns import Drivers

__all__ = ["Patience", "Unwinder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long compensators are tried. `elapsed_s` counts only time in which the tool could have answered."""

    elapsed_s: float = 3600.0
    base_s: float = 0.5
    cap_s: float = 60.0


_PASSING = frozenset({425})
"""Refusals that say "not yet" (RFC 8470 section 5.2), so the compensator is tried on."""


class Unwinder:
    """Drives every run that is being undone."""

    def __init__(
        self,
        trajectories: Trajectories,
        pipeline: Handler,
        catalog: Callable[[], Catalog],
        clock: Clock,
        telemetry: Telemetry,
        settler: Settler,
        probers: Mapping[str, Prober],
        patience: Patience | None = None,
    ) -> None:
        self._settler = settler
        self._probers = probers
        self._trajectories = trajectories
        self._pipeline = pipeline
        self._catalog = catalog
        self._clock = clock
        self._telemetry = telemetry
        self._patience = patience or Patience()
        self._drivers = Drivers("unwind", trajectories.compensating, self._is_due, self._unwind, self._ended)

    def run_once(self) -> int:
        """Start a task for each run that is being undone and has none, a few in each pass of the event loop. Repeatable.

        Returns how many were started in this pass.
        """
        return self._drivers.run_once()

    def wake(self, name: str) -> bool:
        """Start the task of a run if it is being undone and has none. Returns whether it was started."""
        return self._drivers.wake(name)

    def _is_due(self, name: str) -> bool:
        run = self._trajectories.get(name)
        return run is not None and run.state.phase is Phase.COMPENSATING

    async def close(self) -> None:
        """Stop. What was sent and not answered is sent again, under the same key, after the next start."""
        await self._drivers.close()

    def statistics(self) -> dict[str, int]:
        """Return how many runs are being undone here."""
        return {"unwinding": len(self._drivers)}

    def _ended(self, name: str, error: BaseException | None) -> None:
        if error is not None:
            self._telemetry.background_failed(f"undoing run {name}", error)
        else:
            self.wake(name)  # it may have been rewound, and be undone anew already

    async def _unwind(self, name: str) -> None:
        while True:
            try:
                run = await self._trajectories.find(name)
                if run is None or run.state.phase is not Phase.COMPENSATING:
                    return
                if not await self._advance(run):
                    return
            except (JournalUnavailable, Conflict):
                await self._clock.sleep(1.0)
            except Exception as error:  # a bug must not leave the run half undone without anybody knowing
                self._telemetry.background_failed(f"undoing run {name}", error)
                if not self._note_failure(name, error):
                    return
                await self._clock.sleep(1.0)

    def _note_failure(self, name: str, error: Exception) -> bool:
        """Count a failure of ours; the third in a row freezes the run. Returns whether there is a run to go on with."""
        run = self._trajectories.get(name)
        if run is None or run.is_lost:
            return False
        self._trajectories.decide(
            run, NoteRecoveryFailure(where="undoing", error=f"{type(error).__name__}: {tellable(error)}")
        )
        return True

    async def _advance(self, run: Run) -> bool:
        """Do the next thing. Returns whether there may be more."""
        plan = next_undo(run.state)
        match plan:
            case Wait():
                await run.changed()
                return True
            case Nothing():
                await self._trajectories.decided(run, FinishUnwinding())
                return False
            case Skip(step, reason, is_residue):
                await self._trajectories.decided(
                    run, SkipCompensation(step=step.number, reason=reason, is_residue=is_residue)
                )
                self._telemetry.step_changed(run.state.id, step.number, step.operation, "skipped", step.tier, step.tool)
                return True
            case Stuck(step, reason):
                return await self._settle(run, step, reason)
            case Undo(step):
                assert step.compensator is not None
                return await self._undo(run, step, step.compensator)
            case _ as never:
                assert_never(never)

    # --- a step in doubt

    async def _settle(self, run: Run, step: Step, reason: str) -> bool:
        """Settle a step before it is undone. Where that cannot be done, undo it blindly if that is declared safe."""
        began, attempt = self._clock.now(), 0
        while (unsettled := await self._settler.attempt(run, step)) is not None:
            attempt += 1
            if unsettled.is_for_good or self._clock.now() - began > self._patience.elapsed_s:
                return await self._unsettled(run, step, f"{reason}; {unsettled.reason}")
            await self._clock.sleep(
                full_jitter(attempt, self._patience.base_s, self._patience.cap_s, self._clock.draw())
            )
            if run.is_lost or run.state.phase is not Phase.COMPENSATING:
                return True
        return True

    async def _unsettled(self, run: Run, step: Step, reason: str) -> bool:
        blind = await self._blind(run, step)
        if blind is not None:
            return await self._undo(run, step, blind)
        detail = (
            f"Step {step.number} ({step.tool}.{step.operation}) has to be settled before it can be undone: "
            f"{reason.rstrip('. ')}."
        )
        if run.state.on_stuck == "continue":
            await self._trajectories.decided(run, RefuseCompensation(step=step.number, fault="none", detail=detail))
            return True
        await self._trajectories.decided(run, Freeze(incident="COMPENSATION_CORRUPTED", detail=detail))
        return False

    async def _blind(self, run: Run, step: Step) -> BoundRequest | None:
        """Return the compensator of a step in doubt, where it is harmless even if nothing landed, and needs no answer."""
        tool = self._catalog().tools.get(step.tool)
        operation = None if tool is None else tool.operations.get(step.operation)
        if tool is None or operation is None or operation.compensator is None:
            return None
        if not operation.compensator.is_safe_if_absent:
            return None
        call = await self._recalled(run, step, tool, operation)
        try:
            return None if call is None else operation.compensator.request.bind(await call_env(call))
        except ExpressionError:
            return None

    async def _recalled(self, run: Run, step: Step, tool: ToolSpec, operation: Operation) -> Call | None:
        intended = await self._trajectories.intent(run, step.number)
        if intended.request is None:
            return None
        return await self._settler.call_of(run, intended, intended.request, tool, operation)

    # --- sending a compensator

    async def _undo(self, run: Run, step: Step, bound: BoundRequest) -> bool:
        tool = self._catalog().tools.get(bound.tool)
        if tool is None:
            await self._trajectories.decided(run, Freeze(
                incident="MANIFEST_DRIFT",
                detail=f"Step {step.number} is undone by {bound.method} {bound.target} at {bound.tool}, "
                "which is no longer in the manifest."))  # fmt: skip
            return False
        elapsed_s, attempt, turn = 0.0, 0, step.undo_turn
        while True:
            attempt += 1
            began = self._clock.now()
            try:
                call = self._call(run, step, bound, tool, turn)
            except SecretMissing as error:
                await self._trajectories.decided(run, Freeze(incident="MANIFEST_DRIFT", detail=str(error)))
                return False
            outcome = await self._pipeline(call)
            verdict = await self._judge(bound, outcome, self._declared(step))
            if verdict is None:
                is_gone = await self._is_gone(run, step)
                if is_gone is not False:
                    await self._finish(run, step, outcome, is_proven=is_gone is True)
                    return True
                verdict = "it was answered, but its effect is back: the probe's `gone` does not hold", turn > 1, None
                turn = 2
            detail, is_final, wait_s = verdict
            elapsed_s += 0.0 if isinstance(outcome, Rejected) else self._clock.now() - began
            if is_final or elapsed_s > self._patience.elapsed_s:
                detail = detail if is_final else f"{detail}; given up after {elapsed_s:.0f} s"
                await self._refuse(run, step, outcome, detail)
                return run.state.phase is Phase.COMPENSATING
            jitter = full_jitter(attempt, self._patience.base_s, self._patience.cap_s, self._clock.draw())
            pause = jitter if wait_s is None else wait_s + jitter / 10
            elapsed_s += 0.0 if isinstance(outcome, Rejected) else pause
            await self._clock.sleep(pause)
            if run.is_lost or run.state.phase is not Phase.COMPENSATING:
                return True
            tool = self._catalog().tools.get(bound.tool) or tool

    async def _finish(self, run: Run, step: Step, outcome: Outcome, *, is_proven: bool) -> None:
        await self._trajectories.decided(
            run, FinishCompensation(step=step.number, status=_status(outcome), is_proven=is_proven)
        )
        self._telemetry.step_changed(run.state.id, step.number, step.operation, "compensated", step.tier, step.tool)

    async def _refuse(self, run: Run, step: Step, outcome: Outcome, detail: str) -> None:
        await self._trajectories.decided(run, RefuseCompensation(
            step=step.number, fault=_fault(outcome).value, detail=detail, status=_status(outcome)))  # fmt: skip
        self._telemetry.step_changed(
            run.state.id, step.number, step.operation, "compensation_failed", step.tier, step.tool
        )

    async def _is_gone(self, run: Run, step: Step) -> bool | None:
        """Ask whether the effect of an undone step is gone; None if nobody can tell."""
        origin = self._catalog().tools.get(step.tool)
        operation = None if origin is None else origin.operations.get(step.operation)
        probe = None if operation is None else operation.probe
        if origin is None or operation is None or probe is None or probe.gone is None:
            return None
        prober = self._probers.get(probe.kind)
        call = None if prober is None else await self._recalled(run, step, origin, operation)
        if prober is None or call is None:
            return None
        env = (await call_env(call)).whole()
        for wait_s in (probe.delay_s, probe.again_s, probe.again_s):
            await self._clock.sleep(wait_s)
            call.deadline = self._clock.now() + operation.timeouts.total
            heard = await prober.ask(probe, call, env, self._pipeline)
            if (
                not isinstance(heard, Unheard)
                and (is_gone := judge_gone(probe, {**env, "response": heard})) is not None
            ):
                return is_gone
        return None

    async def _judge(
        self, bound: BoundRequest, outcome: Outcome, declared: Compensator | None
    ) -> tuple[str, bool, float | None] | None:
        """Return None if the step is undone, else (what happened, whether for good, the wait that was asked for)."""
        match outcome:
            case Success(reply):
                return await self._answered(bound, reply, declared)
            case Failed(fault=Fault.CLIENT_ERROR, reply=reply) if reply is not None and reply.status not in _PASSING:
                return await self._answered(bound, reply, declared)
            case Rejected(refusal):
                return refusal.detail, False, (refusal.retry_after_ms or 1000) / 1000
            case Failed() | InDoubt():
                detail = outcome.refusal.detail if outcome.refusal is not None else f"it answered {_status(outcome)}"
                if outcome.reply is not None:
                    await outcome.reply.aclose()
                hint = outcome.retry_after_ms
                return detail, False, None if hint is None else hint / 1000
            case _ as never:
                assert_never(never)

    async def _answered(
        self, bound: BoundRequest, reply: Reply, declared: Compensator | None
    ) -> tuple[str, bool, float | None] | None:
        try:
            data = decoded(reply.headers, await body_bytes(reply.body, EVALUATED_LIMIT) or b"", EVALUATED_LIMIT)
        finally:
            await reply.aclose()
        if declared is not None and declared.postcondition is not None:
            try:
                holds = declared.postcondition({"response": response_env(reply.status, reply.headers, data)}) is True
            except ExpressionError as error:
                return f"it answered {reply.status} and its postcondition cannot be evaluated: {error}", True, None
            said = f"it answered {reply.status}, for which its postcondition does not hold"
        else:
            gone = bound.method == "DELETE" and reply.status in (404, 410)
            holds = reply.status < 300 or gone
            said = f"it answered {reply.status}"
        if holds:
            return None
        text = data[:200].decode("utf-8", "replace").strip()
        return (f"{said}: {text}" if text else said), True, None

    def _declared(self, step: Step) -> Compensator | None:
        origin = self._catalog().tools.get(step.tool)
        operation = None if origin is None else origin.operations.get(step.operation)
        return None if operation is None else operation.compensator

    def _call(self, run: Run, step: Step, bound: BoundRequest, tool: ToolSpec, turn: int) -> Call:
        headers = self._catalog().secrets.resolve_headers(bound.headers)
        now = self._clock.now()
        timeouts = tool.domain.timeouts
        operation = Operation(
            name=f"undo {step.operation}", tier=Tier.REVERSIBLE, timeouts=timeouts, is_idempotent=True
        )
        return Call(
            tool=tool,
            operation=operation,
            request=Request(
                bound.method,
                bound.target.encode("ascii"),
                tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
                None if bound.body is None else BytesBody(bound.body.encode()),
            ),
            agent=run.state.agent,
            started=now,
            deadline=now + timeouts.total,
            trajectory=run.state.id,
            is_run_named=True,
            lane=Lane.COMPENSATION,
            step=step.number,
            key=undo_key(self._trajectories.salt, run.state.id, step.number, turn),
            compensation=bound,
            undo_turn=turn,
        )


def _status(outcome: Outcome) -> int | None:
    if isinstance(outcome, Rejected) or outcome.reply is None:
        return None
    return outcome.reply.status


def _fault(outcome: Outcome) -> Fault:
    return outcome.fault if isinstance(outcome, Failed | InDoubt) else Fault.NONE
