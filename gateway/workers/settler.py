"""Settles steps that were left in doubt: after an unknown outcome that the agent was told of, and after a crash.

It makes the call again from its recorded intent and sends it down the pipeline, where it is settled like any other: by
probe, or under its key while the tool remembers it, waiting its turn behind breakers and queues. What turns out not to have
landed is recorded as failed and not done anew: the agent may have gone another way since. What stays unknown past its limit
freezes the run for a person.

One task a run with jittered starts, and only a few asking at a time, so that a restart with a thousand doubts is no storm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.core.backoff import full_jitter
from gateway.core.call import Call, Handler
from gateway.core.message import Body, BytesBody, Request
from gateway.core.outcome import Outcome, Rejected
from gateway.core.records import RecordedRequest, StepIntended
from gateway.core.saga import Freeze, NoteRecoveryFailure
from gateway.core.settle import why_not_resent
from gateway.core.tool import Catalog, Operation, ToolSpec
from gateway.core.trajectory import Phase, Step, StepState
from gateway.journal import Conflict, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.turns import Drivers

__all__ = ["SettlePatience", "Settler", "Unsettled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlePatience:
    """How long an unknown outcome is asked about, and with which pauses. `at_once` bounds the questions of one moment."""

    limit_s: float = 3600.0
    base_s: float = 1.0
    cap_s: float = 60.0
    at_once: int = 16


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Why a step is still in doubt, and whether asking again could ever help."""

    reason: str
    is_for_good: bool = False


class Settler:
    """Drives every run with a step in doubt that is not being undone; those the unwinder drives, with `attempt`."""

    def __init__(
        self,
        trajectories: Trajectories,
        pipeline: Handler,
        catalog: Callable[[], Catalog],
        clock: Clock,
        telemetry: Telemetry,
        patience: SettlePatience | None = None,
    ) -> None:
        self._trajectories = trajectories
        self._pipeline = pipeline
        self._catalog = catalog
        self._clock = clock
        self._telemetry = telemetry
        self._patience = patience or SettlePatience()
        self._asking = asyncio.Semaphore(self._patience.at_once)
        self._drivers = Drivers("settle", trajectories.in_doubt, self._is_due, self._drive, self._ended)

    async def run(self, interval_s: float = 1.0) -> None:
        """Start what is due, for ever."""
        while True:
            self.run_once()
            await self._clock.sleep(interval_s)

    def run_once(self) -> int:
        """Start a task for each run in doubt that has none, a few in each pass of the event loop. Repeatable.

        Returns how many were started in this pass.
        """
        return self._drivers.run_once()

    def _is_due(self, name: str) -> bool:
        run = self._trajectories.get(name)
        return run is not None and run.state.phase in (Phase.PREPARING, Phase.FINALIZING)

    async def close(self) -> None:
        """Stop. What is in doubt stays so, in the journal."""
        await self._drivers.close()

    def statistics(self) -> dict[str, int]:
        """Return how many runs are being settled here."""
        return {"settling": len(self._drivers)}

    def _ended(self, name: str, error: BaseException | None) -> None:
        if error is not None:
            self._telemetry.background_failed(f"settling run {name}", error)

    async def _drive(self, name: str) -> None:
        attempt = 0
        while True:
            attempt += 1
            await self._clock.sleep(self._pause(attempt))
            try:
                run = await self._trajectories.find(name)
                if run is None or run.state.phase not in (Phase.PREPARING, Phase.FINALIZING) or not run.state.in_doubt:
                    return
                if not await self._round(run):
                    attempt = 0
            except (JournalUnavailable, Conflict):
                continue
            except Exception as error:  # a bug must not leave the run in doubt for ever without anybody knowing
                self._telemetry.background_failed(f"settling run {name}", error)
                self._note_failure(name, error)

    def _pause(self, attempt: int) -> float:
        patience = self._patience
        return patience.base_s / 2 + full_jitter(attempt, patience.base_s, patience.cap_s, self._clock.draw())

    async def _round(self, run: Run) -> bool:
        """Try each step in doubt once. Returns whether any is still in doubt."""
        is_left = False
        for number in sorted(run.state.in_doubt):
            step = run.state.steps[number]
            unsettled = await self.attempt(run, step)
            if unsettled is not None:
                is_left = True
                await self._give_up_if_due(run, step, unsettled)
        return is_left

    async def attempt(self, run: Run, step: Step) -> Unsettled | None:
        """Try once to settle a step. Returns None if it is not in doubt any more."""
        if step.state is not StepState.IN_DOUBT:
            return None
        tool = self._catalog().tools.get(step.tool)
        operation = None if tool is None else tool.operations.get(step.operation)
        if tool is None or operation is None:
            return Unsettled(f"{step.tool}.{step.operation} is no longer in the manifest", is_for_good=True)
        if operation.probe is None:
            why = why_not_resent(tool, operation, step.intended_at / 1000, self._clock.at() / 1000)
            if why is not None:
                return Unsettled(f"no probe is declared and {why}", is_for_good=True)
        async with self._asking:
            outcome = await self._again(run, step, tool, operation)
        now = self._trajectories.get(run.state.id)
        current = step if now is None else now.state.steps.get(step.number, step)
        if current.state is not StepState.IN_DOUBT:
            return None
        return outcome

    async def _again(self, run: Run, step: Step, tool: ToolSpec, operation: Operation) -> Unsettled:
        intended = await self._trajectories.intent(run, step.number)
        if intended.request is None:
            return Unsettled(
                "its request was not kept, so it can be neither asked about nor sent again", is_for_good=True
            )
        call = await self.call_of(run, intended, intended.request, tool, operation)
        try:
            outcome = await self._pipeline(call)
        finally:
            if call.request.body is not None:
                await call.request.body.aclose()
        return Unsettled(await _reason(outcome))

    async def call_of(
        self, run: Run, intended: StepIntended, request: RecordedRequest, tool: ToolSpec, operation: Operation
    ) -> Call:
        """Return the call that a step was, made again from its records."""
        inline = request.inline_body()
        body: Body | None = None if inline is None else BytesBody(inline)
        if request.blob is not None:
            body = await self._trajectories.journal.kept(request.blob)
        now = self._clock.now()
        return Call(
            tool=tool,
            operation=operation,
            request=Request(intended.method, intended.target.encode("latin-1"), request.raw_headers(), body),
            agent=run.state.agent,
            started=now,
            deadline=now + operation.timeouts.total,
            trajectory=run.state.id,
            is_run_named=True,
            params=dict(request.params),
            action=bytes.fromhex(intended.action),
            fingerprint=bytes.fromhex(intended.fingerprint),
            step=intended.step,
            key=intended.key,
            is_settling_only=True,
        )

    async def _give_up_if_due(self, run: Run, step: Step, unsettled: Unsettled) -> None:
        unknown_s = max(0, self._clock.at() - step.doubted_at) / 1000
        if unknown_s < self._patience.limit_s:
            return
        incident = "POST_PIVOT_STALLED" if run.state.pivot is not None else "OUTCOME_UNKNOWN"
        await self._trajectories.decided(run, Freeze(
            incident=incident,
            detail=f"What became of step {step.number} ({step.tool}.{step.operation}) is unknown for {unknown_s:.0f} s: "
            f"{unsettled.reason}."))  # fmt: skip

    def _note_failure(self, name: str, error: Exception) -> None:
        run = self._trajectories.get(name)
        if run is not None and not run.is_lost:
            self._trajectories.decide(
                run, NoteRecoveryFailure(where="settling", error=f"{type(error).__name__}: {tellable(error)}")
            )


async def _reason(outcome: Outcome) -> str:
    if isinstance(outcome, Rejected):
        return outcome.refusal.detail
    if outcome.reply is not None:
        await outcome.reply.aclose()
    refusal = getattr(outcome, "refusal", None)
    return refusal.detail if refusal is not None else "it was not settled"
