"""Keeps runs away from tainted artifacts, and writes down which artifacts each call touches.

Which artifacts those are, expressions of the manifest say: from the arguments before the call leaves, or from the answer
before the agent has it. The edge is queued for the disk before the call goes on, and the intent behind it, so an effect
whose edge is not durable never leaves. A name that cannot be told from the arguments keeps the call in; one that cannot be
told from an answer stands in the graph as `tool.operation#step`.

Operations that name no artifacts do without this stage (`concerns`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from gateway.core.call import Call, Handler, Lane
from gateway.core.codes import Code, Dispatched
from gateway.core.coding import decoded
from gateway.core.containment import ArtifactsTouched, TouchSettled
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import Environment, Expression, ExpressionError
from gateway.core.message import body_bytes
from gateway.core.outcome import Failed, Outcome, Refusal, Rejected, Success
from gateway.core.policy import Effect
from gateway.core.taint import Blocked
from gateway.core.tool import Artifacts, Operation, ToolSpec
from gateway.journal.containment import ContainmentLog
from gateway.journal.trajectories import Trajectories
from gateway.stages.environment import call_env

__all__ = ["QuarantineStage"]

InShadow = Callable[[Call, str, Effect], None]

NAMES_LIMIT: Final = 1_000
NAME_LIMIT: Final = 1_024


class QuarantineStage:
    """Refuses what is tainted, records what is touched."""

    def __init__(self, log: ContainmentLog, trajectories: Trajectories, in_shadow: InShadow | None = None) -> None:
        """`in_shadow`: nothing is refused, and it is told what would have been."""
        self._in_shadow = in_shadow
        self._log = log
        self._trajectories = trajectories

    @staticmethod
    def concerns(tool: ToolSpec, operation: Operation) -> bool:
        """Whether the operation names artifacts."""
        return operation.artifacts is not None

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Ask, record, go on, and look at the answer."""
        artifacts = call.operation.artifacts
        if artifacts is None or call.lane is not Lane.FORWARD or call.step is not None:
            return await proceed(call)
        env = await call_env(call)
        try:
            reads, writes = _named(artifacts.reads, env), _named(artifacts.writes, env)
        except ExpressionError as error:
            return Rejected(_unnamed(call, error))
        run = call.trajectory
        if (refusal := self._blocked(call, [*reads, *writes], run)) is not None:
            return Rejected(refusal)
        digest = None if artifacts.content is not None else _digest(await _body(call))
        touch = self._touch(call, run, reads, writes, digest)
        if artifacts.has_answer_names:
            call.request.capture_answer = True
        outcome = await proceed(call)
        return await self._answered(call, artifacts, env, touch, outcome)

    # --- before

    def _blocked(self, call: Call, names: Iterable[str], run: str, *, is_sent: bool = False) -> Refusal | None:
        blocked = self._log.state.lineage.blocked(names, run)
        if not blocked:
            return None
        if self._in_shadow is not None:
            self._in_shadow(call, "(artifact)", Effect.DENY)
            return None
        return _refusal(call, blocked, is_sent=is_sent)

    def _touch(self, call: Call, run: str, reads: list[str], writes: list[str], digest: str | None) -> int | None:
        """Queue the edges; return their place, or None where there is nothing new."""
        lineage = self._log.state.lineage
        fresh = [name for name in reads if not lineage.is_known_read(name, run)]
        if not fresh and not writes:
            return None
        known = self._trajectories.get(run)
        steps = 0 if known is None else len(known.state.steps)
        self._log.record([
            ArtifactsTouched(
                run=run,
                agent=call.agent,
                step=call.step or (steps if call.operation.is_read else steps + 1),
                operation=f"{call.tool.name}.{call.operation.name}",
                reads=fresh,
                writes=writes,
                digest=digest if writes else None,
                epoch=self._log.epoch,
            )
        ])  # fmt: skip
        return self._log.state.version

    # --- after

    async def _answered(
        self, call: Call, artifacts: Artifacts, env: dict[str, object], touch: int | None, outcome: Outcome
    ) -> Outcome:
        is_without_effect = isinstance(outcome, Failed | Rejected) and not call.operation.is_read
        if touch is not None and not call.operation.is_read:
            run = call.trajectory
            self._log.record([TouchSettled(touch=touch, run=run, step=call.step, has_effect=not is_without_effect)])
        if not isinstance(outcome, Success) or not (artifacts.has_answer_names or artifacts.content is not None):
            return outcome
        reply = outcome.reply
        data = await body_bytes(reply.body, EVALUATED_LIMIT) or b""
        env["response"] = response_env(reply.status, reply.headers, decoded(reply.headers, data, EVALUATED_LIMIT))
        unknown = f"{call.tool.name}.{call.operation.name}#{call.step or 0}"
        reads = _named_or(artifacts.answer_reads, env, unknown)
        writes = _named_or(artifacts.answer_writes, env, unknown)
        refusal = self._blocked(call, reads, call.trajectory, is_sent=True)
        digest = _digest(_content(artifacts.content, env)) if artifacts.content is not None else _digest(data)
        if touch is not None and artifacts.content is not None:
            self._log.record([TouchSettled(touch=touch, run=call.trajectory, digest=digest)])
        if reads or writes:
            self._touch(call, call.trajectory, reads, writes, digest)
            await asyncio.shield(self._log.record([]))
        if refusal is not None:
            await reply.aclose()
            return Rejected(refusal)
        return outcome


def _named(expressions: Iterable[Expression], env: Environment) -> list[str]:
    """Return the names that expressions yield: a text each, or a list of them.

    Raises:
        ExpressionError: one cannot be evaluated, or yields something else.
    """
    names: dict[str, None] = {}
    for expression in expressions:
        value = expression(env)
        for one in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(one, str) or not one or len(one) > NAME_LIMIT:
                raise ExpressionError(f"`{expression.source}` is no name of an artifact: a text of 1 to {NAME_LIMIT}")
            names[one] = None
    if len(names) > NAMES_LIMIT:
        raise ExpressionError(f"more than {NAMES_LIMIT} artifacts are named by one call")
    return list(names)


def _named_or(expressions: tuple[Expression, ...], env: Environment, unknown: str) -> list[str]:
    try:
        return _named(expressions, env)
    except ExpressionError:
        return [unknown]


def _content(expression: Expression, env: Environment) -> bytes:
    try:
        value = expression(env)
    except ExpressionError:
        return b""
    return value.encode() if isinstance(value, str) else repr(value).encode()


async def _body(call: Call) -> bytes | None:
    body = call.request.body
    return None if body is None or not body.is_replayable else await body_bytes(body, EVALUATED_LIMIT)


def _digest(data: bytes | None) -> str | None:
    return f"sha256:{hashlib.sha256(data).hexdigest()}" if data else None


def _refusal(call: Call, blocked: list[Blocked], *, is_sent: bool) -> Refusal:
    named = ", ".join(f"{one.artifact} ({one.taint.value}, {', '.join(one.quarantines)})" for one in blocked[:10])
    more = f" and {len(blocked) - 10} more" if len(blocked) > 10 else ""
    sent = "its answer is kept back" if is_sent else "nothing was sent"
    return Refusal(
        code=Code.ARTIFACT_QUARANTINED,
        dispatched=Dispatched.YES if is_sent else Dispatched.NO,
        dependency=call.tool.name,
        detail=f"{call.operation.name} touches what a quarantined run has made: {named}{more}; {sent}. Do not use it until "
        "an operator or a declared verifier has cleared it; saying that it is fine does not.",
        extra={"artifacts": [{"artifact": one.artifact, "taint": one.taint.value, "quarantines": list(one.quarantines)}
                             for one in blocked]},
    )  # fmt: skip


def _unnamed(call: Call, error: ExpressionError) -> Refusal:
    return Refusal(
        code=Code.INVALID_ARGUMENTS,
        dependency=call.tool.name,
        detail=f"It cannot be told which artifact {call.operation.name} touches ({error}), so nothing was sent. Give the "
        "arguments that name it.",
    )
