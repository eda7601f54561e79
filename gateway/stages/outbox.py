"""Keeps an irreversible call that may only leave with the run's pivot, instead of sending it.

Its step is durable, with the whole request, before the agent is told; from there on the finalizer owns it. No queue and no
breaker is asked: nothing leaves now.
"""

from __future__ import annotations

import asyncio

import orjson

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Lane
from gateway.core.codes import Code
from gateway.core.idempotency import caller_digest
from gateway.core.message import BytesBody, Reply, body_bytes
from gateway.core.outcome import Outcome, Refusal, Rejected, Success
from gateway.core.records import RecordedRequest, StepStaged
from gateway.core.saga import Begin, decide
from gateway.journal import Conflict, Journal, JournalUnavailable, KeyClaim
from gateway.journal.trajectories import Trajectories
from gateway.telemetry import Telemetry

__all__ = ["INLINE_LIMIT", "OutboxStage", "claims_of", "recorded_request", "staged_answer"]

INLINE_LIMIT = 64 * 1024
"""Bodies up to this many bytes lie in the log itself; larger ones are kept beside it."""

DEFAULT_KEY_WINDOW_MS = 24 * 3600 * 1000
"""How long a caller's key is remembered where the tool does not say; what most vendors keep (Stripe: 24 hours)."""


class OutboxStage:
    """Stages calls."""

    def __init__(self, trajectories: Trajectories, clock: Clock, telemetry: Telemetry) -> None:
        self._trajectories = trajectories
        self._clock = clock
        self._telemetry = telemetry

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Stage the call if its operation says so, else go on."""
        if not call.operation.is_staged or call.lane is not Lane.FORWARD or call.step is not None:
            return await proceed(call)
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost:
            return _unavailable(call, f"run {call.trajectory} has to be read again")
        try:
            begin = Begin(
                tool=call.tool.name,
                operation=call.operation,
                action=call.action.hex(),
                fingerprint=call.fingerprint.hex(),
                method=call.request.method,
                target=call.request.target.decode("latin-1"),
                salt=self._trajectories.salt,
                caller=None if call.caller_key is None else caller_digest(call.agent, call.tool.name, call.caller_key),
                caller_key=call.caller_key,
                at=self._clock.at(),
                request=await recorded_request(call, self._trajectories.journal),
            )
            records = decide(run.state, begin)
            if isinstance(records, Refusal):
                return Rejected(records)
            (staged,) = records
            assert isinstance(staged, StepStaged)
            claims = claims_of(call, staged.caller, staged.step, self._clock.at())
            future = self._trajectories.record(run, records, claims=claims)
            call.is_committed_to_send = True
            await asyncio.shield(future)
        except (JournalUnavailable, Conflict) as error:
            return _unavailable(call, error.told)
        call.step, call.key = staged.step, staged.key
        self._telemetry.step_changed(
            run.state.id, staged.step, call.operation.name, "staged", call.operation.tier, call.tool.name
        )
        return staged_answer(call)


def staged_answer(call: Call) -> Success:
    """Return what the agent reads of a staged call: 202, and that nothing was sent yet."""
    told = {
        "state": "staged",
        "trajectory": call.trajectory,
        "step": call.step,
        "detail": f"{call.operation.name} is kept and will be sent to {call.tool.name} once this run's irreversible step "
        "has committed; if the run is aborted it is dropped. Go on with the run; do not send it again.",
    }
    headers = ((b"Content-Type", b"application/json"), (b"Seawall-Staged", b"true"))
    return Success(Reply(202, b"Accepted", headers, BytesBody(orjson.dumps(told))))


async def recorded_request(call: Call, journal: Journal) -> RecordedRequest:
    """Return all of a call that has to be sent later, perhaps after a restart.

    Raises:
        JournalUnavailable: its large body cannot be kept.
    """
    request = call.request
    body: bytes | str | None = None
    if request.body is not None:
        body = await body_bytes(request.body, INLINE_LIMIT)
        if body is None:
            body = await journal.keep(request.body)
    return RecordedRequest.of(request.headers, call.params, body)


def claims_of(call: Call, caller: str | None, step: int, at: int) -> tuple[KeyClaim, ...]:
    """Return what remembers the caller's own key for a step, if there is one. `at` is UTC milliseconds."""
    if caller is None:
        return ()
    keys = call.tool.idempotency
    window_ms = DEFAULT_KEY_WINDOW_MS if keys is None else int(keys.window * 1000)
    return (KeyClaim(bytes.fromhex(caller), step, at + window_ms),)


def _unavailable(call: Call, why: str) -> Rejected:
    return Rejected(
        Refusal(
            code=Code.JOURNAL_UNAVAILABLE,
            dependency=call.tool.name,
            detail=f"The call could not be kept ({why}), so it will not be sent to {call.tool.name}. Try again later.",
            retry_after_ms=1000,
        )
    )
