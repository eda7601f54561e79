"""The saga's stages (idempotency, saga, journal) around a scripted tool, on a journal that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.core.call import Call
from gateway.core.manifest import IdempotencySettings, Tier
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.outcome import Outcome, Success
from gateway.core.tool import Operation, ToolSpec
from gateway.journal.trajectories import Trajectories
from gateway.pipeline import compose
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.saga import SagaStage
from gateway.telemetry import Telemetry
from tests.builders import call_of, operation_of, tool_of
from tests.fakes import FakeClock
from tests.journal.faulty import FaultyJournal

__all__ = ["Rig", "ok"]

Answer = Outcome | BaseException | Callable[[Call], Awaitable[Outcome]]


def ok(body: bytes = b'{"id": "x1"}', status: int = 200) -> Success:
    return Success(Reply(status, b"OK", ((b"Content-Type", b"application/json"),), BytesBody(body)))


class Rig:
    """`await rig.call(...)` sends one call; `rig.sent` lists what reached the tool, `rig.answers` says what it answers."""

    def __init__(self, journal: FaultyJournal | None = None) -> None:
        self.journal = journal or FaultyJournal()
        self.clock = FakeClock()
        self.restart()
        self.sent: list[Call] = []
        self.answers: list[Answer] = []

    def restart(self) -> None:
        """Forget everything that only memory knew."""
        self.telemetry = Telemetry()
        self.trajectories = Trajectories(self.journal, self.clock, self.telemetry, salt=b"s" * 32)
        stages = (
            IdempotencyStage(self.trajectories, self.journal, self.clock),
            SagaStage(self.trajectories, self.journal, self.telemetry),
            JournalStage(self.trajectories, self.clock, self.telemetry),
        )
        self.pipeline = compose(stages, self._tool)

    async def _tool(self, call: Call) -> Outcome:
        self.sent.append(call)
        answer = self.answers.pop(0) if self.answers else ok()
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return await answer(call)
        return answer

    def make(
        self,
        body: bytes = b'{"n": 1}',
        *,
        operation: Operation | None = None,
        tool: ToolSpec | None = None,
        run: str = "r1",
        key: str | None = None,
        **fields: Any,
    ) -> Call:
        operation = operation or operation_of("hold", Tier.COMPENSABLE)
        tool = tool or tool_of("pay", operation)
        call = call_of(
            tool, operation, now=self.clock.now(), trajectory=run, is_run_named=bool(run), caller_key=key,
            action=body.ljust(16)[:16], fingerprint=body.ljust(16)[:16], **fields,
        )  # fmt: skip
        call.request = Request("POST", b"/holds", ((b"Content-Type", b"application/json"),), BytesBody(body))
        return call

    async def call(self, body: bytes = b'{"n": 1}', **fields: Any) -> Outcome:
        return await self.pipeline(self.make(body, **fields))

    def start(self, body: bytes = b'{"n": 1}', **fields: Any) -> asyncio.Task[Outcome]:
        return asyncio.ensure_future(self.pipeline(self.make(body, **fields)))

    def deliver(self, step: int, run: str = "r1") -> None:
        self.trajectories.delivered(run, step)

    def state(self, run: str = "r1") -> Any:
        found = self.trajectories.get(run)
        assert found is not None
        return found.state


def keyed(operation: Operation, window: float = 3600.0) -> ToolSpec:
    """A tool that honours idempotency keys."""
    return tool_of("pay", operation, idempotency=IdempotencySettings(window=window))
