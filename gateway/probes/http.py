"""Asks by HTTP: the probe's request, bound and sent to its tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Lane
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import Environment, ExpressionError
from gateway.core.fault import Fault
from gateway.core.manifest import Tier
from gateway.core.message import BytesBody, Reply, Request, body_bytes
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.secret import SecretMissing
from gateway.core.tool import BoundRequest, Catalog, Operation, Probe, ToolSpec
from gateway.probes import Prober, Unheard

__all__ = ["HttpProbe"]


class HttpProbe:
    """Sends probes down the pipeline as reads. Keeps nothing."""

    def __init__(self, catalog: Callable[[], Catalog], clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    async def ask(self, probe: Probe, call: Call, env: Environment, proceed: Handler) -> Mapping[str, object] | Unheard:
        """Ask once."""
        try:
            bound = probe.request.bind(env)
        except ExpressionError as error:
            return Unheard(f"the probe cannot be bound: {error}", can_wait=False)
        tool = self._catalog().tools.get(bound.tool)
        if tool is None:
            return Unheard(f"the probe's tool {bound.tool} is not in the manifest", can_wait=False)
        try:
            question = self._question(call, bound, tool)
        except SecretMissing as error:
            return Unheard(str(error), can_wait=False)
        return await _heard(await proceed(question))

    def _question(self, call: Call, bound: BoundRequest, tool: ToolSpec) -> Call:
        now = self._clock.now()
        timeouts = tool.domain.timeouts
        headers = self._catalog().secrets.resolve_headers(bound.headers)
        return Call(
            tool=tool,
            operation=Operation(name=f"probe {call.operation.name}", tier=Tier.READ, timeouts=timeouts),
            request=Request(
                bound.method,
                bound.target.encode("ascii"),
                (
                    *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
                    (b"Accept-Encoding", b"identity"),
                ),
                None if bound.body is None else BytesBody(bound.body.encode()),
                has_side_effects=False,
            ),
            agent=call.agent,
            started=now,
            deadline=min(call.deadline, now + timeouts.total),
            trajectory=call.trajectory,
            is_run_named=True,
            lane=Lane.PROBE,
            traceparent=call.traceparent,
            tracestate=call.tracestate,
        )


async def _heard(outcome: Outcome) -> Mapping[str, object] | Unheard:
    match outcome:
        case Success(reply):
            return await _read(reply)
        case Failed(fault=Fault.CLIENT_ERROR, reply=reply) if reply is not None:
            return await _read(reply)
        case Rejected(refusal):
            return Unheard(f"the probe was not sent: {refusal.detail}", can_wait=False)
        case Failed() | InDoubt():
            if outcome.reply is not None:
                await outcome.reply.aclose()
                return Unheard(f"the probe was answered with {outcome.reply.status}")
            return Unheard("the probe was not answered")


async def _read(reply: Reply) -> Mapping[str, object]:
    try:
        data = await body_bytes(reply.body, EVALUATED_LIMIT) or b""
        return response_env(reply.status, reply.headers, decoded(reply.headers, data, EVALUATED_LIMIT))
    finally:
        await reply.aclose()


_: type[Prober] = HttpProbe
