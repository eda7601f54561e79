"""The tasks API: a task packet opens a run, its end yields the result packet (seed 003).

    POST /seawall/v1/tasks              a task packet: 201, or 200 for one that is known
    GET  /seawall/v1/tasks/{id}         the result packet as it stands
    POST /seawall/v1/tasks/{id}/result  how it ended: the result packet, 202 while the run is still being ended
    GET  /seawall/v1/schemas/{name}     task_packet, task_result, result_packet as JSON Schema

Every verb may be repeated. The run itself is used like any other, under the task's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from gateway.clock import Clock
from gateway.core.codes import Code
from gateway.core.containment import ArtifactsTouched, task_artifact
from gateway.core.idempotency import caller_digest
from gateway.core.outcome import Refusal
from gateway.core.packet import (
    TaskPacket,
    TaskResult,
    budget_of_packet,
    packet_digest,
    read_packet,
    read_result,
    result_of_run,
)
from gateway.core.records import ChildOpened, TaskAccepted, TaskEnded, UsageReported
from gateway.core.saga import Abort, Command, Commit, Freeze, Open, decide
from gateway.ingress.caller import Caller
from gateway.ingress.shown import Shown
from gateway.journal import KeyClaim
from gateway.journal.containment import ContainmentLog
from gateway.journal.trajectories import GENERATIONS, Run, Trajectories
from gateway.stages.budget import meter_of, spend

__all__ = ["Tasks"]

KEY_DAYS = 30
"""How long the key of a packet is remembered."""

_TASK = "task packet"


class Tasks:
    """The verbs, free of any framework."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        schemas: Mapping[str, Mapping[str, object]],
        containment: ContainmentLog,
    ) -> None:
        self._trajectories = trajectories
        self._containment = containment
        self._clock = clock
        self._schemas = schemas
        self._opening = asyncio.Lock()

    async def route(
        self, method: str, rest: list[str], arguments: dict[str, object], caller: Caller
    ) -> Shown | Refusal:
        """Answer one request below `/seawall/v1/tasks` or `/seawall/v1/schemas`."""
        match (method, rest):
            case ("POST", ["tasks"]):
                return await self.open(arguments, caller)
            case ("GET", ["tasks", name]):
                return await self.show(name, caller)
            case ("POST", ["tasks", name, "result"]):
                return await self.end(name, arguments, caller)
            case ("GET", ["schemas", name]) if name.removesuffix(".json") in self._schemas:
                return Shown(200, dict(self._schemas[name.removesuffix(".json")]))
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"{method} is not served there. Use POST …/tasks, GET …/tasks/ID, POST …/tasks/ID/result, or "
            f"GET …/schemas/NAME with NAME one of {', '.join(self._schemas)}.",
        )

    async def open(self, arguments: dict[str, object], caller: Caller) -> Shown | Refusal:
        """Open the run of a task."""
        packet = read_packet(arguments)
        if isinstance(packet, list):
            return _wrong("The task was not opened", packet)
        if packet.max_retries is not None and packet.retry_count > packet.max_retries:
            return Refusal(
                code=Code.BUDGET_EXHAUSTED,
                detail=f"Task {packet.task_id} was tried {packet.retry_count} times and may be {packet.max_retries} times. "
                "It was not opened; hand it to a person.",
                extra={"budget": {"spent": "retries", "caps": {"retries": packet.max_retries}}},
            )
        async with self._opening:
            run = await self._run_of(packet, caller)
            if isinstance(run, Refusal) or run.state.task is not None:
                return run if isinstance(run, Refusal) else self._known(run, packet, caller)
            if run.state.version:
                return Refusal(
                    code=Code.IDEMPOTENCY_MISMATCH,
                    detail=f"A run is called {packet.task_id!r} already, and no task packet opened it. Choose another id.",
                )
            if (refusal := await self._branch(packet, caller, run)) is not None:
                return refusal
            future = self._trajectories.record(
                run,
                [TaskAccepted(task=asdict(packet), digest=packet_digest(packet))],
                claims=(KeyClaim(_key(packet, caller), 0, self._clock.at() + KEY_DAYS * 86_400_000),),
            )
            await asyncio.shield(future)
        return Shown(201, self._view(run))

    async def _branch(self, packet: TaskPacket, caller: Caller, run: Run) -> Refusal | None:
        """Have the parent's run know of its child before there is one, so that what the child spends counts there, and so
        that what is found of the parent is found of the child: it works on what the parent has made. Nothing that is
        quarantined hands work on.

        In the place of a parent that is over counts the nearest one above it that is not. A parent that no run is known of
        is a name and nothing more.
        """
        parent = None if packet.parent_task_id is None else await self._trajectories.find(packet.parent_task_id)
        if parent is None or not parent.state.version or (caller.is_proven and parent.state.agent != caller.name):
            return None
        quarantine = self._containment.state.holds(parent.state.id, parent.state.agent)
        if quarantine is not None:
            return Refusal(
                code=Code.QUARANTINED,
                detail=f"The task was not opened: its parent {parent.state.id} is quarantined ({quarantine}). Send nothing "
                "more; an operator has to look at it.",
                extra={"quarantine": quarantine},
            )
        counting = await self._not_over(parent)
        if counting is not None:
            run.parent = counting.state.id
            if packet.task_id in counting.state.children:
                return None
        self._handed_on(parent, packet.task_id, caller)
        if counting is not None:
            await asyncio.shield(self._trajectories.record(counting, [ChildOpened(child=packet.task_id)]))
        return None

    async def _not_over(self, run: Run) -> Run | None:
        """Return the run, or the nearest above it, that is not over."""
        agent, found = run.state.agent, run
        for _ in range(GENERATIONS):
            if not found.state.is_over:
                return found
            name = (found.state.task or {}).get("parent_task_id")
            above = await self._trajectories.find(name) if name else None
            if above is None or not above.state.version or above.state.agent != agent:
                return None
            found = above
        return None

    def _handed_on(self, parent: Run, child: str, caller: Caller) -> None:
        packet, epoch = task_artifact(child), self._containment.epoch
        self._containment.record([
            ArtifactsTouched(
                run=parent.state.id, agent=parent.state.agent, step=len(parent.state.steps), operation=_TASK,
                writes=[packet], epoch=epoch),
            ArtifactsTouched(run=child, agent=caller.name, step=0, operation=_TASK, reads=[packet], epoch=epoch),
        ])  # fmt: skip

    async def _run_of(self, packet: TaskPacket, caller: Caller) -> Run | Refusal:
        """The run that the packet's key names, else the run of its name, made if there is none."""
        owner = await self._trajectories.journal.find_key(_key(packet, caller), self._clock.at())
        if owner is not None and (known := await self._trajectories.find(owner.stream)) is not None:
            return known
        opening = Open(agent=caller.name, on_abandon=packet.on_abandon, budget=budget_of_packet(packet))
        run = await self._trajectories.named(packet.task_id, opening)
        if isinstance(run, Run) and caller.is_proven and run.state.agent != caller.name:
            return Refusal(
                code=Code.FOREIGN_TRAJECTORY, detail=f"{packet.task_id} belongs to another agent. Choose another id."
            )
        return run

    def _known(self, run: Run, packet: TaskPacket, caller: Caller) -> Shown | Refusal:
        if caller.is_proven and run.state.agent != caller.name:
            return _unknown(packet.task_id)
        if run.state.task_digest == packet_digest(packet):
            return Shown(200, self._view(run))
        return Refusal(
            code=Code.IDEMPOTENCY_MISMATCH,
            detail=f"Another packet has opened task {run.state.id} under this name or key. Send that one again "
            "unchanged, or use a new task_id and a new idempotency_key.",
            extra={"task_id": run.state.id},
        )

    async def show(self, name: str, caller: Caller) -> Shown | Refusal:
        """Show how a task stands."""
        run = await self._found(name, caller)
        return run if isinstance(run, Refusal) else Shown(200, self._view(await self._trajectories.durable(run)))

    async def end(self, name: str, arguments: dict[str, object], caller: Caller) -> Shown | Refusal:
        """End a task as whoever did it says."""
        run = await self._found(name, caller)
        if isinstance(run, Refusal):
            return run
        said = read_result(arguments)
        if isinstance(said, list):
            return _wrong("The task was not ended", said)
        told = asdict(said)
        if run.state.task_ended is not None and run.state.task_ended != _plain(told):
            return Refusal(
                code=Code.ALREADY_DECIDED,
                detail=f"Task {name} has ended already: {run.state.task_ended.get('status')}. Its result packet stands.",
            )
        if run.state.task_ended is None:
            refusal = await self._close(run, said)
            if refusal is not None:
                return refusal
        run = await self._trajectories.durable(await self._trajectories.find(name) or run)
        is_over = run.state.is_over or run.state.open_incident is not None
        return Shown(200 if is_over else 202, self._view(run))

    async def _close(self, run: Run, said: TaskResult) -> Refusal | None:
        """Record the end and what the run does on it; where the run cannot end so, nothing is recorded."""
        verdict = decide(run.state, _command(run, said))
        if isinstance(verdict, Refusal):
            return verdict
        spent = {name: amount for name, amount in (("usd", said.cost_usd), ("tokens", said.tokens)) if amount}
        spend(run, spent)
        used = [UsageReported(values=spent)] if spent else []
        return await self._trajectories.recorded(run, [*used, TaskEnded(result=_plain(asdict(said))), *verdict])

    async def _found(self, name: str, caller: Caller) -> Run | Refusal:
        run = await self._trajectories.find(name)
        if run is None or run.state.task is None or (caller.is_proven and run.state.agent != caller.name):
            return _unknown(name)
        return run

    def _view(self, run: Run) -> dict[str, object]:
        state, at = run.state, self._clock.at()
        view = dict(asdict(result_of_run(state, at)))
        view["trajectory"] = state.id
        view["task"] = state.task
        view["budget"] = meter_of(run).view(state.changed_at if state.is_over else at)
        return view


def _command(run: Run, said: TaskResult) -> Command:
    reason = said.error or f"the task ended: {said.status}"
    match said.status:
        case "done":
            return Commit()
        case "escalate":
            return Freeze(incident="ESCALATED", detail=reason)
    if run.state.is_past_pivot:
        return Freeze(incident="POST_PIVOT_STALLED", detail=reason)
    return Abort(reason=reason[:1000])


def _key(packet: TaskPacket, caller: Caller) -> bytes:
    return bytes.fromhex(caller_digest(caller.name, _TASK, packet.idempotency_key or packet.task_id))


def _plain(told: dict[str, object]) -> dict[str, object]:
    """As it is after a round through the journal."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}


def _wrong(what: str, problems: list[str]) -> Refusal:
    return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"{what}: {'; '.join(problems)}.", extra={"problems": problems})


def _unknown(name: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_TRAJECTORY,
        detail=f"No task is called {name[:128]!r}. Open it with POST /seawall/v1/tasks.",
    )
