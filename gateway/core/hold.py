"""Which claims are believed, and what is held because one is not.

A claim without proof is not refused for good: it is held. Nothing is dispatched, operators see it, and it is released by a
valid claim for the same thing, or by a person. A claim is believed once: its event is remembered, bound to what it was
believed for, until it would be too old anyway, so that repeating the same call is no replay and using it for another one is.

    held ──(valid claim for the same)──► accepted          held ──(a person)──► released, for its time

Reasons to hold: missing, malformed, wrong key, wrong digest (`core/claim.py`); expired, from the future, stale epoch, for
somebody else, replayed, not by one who may say so, by one who is quarantined.

Source: seed 001, "Fail-closed by default: HOLD".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Final

from annotated_types import Gt

from gateway.core.claim import BadClaim, ClaimKey, Envelope, verify
from gateway.core.setting import SECONDS, TEMPLATE, Doc

__all__ = [
    "ClaimAccepted",
    "ClaimHeld",
    "ClaimNeedSettings",
    "ClaimReleased",
    "ClaimSettings",
    "Claims",
    "EpochBegan",
    "Hold",
    "Trusted",
    "believe",
    "hold_view",
]

AHEAD_MS: Final = 30_000
"""How far a producer's clock may be ahead of ours."""

HOLDS_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSettings:
    """A key that claims are proven with, shared by those who make them and those who believe them."""

    secret: Annotated[str, TEMPLATE, Doc("`${secret:NAME}`, at least 16 bytes, kept outside every workspace.")]
    producers: Annotated[
        tuple[str, ...], Doc("Who may use it, as `agent@gateway` with `*` for any text; empty: anybody who has it.")
    ] = ()
    signs: Annotated[bool, Doc("The gateway signs with it what its own runs hand off; at most one key does.")] = False
    ttl: Annotated[float, SECONDS, Gt(0), Doc("How long after it was issued a claim is believed.")] = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNeedSettings:
    """The call needs a claim (`Seawall-Claim`) about exactly this call."""

    producers: Annotated[tuple[str, ...], Doc("Who may ask for it, as `agent@gateway` with `*`; empty: any.")] = ()


@dataclass(frozen=True, slots=True)
class Trusted:
    """A key, and whom it is believed of. `ttl_ms` is how old a claim may be."""

    key: ClaimKey
    producers: tuple[str, ...]
    ttl_ms: int
    signs: bool = False


# --- records, of the stream of what is contained


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """This process of the gateway has signed its first claim; earlier epochs are over."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAccepted:
    """A claim was believed, for `about` (a run and the digest of what was asked). Remembered until `until`, UTC ms."""

    event: str
    producer: str
    session_epoch: int
    about: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHeld:
    """Something is held for want of proof."""

    hold: str
    about: str
    run: str
    agent: str
    destination: str
    reason: str
    detail: str
    event: str = ""
    producer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReleased:
    """A person lets it go without proof, until `until` (UTC milliseconds)."""

    hold: str
    principal: str
    reason: str
    until: int


HoldRecord = EpochBegan | ClaimAccepted | ClaimHeld | ClaimReleased


@dataclass(slots=True)
class Hold:
    """Something held. `ended_by`: `proof`, or the person who released it; `until` is how long that is good."""

    told: ClaimHeld
    at: int
    ended_by: str | None = None
    until: int = 0

    @property
    def route_status(self) -> str:
        """`held`, `accepted` or `released`."""
        return "held" if self.ended_by is None else "accepted" if self.ended_by == "proof" else "released"


@dataclass(slots=True)
class Claims:
    """What was believed, by event; the highest epoch of each producer; what is held, by name and by what it is about."""

    events: dict[str, ClaimAccepted] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    epoch: int = 0

    def fold(self, record: HoldRecord, at: int) -> None:
        """Fold one record. What refers to something unknown changes nothing."""
        match record:
            case EpochBegan(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
            case ClaimAccepted():
                self._forget(at)
                self.events[record.event] = record
                known = self.epochs.get(record.producer, 0)
                self.epochs[record.producer] = max(known, record.session_epoch)
                hold = self.holds.get(self.about.get(record.about, ""))
                if hold is not None and hold.ended_by is None:
                    hold.ended_by, hold.until = "proof", record.until
            case ClaimHeld():
                if len(self.holds) >= HOLDS_LIMIT:
                    oldest = next(iter(self.holds))
                    self.about.pop(self.holds.pop(oldest).told.about, None)
                self.holds[record.hold] = Hold(record, at)
                self.about[record.about] = record.hold
            case ClaimReleased():
                found = self.holds.get(record.hold)
                if found is not None and found.ended_by is None:
                    found.ended_by, found.until = record.principal, record.until

    def is_released(self, about: str, at: int) -> bool:
        """Whether a person has let this go, and not too long ago."""
        hold = self.holds.get(self.about.get(about, ""))
        return hold is not None and hold.route_status == "released" and at < hold.until

    def _forget(self, at: int) -> None:
        """Drop events that are too old to be believed anyway; they are in the order in which they were accepted."""
        while self.events:
            event, oldest = next(iter(self.events.items()))
            if oldest.until > at:
                return
            del self.events[event]


def believe(
    claims: Claims,
    text: str,
    payload: bytes,
    trusted: Mapping[str, Trusted],
    *,
    about: str,
    destinations: Iterable[str],
    producers: tuple[str, ...],
    at: int,
) -> tuple[Envelope, ClaimAccepted | None]:
    """Return a claim's envelope, and the record that it was believed (None if it was before, for the same thing).

    Args:
        claims: what is known; not changed.
        text, payload: the claim, and what it says it is about.
        trusted: keys by name.
        about: what it would be believed for.
        destinations: those that it may name.
        producers: patterns, one of which must fit; empty: any.
        at: UTC milliseconds.

    Raises:
        BadClaim: it is not believed; the reason is one word.
    """
    envelope = verify(text, {name: one.key for name, one in trusted.items()}, payload)
    key = trusted[text.split(".")[1]]
    who = envelope.producer_id
    for patterns in (key.producers, producers):
        if patterns and not any(fnmatchcase(who, pattern) for pattern in patterns):
            raise BadClaim("wrong_producer", f"{who[:200]} may not say so")
    if envelope.destination not in destinations:
        raise BadClaim("wrong_destination", f"it is for {envelope.destination[:200]!r}")
    if envelope.issued_at > at + AHEAD_MS:
        raise BadClaim("expired", "it was issued in the future")
    if at >= envelope.issued_at + key.ttl_ms:
        raise BadClaim("expired", f"it was issued {(at - envelope.issued_at) // 1000} s ago")
    if envelope.session_epoch < claims.epochs.get(who, 0):
        raise BadClaim("stale_epoch", f"{who[:200]} has begun epoch {claims.epochs[who]} since")
    known = claims.events.get(envelope.event_id)
    if known is not None:
        if known.about != about or known.producer != who:
            raise BadClaim("replayed", f"event {envelope.event_id[:200]} was believed before, for something else")
        return envelope, None
    accepted = ClaimAccepted(
        event=envelope.event_id,
        producer=who,
        session_epoch=envelope.session_epoch,
        about=about,
        until=envelope.issued_at + key.ttl_ms,
    )
    return envelope, accepted


def hold_view(hold: Hold) -> dict[str, object]:
    """Return a hold as plain values; times are UTC milliseconds."""
    told = hold.told
    return {
        "id": told.hold,
        "route_status": hold.route_status,
        "reason": told.reason,
        "detail": told.detail,
        "trajectory": told.run,
        "agent": told.agent,
        "destination": told.destination,
        "event_id": told.event or None,
        "producer_id": told.producer or None,
        "at": hold.at,
        "ended_by": hold.ended_by,
    }
