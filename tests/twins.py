"""Two gateways' stages side by side: what one does in short, the other does at length, and everybody sees the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from gateway.core.admission import WhenFull
from gateway.core.breaker import BreakerSettings
from gateway.core.call import Call, Handler
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.manifest import JournalMode, Tier
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.recovery import RecoveryMode, RecoverySettings
from gateway.core.retry import RetrySettings
from gateway.core.saga import Abort, Freeze
from gateway.core.tool import Operation
from gateway.egress import StreamBroken
from gateway.journal import JournalUnavailable
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Trajectories
from gateway.pipeline import Stages
from gateway.stages.admission import AdmissionStage
from gateway.stages.breaker import BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage
from gateway.telemetry import Telemetry
from tests.builders import StreamBody, call_of, catalog_of, domain_of, operation_of, reply_of, tool_of
from tests.fakes import FakeClock

__all__ = ["GATED", "PAY", "PUT", "READ", "Twin"]


READ, PUT = operation_of("read", Tier.READ), operation_of("put", Tier.REVERSIBLE)
PAY, GATED = operation_of("pay", Tier.PIVOT), operation_of("gated", Tier.PIVOT, is_staged=True)
LAZY = operation_of("lazy", Tier.REVERSIBLE, journal=JournalMode.LAZY, is_idempotent=True)
NARROW = domain_of("narrow", concurrency=1, reserved=0, queue=0, when_full=WhenFull.REFUSE)
RATED = domain_of("rated", concurrency=2, reserved=1, queue=1, rate=(2, 1.0))
WIDE = domain_of("wide", concurrency=4, reserved=1, queue=2)
BRITTLE = BreakerSettings(consecutive=2, cooldown=10.0)
PATIENT = BreakerSettings(consecutive=4, cooldown=10.0, slow_after=0.5, minimum=4)
ONCE = RetrySettings(attempts=1, budget_floor=1.0)
ENFORCED = RecoverySettings(mode=RecoveryMode.ENFORCE)
TOOLS = (
    tool_of("a", READ, PUT, PAY, GATED, domain=NARROW, breaker=BRITTLE, retry=ONCE),
    tool_of("b", READ, PUT, PAY, domain=NARROW, breaker=BRITTLE, retry=ONCE, recovery=ENFORCED),
    tool_of("c", READ, PUT, PAY, domain=RATED, breaker=BRITTLE, retry=ONCE),
    tool_of("d", READ, PUT, PAY, LAZY, domain=WIDE, breaker=PATIENT, retry=RetrySettings(attempts=3)),
)
ANSWERS: Final[dict[str, Callable[[], Outcome]]] = {
    "ok": lambda: Success(reply_of()),
    "down": lambda: Failed(Fault.CONNECT, Refusal(code=Code.UPSTREAM_CONNECT, detail="Down.")),
    "no": lambda: Failed(Fault.CLIENT_ERROR, reply=reply_of(422, b"no")),
    "broken": lambda: Failed(Fault.SERVER, reply=reply_of(500, b"oh")),
    "doubt": lambda: InDoubt(Fault.TIMEOUT, Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent.")),
    "severed": lambda: Rejected(Refusal(code=Code.QUARANTINED, detail="Severed.")),
    "stream": lambda: Success(reply_of(200, StreamBody())),
    "torn": lambda: Success(reply_of(200, StreamBody(error=StreamBroken("torn")))),
}


class Clock(FakeClock):
    """Chance does not depend on how often somebody asked for it before."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = itertools.count()

    def draw(self) -> float:
        return 0.5

    def token(self) -> str:
        return f"{next(self._tokens):032x}"


class Disk(MemoryJournal):
    """A journal that can be slow, and can fail what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = self.is_down = False

    def goes(self, how: str) -> None:
        """Be `slow`, `down` or `well` from now on; what waited for a slow disk is written, or lost, at once."""
        self.is_slow, self.is_down = how == "slow", how == "down"
        self._commit()

    def _commit(self) -> None:
        if self.is_slow:
            return
        while self.is_down and self._queue:
            append, future, _ = self._queue.popleft()
            error = JournalUnavailable("no space")
            self._fences.put(append.stream, error)
            if not future.done():
                future.set_exception(error)
                future.exception()
        super()._commit()

    def written(self) -> dict[str, list[tuple[str, int, bytes]]]:
        """All entries, by stream."""
        return {
            name: [(entry.kind, entry.at, entry.data) for entry in stream.entries]
            for name, stream in self._streams.items()
        }


class _PassOn:
    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        return await proceed(call)


class _AtLength(TelemetryStage):
    """As good as the stage, and not the one whose calls have a short way."""


class Twin:
    """All stages around a scripted tool.

    Args:
        is_quick: it is asked for refusals at once.
        is_short: its calls may take the short way of ordinary calls.
        is_watched: somebody wants to hear of events.
    """

    def __init__(
        self, *, is_quick: bool = False, is_short: bool = False, is_watched: bool = True, has_budgets: bool = False
    ) -> None:
        self.is_quick = is_quick
        self.at_once = 0
        self.answer = "ok"
        self.clock, self.journal = Clock(), Disk()
        self.telemetry = Telemetry(self.clock, keep_events=10_000 if is_watched else 0)
        self.memory: dict[str, bytes] = {}
        self.held: list[asyncio.Future[None]] = []
        self.calls: list[tuple[Call, asyncio.Task[Outcome]]] = []
        clock, telemetry, passing = self.clock, self.telemetry, _PassOn()
        self.runs = runs = Trajectories(self.journal, clock, telemetry, salt=b"s" * 32)
        runs.has_budgets = has_budgets
        catalog = catalog_of(*TOOLS)
        self.breaker = BreakerStage(clock, telemetry, self.memory.__setitem__)
        self.admission = AdmissionStage(clock, telemetry, self.breaker.peek)
        self.retry = RetryStage(clock, telemetry)
        self.stages = Stages(
            telemetry=(TelemetryStage if is_short else _AtLength)(clock, telemetry),
            recovery=RecoveryStage(runs, clock, telemetry, self.memory.__setitem__, lambda: catalog),
            budget=BudgetStage(runs, clock),
            watchdog=WatchdogStage(runs, lambda: catalog, clock, telemetry),
            idempotency=IdempotencyStage(runs, self.journal, clock),
            saga=SagaStage(runs, self.journal, telemetry),
            deadline=DeadlineStage(clock, telemetry),
            retry=self.retry,
            admission=self.admission,
            breaker=self.breaker,
            journal=JournalStage(runs, clock, telemetry),
            dispatch=self._tool,  # type: ignore[arg-type]
            **dict.fromkeys(("quarantine", "hold", "policy", "approval", "outbox"), passing),  # type: ignore[arg-type]
        )
        self.pipeline = self.stages.pipeline()
        for stage in (self.breaker, self.admission, self.retry):
            stage.reconfigure(catalog)

    async def _tool(self, call: Call) -> Outcome:
        answer, began = self.answer, self.clock.now()
        if answer == "hang":
            held = asyncio.get_running_loop().create_future()
            self.held.append(held)
            await held
        if answer == "bug":
            raise RuntimeError("a bug")
        call.exchange_s = self.clock.now() - began
        return ANSWERS.get(answer, ANSWERS["ok"])()

    def send(self, tool: int, operation: Operation, answer: str = "ok", **fields: Any) -> Call:
        self.answer = answer
        body = fields.pop("body", b"1")
        call = call_of(
            TOOLS[tool], operation, now=self.clock.now(), body=None if operation.is_read else BytesBody(body),
            action=f"{tool}{operation.name}".encode() + body, fingerprint=body, **fields,
        )  # fmt: skip
        call.is_run_named = bool(call.trajectory)
        self.calls.append((call, asyncio.ensure_future(self._made(call))))
        return call

    async def _made(self, call: Call) -> Outcome:
        rejected = self.pipeline.refused_at_once(call) if self.is_quick else None
        if rejected is None:
            return await self.pipeline(call)
        self.at_once += 1
        return rejected

    def do(self, what: str, *told: Any, **more: Any) -> None:
        match what:
            case "send":
                self.send(*told, **more)
            case "turn":
                self.clock.turn(*told)
            case "release" if self.held:
                held = self.held.pop(0)
                if not held.done():
                    held.set_result(None)
            case "cancel" if self.calls:
                self.calls[-1 - told[0] % len(self.calls)][1].cancel()
            case "disk":
                self.journal.goes(*told)
            case "abort" | "freeze" if (run := self.runs.get(told[0])) is not None and run.state.version:
                freeze = Freeze(incident="QUARANTINED", detail="said so")
                self.runs.decide(run, Abort(reason="said so", by="op") if what == "abort" else freeze)
            case "deliver" if (run := self.runs.get(told[0])) is not None:
                for step in list(run.state.undelivered):
                    self.runs.delivered(told[0], step)
            case _:
                pass

    async def read(self) -> None:
        """Read all answers that stream, to their end."""
        for _, task in self.calls:
            if not task.done() or task.cancelled() or not isinstance(outcome := task.result(), Success):
                continue
            try:
                async for _ in outcome.reply.body.chunks():
                    pass
            except StreamBroken:
                pass
            await outcome.reply.aclose()

    def seen(self) -> dict[str, object]:
        """All that anybody could see."""
        return {
            "outcomes": [_shown(task) for _, task in self.calls],
            "calls": [(call.trajectory, call.step, call.key, call.attempt) for call, _ in self.calls],
            "events": self.telemetry.timeline.recent(),
            "metrics": self.telemetry.render(),
            "breakers": self.breaker.statistics(),
            "domains": self.admission.statistics(),
            "budgets": {
                name: round(float(str(one["balance"])), 5) for name, one in self.retry.statistics().items()
            },
            "flights": self.stages.idempotency.statistics(),
            "repairs": self.stages.recovery.statistics(),
            "memory": self.memory,
            "written": self.journal.written(),
            "runs": {
                run.state.id: (
                    asdict(run.state), run.touched_s, run.is_lost, set(run.busy), len(run.pending),
                    None if run.watch is None else run.watch.view(),
                )
                for run in self.runs.live()
            },
        }  # fmt: skip

    def kept(self) -> list[object]:
        """What calls say of themselves, and nobody looks at once they are over."""
        return [(call.first_sent, call.is_in_doubt, call.is_committed_to_send) for call, _ in self.calls]

    async def close(self) -> None:
        for _, task in self.calls:
            task.cancel()
        await asyncio.gather(*(task for _, task in self.calls), return_exceptions=True)


def _shown(task: asyncio.Task[Outcome]) -> object:
    if not task.done():
        return "under way"
    if task.cancelled():
        return "cancelled"
    outcome = task.result()
    if isinstance(outcome, Rejected):
        return outcome
    reply = outcome.reply
    return (
        type(outcome), outcome.is_replay if isinstance(outcome, Success) else (outcome.fault, outcome.refusal),
        reply and (reply.status, reply.headers, reply.body.data if isinstance(reply.body, BytesBody) else "streams"),
    )  # fmt: skip
