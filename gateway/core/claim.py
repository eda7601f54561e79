"""A claim: what an agent says it did or wants done, in an envelope that proves who said it, of what, and when.

This file needs nothing but Python's standard library and may be copied as it is; agents in other languages follow
docs/claims.md, whose test vectors are made by it.

    text = sign(key, Envelope(...), payload)          # v1.<key>.<envelope>.<seal>, in base64url without padding
    envelope = verify(text, {key.id: key}, payload)   # raises BadClaim, which says what is wrong

The envelope has the ten fields under which the journal seals its records. Its canonical bytes are JSON in UTF-8, keys in
order, no spaces. `payload_digest` is HMAC-SHA256 of the payload, the seal HMAC-SHA256 of the canonical bytes, each under a
key of its own that is derived from the shared secret, so that neither can be passed off as the other.

Source: RFC 2104 (HMAC), RFC 5869 (HKDF-Expand with one block), RFC 4648 section 5 (base64url).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

__all__ = ["SCHEMA_VERSION", "BadClaim", "ClaimKey", "Envelope", "call_payload", "canonical", "sign", "verify"]

SCHEMA_VERSION = 1
LIMIT = 8_192
"""Longest text of a claim, in characters."""


class BadClaim(ValueError):
    """A claim that proves nothing. `reason` is one word: `missing`, `malformed`, `wrong_key`, `wrong_digest`, …"""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class ClaimKey:
    """A shared secret by its name: the key that seals envelopes, and the one that digests payloads."""

    id: str
    seal: bytes
    payload: bytes

    @classmethod
    def of(cls, id: str, secret: bytes) -> ClaimKey:
        """Derive both keys from a secret of at least 16 bytes."""
        return cls(id, _derived(secret, f"seawall claim {id}"), _derived(secret, f"seawall claim payload {id}"))

    def __repr__(self) -> str:
        return f"<ClaimKey {self.id}>"


@dataclass(frozen=True)
class Envelope:
    """The ten fields.

    Attributes:
        event_id: of this claim, never used twice.
        effect_id: the change in the world that it is about, such as `run/step`, or "".
        log_id: where the producer's journal tells of it, or "".
        producer_id: who says so, such as `agent@gateway`.
        schema_version: of this format.
        session_epoch: of the producer; grows with each of its starts.
        destination: whom it is for.
        route_status: `pending`, `accepted` or `held`.
        issued_at: UTC milliseconds.
        payload_digest: hexadecimal; `sign` fills it in.
    """

    event_id: str
    effect_id: str
    log_id: str
    producer_id: str
    session_epoch: int
    destination: str
    issued_at: int
    route_status: str = "pending"
    schema_version: int = SCHEMA_VERSION
    payload_digest: str = ""


def canonical(envelope: Envelope) -> bytes:
    """Return the bytes that are sealed."""
    return json.dumps(asdict(envelope), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sign(key: ClaimKey, envelope: Envelope, payload: bytes) -> str:
    """Return a claim about a payload as text."""
    data = canonical(replace(envelope, payload_digest=_hmac(key.payload, payload).hex()))
    return f"v1.{key.id}.{_text(data)}.{_text(_hmac(key.seal, data))}"


def verify(text: str, keys: Mapping[str, ClaimKey], payload: bytes) -> Envelope:
    """Return the envelope of a claim whose seal and digest are right. Time, epoch and replay are for the caller to judge.

    Raises:
        BadClaim: it is missing, malformed, sealed with another key, or about another payload.
    """
    if not text:
        raise BadClaim("missing", "there is no claim")
    parts = text.split(".")
    if len(parts) != 4 or parts[0] != "v1" or len(text) > LIMIT:
        raise BadClaim("malformed", "the claim is not of the form v1.<key>.<envelope>.<seal>")
    key = keys.get(parts[1])
    if key is None:
        raise BadClaim("wrong_key", f"the key {parts[1][:64]!r} is not known here")
    data, seal = _bytes(parts[2]), _bytes(parts[3])
    if not hmac.compare_digest(_hmac(key.seal, data), seal):
        raise BadClaim("wrong_key", f"the seal is not that of the key {key.id}")
    envelope = _envelope(data)
    if not hmac.compare_digest(_hmac(key.payload, payload).hex(), envelope.payload_digest):
        raise BadClaim("wrong_digest", "the claim is about another payload")
    return envelope


def call_payload(method: str, target: bytes, body: bytes) -> bytes:
    """Return the payload of a claim that goes with a call: `METHOD target`, a line feed, the body."""
    return b"%b %b\n%b" % (method.encode("ascii"), target, body)


def _envelope(data: bytes) -> Envelope:
    try:
        values = json.loads(data)
        envelope = Envelope(**values)
    except (ValueError, TypeError):
        raise BadClaim("malformed", "the envelope does not have the ten fields") from None
    numbers = ("schema_version", "session_epoch", "issued_at")
    if any(type(value) is not (int if name in numbers else str) for name, value in values.items()):
        raise BadClaim("malformed", "a field of the envelope is of the wrong type")
    if envelope.schema_version != SCHEMA_VERSION:
        raise BadClaim("malformed", f"schema_version {envelope.schema_version} is not known here")
    if canonical(envelope) != data:
        raise BadClaim("malformed", "the envelope is not in its canonical form")
    return envelope


def _derived(secret: bytes, label: str) -> bytes:
    if len(secret) < 16:
        raise ValueError("a secret for claims has at least 16 bytes")
    return hmac.digest(secret, label.encode() + b"\x01", "sha256")


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadClaim("malformed", "a part of the claim is not base64url") from None
    if _text(data) != text:
        raise BadClaim("malformed", "a part of the claim is not base64url in its one form")
    return data
