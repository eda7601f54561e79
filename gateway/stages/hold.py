"""Keeps a call in that comes without proof of who asked for it, until proof comes or a person lets it go.

The proof is a claim in the field `Seawall-Claim` about exactly this call. What is held is recorded and durable before the
agent is told; what is believed is durable before the call goes on, so that no claim is believed twice across a crash.
Operations that need no claim do without this stage (`concerns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.clock import Clock
from gateway.core.call import Call, Handler, Lane
from gateway.core.claim import BadClaim, Envelope, call_payload
from gateway.core.codes import Code
from gateway.core.environment import EVALUATED_LIMIT
from gateway.core.hold import ClaimHeld, believe
from gateway.core.message import body_bytes, first_header
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.core.policy import Effect
from gateway.core.tool import Catalog, Operation, ToolSpec
from gateway.journal.containment import ContainmentLog

__all__ = ["FIELD", "HoldStage", "held_refusal", "is_contained"]

FIELD: Final = b"seawall-claim"


class HoldStage:
    """Asks for proof."""

    def __init__(
        self,
        log: ContainmentLog,
        catalog: Callable[[], Catalog],
        clock: Clock,
        in_shadow: Callable[[Call, str, Effect], None] | None = None,
    ) -> None:
        """`in_shadow`: nothing is held, and it is told what would have been."""
        self._in_shadow = in_shadow
        self._log = log
        self._catalog = catalog
        self._clock = clock

    @staticmethod
    def concerns(tool: ToolSpec, operation: Operation) -> bool:
        """Whether calls of the operation need a claim."""
        return operation.claim is not None

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Go on with proof, or hold."""
        need = call.operation.claim
        if need is None or call.lane is not Lane.FORWARD or call.step is not None:
            return await proceed(call)
        destination = f"{call.tool.name}.{call.operation.name}"
        claims, at = self._log.state.claims, self._clock.at()
        body = b"" if call.request.body is None else await body_bytes(call.request.body, EVALUATED_LIMIT)
        about = f"{call.trajectory}|{call.action.hex()}|{call.fingerprint.hex()}"
        text = (first_header(call.request.headers, FIELD) or b"").decode("latin-1")
        try:
            if body is None:
                raise BadClaim("wrong_digest", f"the body is larger than {EVALUATED_LIMIT} bytes and cannot be claimed")
            envelope, accepted = believe(
                claims,
                text,
                call_payload(call.request.method, call.request.target, body),
                self._catalog().claim_keys,
                about=about,
                destinations=(destination, call.tool.name),
                producers=need.producers,
                at=at,
            )
            is_contained(self._log, envelope)
        except BadClaim as bad:
            return await self._without(call, proceed, bad, about, destination)
        if accepted is not None:
            await asyncio.shield(self._log.record([accepted]))
        return await proceed(call)

    async def _without(self, call: Call, proceed: Handler, bad: BadClaim, about: str, destination: str) -> Outcome:
        claims = self._log.state.claims
        if claims.is_released(about, self._clock.at()):
            return await proceed(call)
        if self._in_shadow is not None:
            self._in_shadow(call, "(claim)", Effect.HOLD)
            return await proceed(call)
        known = claims.holds.get(claims.about.get(about, ""))
        if known is None or known.route_status != "held" or known.told.reason != bad.reason:
            held = ClaimHeld(
                hold=f"h{self._log.state.version + 1}",
                about=about,
                run=call.trajectory,
                agent=call.agent,
                destination=destination,
                reason=bad.reason,
                detail=str(bad),
            )
            await asyncio.shield(self._log.record([held]))
            known = claims.holds[held.hold]
        return Rejected(held_refusal(known.told, f"{call.operation.name} was not sent to {call.tool.name}"))


def is_contained(log: ContainmentLog, envelope: Envelope) -> None:
    """Refuse a claim whose producer, as far as it is one of ours, is quarantined.

    Raises:
        BadClaim: it is.
    """
    run, agent = envelope.event_id.partition("#")[0], envelope.producer_id.partition("@")[0]
    if envelope.producer_id.endswith(f"@{log.name}") and log.state.holds(run, agent) is not None:
        raise BadClaim("quarantined", f"its producer is quarantined ({log.state.holds(run, agent)})")


def held_refusal(held: ClaimHeld, what: str) -> Refusal:
    """Return what an agent reads of something that is held."""
    return Refusal(
        code=Code.HOLD,
        detail=f"{what}: it is held ({held.hold}), because its claim proves nothing: {held.detail}. Send it again with a "
        "valid claim in Seawall-Claim, or wait until a person has released it; do not act on it meanwhile.",
        extra={"hold": held.hold, "route_status": "held", "reason": held.reason},
    )
