"""Asks a tool whether something is as it has to be, down the same pipeline as any call: breaker, queue and deadline hold.

Closed by default: no such tool, no answer, an answer that cannot be read, an expectation that cannot be evaluated are all
a no, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Lane
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import Environment, ExpressionError
from gateway.core.manifest import Tier
from gateway.core.message import Body, BytesBody, Reply, Request
from gateway.core.outcome import Rejected
from gateway.core.secret import SecretMissing
from gateway.core.tool import BoundRequest, Catalog, Operation, Verifier
from gateway.egress import StreamBroken

__all__ = ["HttpVerifier"]


class HttpVerifier:
    """Sends verifiers' requests. `pipeline` is asked for at each use, because it contains whoever asks."""

    def __init__(self, pipeline: Callable[[], Handler], catalog: Callable[[], Catalog], clock: Clock) -> None:
        self._pipeline = pipeline
        self._catalog = catalog
        self._clock = clock

    async def ask(self, verifier: Verifier, env: Environment, *, agent: str, run: str, deadline: float) -> str | None:
        """Return None if the answer is as expected, else why the gate stays closed.

        `env` has what the request and the expectation may speak of, `response` excepted; `deadline` is monotonic.
        """
        catalog = self._catalog()
        tool = catalog.tools.get(verifier.tool)
        if tool is None:
            return f"its tool {verifier.tool} is not in the manifest"
        try:
            bound = verifier.request.bind(env)
            headers = catalog.secrets.resolve_headers(bound.headers)
        except (ExpressionError, SecretMissing) as error:
            return f"its request cannot be made: {error}"
        now, timeouts = self._clock.now(), tool.domain.timeouts
        call = Call(
            tool=tool,
            operation=Operation(name="verify", tier=Tier.READ, timeouts=timeouts),
            request=_request(bound, headers),
            agent=agent,
            started=now,
            deadline=min(deadline, now + timeouts.total),
            trajectory=run,
            is_run_named=True,
            lane=Lane.PROBE,
        )
        outcome = await self._pipeline()(call)
        reply = None if isinstance(outcome, Rejected) else outcome.reply
        if reply is None:
            refusal = None if not hasattr(outcome, "refusal") else outcome.refusal
            return f"{tool.name} gave no answer" + ("" if refusal is None else f": {refusal.detail}")
        return await self._judged(verifier, env, reply)

    async def _judged(self, verifier: Verifier, env: Environment, reply: Reply) -> str | None:
        try:
            data = await _limited(reply.body)
        except StreamBroken as error:
            return f"{verifier.tool} broke its answer off: {error}"
        finally:
            await reply.aclose()
        if data is None:
            return f"{verifier.tool} answered {reply.status} with more than {EVALUATED_LIMIT} bytes"
        response = response_env(reply.status, reply.headers, decoded(reply.headers, data, EVALUATED_LIMIT))
        try:
            holds = verifier.expect({**env, "response": response}) is True
        except ExpressionError as error:
            return f"{verifier.tool} answered {reply.status}, and what is expected cannot be evaluated: {error}"
        return None if holds else f"{verifier.tool} answered {reply.status}, not as expected: {verifier.expect.source}"


def _request(bound: BoundRequest, headers: tuple[tuple[str, str], ...]) -> Request:
    return Request(
        bound.method,
        bound.target.encode("ascii"),
        (
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers),
            (b"Accept-Encoding", b"identity"),
        ),
        None if bound.body is None else BytesBody(bound.body.encode()),
        has_side_effects=False,
        capture_answer=True,
    )


async def _limited(body: Body) -> bytes | None:
    data = bytearray()
    async for chunk in body.chunks():
        data += chunk
        if len(data) > EVALUATED_LIMIT:
            return None
    return bytes(data)
