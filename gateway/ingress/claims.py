"""Hand-offs and inbound claims: what a run tells another agent, signed; what it was told, believed or held.

The gateway signs only what its journal knows: of a run of the caller's, at most about a step that has committed, and not for
a run that is frozen or quarantined. It believes by the rules of `core/hold.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from typing import Final

import orjson

from gateway.clock import Clock
from gateway.core.claim import BadClaim, Envelope, sign
from gateway.core.codes import Code
from gateway.core.containment import Containment
from gateway.core.hold import ClaimHeld, ClaimReleased, EpochBegan, believe, hold_view
from gateway.core.outcome import Refusal
from gateway.core.saga import admits_settling
from gateway.core.tool import Catalog
from gateway.core.trajectory import Phase, StepState
from gateway.ingress.runs import Shown
from gateway.journal.containment import ContainmentLog
from gateway.journal.trajectories import Run
from gateway.stages.hold import held_refusal, is_contained

__all__ = ["Claims"]

_NAME: Final = re.compile(r"[\x21-\x7e]{1,200}")
RELEASED_MS: Final = 3_600_000
"""How long a person's release is good."""


class Claims:
    """The verbs, free of any framework."""

    def __init__(self, log: ContainmentLog, catalog: Callable[[], Catalog], clock: Clock) -> None:
        self._log = log
        self._catalog = catalog
        self._clock = clock
        self._signed = 0
        self._begun: asyncio.Future[None] | None = None

    @property
    def _state(self) -> Containment:
        return self._log.state

    async def hand_off(self, run: Run, agent: str, arguments: dict[str, object]) -> Shown | Refusal:
        """Sign what a run hands to another agent: 201 with the claim."""
        destination, step = arguments.get("destination"), arguments.get("step")
        payload = _payload(arguments.get("payload"))
        problems = [f"{key!r} is not known" for key in sorted(arguments.keys() - {"destination", "payload", "step"})]
        if not isinstance(destination, str) or not _NAME.fullmatch(destination):
            problems.append("destination must say whom it is for")
        if payload is None:
            problems.append("payload must be a text or JSON")
        if step is not None and not isinstance(step, int):
            problems.append("step must be the number of a step")
        if problems:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"Nothing was signed: {'; '.join(problems)}.")
        assert isinstance(destination, str)
        assert payload is not None
        refusal = self._may_sign(run, agent, step)
        if refusal is not None:
            return refusal
        signing = next((one for one in self._catalog().claim_keys.values() if one.signs), None)
        if signing is None:
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail="This gateway signs nothing: no key of `claims` has `signs: true`. Ask the operator for one.",
            )
        await self._epoch()
        self._signed += 1
        state = run.state
        envelope = Envelope(
            event_id=f"{state.id}#{self._log.epoch}.{self._signed}",
            effect_id="" if step is None else f"{state.id}/{step}",
            log_id=f"{state.id}#{state.version}",
            producer_id=f"{agent}@{self._log.name}",
            session_epoch=self._log.epoch,
            destination=destination,
            issued_at=self._clock.at(),
        )
        return Shown(201, {"claim": sign(signing.key, envelope, payload), "event_id": envelope.event_id,
                           "producer_id": envelope.producer_id, "effect_id": envelope.effect_id,
                           "expires_at": envelope.issued_at + signing.ttl_ms})  # fmt: skip

    def _may_sign(self, run: Run, agent: str, step: object) -> Refusal | None:
        held = self._state.holds(run.state.id, agent)
        if held is not None:
            return Refusal(
                code=Code.QUARANTINED,
                detail=f"Run {run.state.id} is quarantined ({held}); nothing is signed for it.",
                extra={"quarantine": held},
            )
        if run.state.phase is Phase.FROZEN:
            return admits_settling(run.state)
        if step is None:
            return None
        known = run.state.steps.get(step) if isinstance(step, int) else None
        if known is None or known.state is not StepState.COMMITTED:
            what = "is not there" if known is None else f"is {known.state.value}"
            return Refusal(
                code=Code.HOLD,
                detail=f"Nothing was signed: step {step} of run {run.state.id} {what}; only what has happened is claimed.",
                extra={"route_status": "held", "reason": "no_effect"},
            )
        return None

    async def _epoch(self) -> None:
        """Let the epoch of this process be durable before anything is signed in it."""
        if self._state.claims.epoch < self._log.epoch:
            self._begun = self._log.record([EpochBegan(epoch=self._log.epoch)])
        if self._begun is not None:
            await asyncio.shield(self._begun)

    async def receive(self, run: Run, agent: str, arguments: dict[str, object]) -> Shown | Refusal:
        """Believe what a run was told, or hold it: 200 with the envelope, 403 `ERR_HOLD` without proof."""
        payload, text = _payload(arguments.get("payload")), arguments.get("claim", "")
        if payload is None or not isinstance(text, str) or arguments.keys() - {"claim", "payload"}:
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail='Nothing was believed: the body is {"claim": TEXT, "payload": TEXT or JSON}.',
            )
        about = f"{run.state.id}|told|{hashlib.sha256(payload).hexdigest()}"
        claims, at = self._state.claims, self._clock.at()
        try:
            envelope, accepted = believe(
                claims, text, payload, self._catalog().claim_keys, about=about,
                destinations=(agent, f"agent:{agent}"), producers=(), at=at,
            )  # fmt: skip
            is_contained(self._log, envelope)
        except BadClaim as bad:
            return await self._held(run, agent, about, bad)
        if accepted is not None:
            await asyncio.shield(self._log.record([accepted]))
        return Shown(200, {**_told(envelope), "route_status": "accepted"})

    async def _held(self, run: Run, agent: str, about: str, bad: BadClaim) -> Shown | Refusal:
        claims = self._state.claims
        if claims.is_released(about, self._clock.at()):
            hold = claims.holds[claims.about[about]]
            return Shown(200, hold_view(hold))
        known = claims.holds.get(claims.about.get(about, ""))
        if known is None or known.route_status != "held" or known.told.reason != bad.reason:
            held = ClaimHeld(
                hold=f"h{self._state.version + 1}", about=about, run=run.state.id, agent=agent, destination=f"agent:{agent}",
                reason=bad.reason, detail=str(bad),
            )  # fmt: skip
            await asyncio.shield(self._log.record([held]))
            known = claims.holds[held.hold]
        return held_refusal(known.told, "What you were told is not believed")

    # --- operators

    def holds(self, *, is_all: bool) -> Shown:
        """List what is held, the oldest first."""
        holds = self._state.claims.holds.values()
        return Shown(200, {"holds": [hold_view(one) for one in holds if is_all or one.route_status == "held"]})

    async def release(self, name: str, principal: str, reason: str) -> Shown | Refusal:
        """Let something go without proof; doing so again changes nothing."""
        hold = self._state.claims.holds.get(name)
        if hold is None:
            return Refusal(
                code=Code.UNKNOWN_INCIDENT,
                detail=f"Nothing that is held is called {name[:64]!r}. `seawall holds ls` lists it.",
            )
        if hold.route_status == "held":
            if principal == hold.told.agent:
                return Refusal(code=Code.POLICY_DENIED, detail="An agent does not release what it was told itself.")
            until = self._clock.at() + RELEASED_MS
            await asyncio.shield(
                self._log.record([ClaimReleased(hold=name, principal=principal, reason=reason, until=until)])
            )
        return Shown(200, hold_view(hold))


def _payload(value: object) -> bytes | None:
    """A text is its own bytes; JSON its canonical ones (keys in order, no spaces)."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _told(envelope: Envelope) -> dict[str, object]:
    return {
        "event_id": envelope.event_id,
        "effect_id": envelope.effect_id,
        "log_id": envelope.log_id,
        "producer_id": envelope.producer_id,
        "schema_version": envelope.schema_version,
        "session_epoch": envelope.session_epoch,
        "destination": envelope.destination,
        "issued_at": envelope.issued_at,
        "payload_digest": envelope.payload_digest,
    }
