"""The seal: what makes a changed, removed or invented record of the journal show.

Every record travels in an envelope of ten fields. Its payload enters as a digest under a key and a salt of its own, so the
payload can be erased (salt and content go, the digest stays) and the chain still holds. The envelope's canonical bytes,
together with the seal of the record before, make the record's own seal: change one, and every later one is wrong.

A seal proves that whoever wrote the record had the key. It cannot show that the newest records were cut off; for that a
`Checkpoint` is told to the outside from time to time, in the text format of transparency logs, and compared later.

Source: RFC 2104 (HMAC), RFC 7693 section 2.8 (keyed BLAKE2b with salt), C2SP tlog-checkpoint and signed-note (text of a
checkpoint). Left out: a Merkle tree, which pays off for auditors who hold only part of a log, and public-key signatures,
which would let an auditor verify without being able to forge; both fit in the same text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.core.keys import hmac_sha256

__all__ = [
    "FIRST_LINK",
    "SALT_BYTES",
    "SCHEMA_VERSION",
    "BadCheckpoint",
    "Checkpoint",
    "Envelope",
    "SealKey",
    "canonical",
    "chain_digest",
    "payload_digest",
]

SCHEMA_VERSION: Final = 1
SALT_BYTES: Final = 16
FIRST_LINK: Final = bytes(32)
"""What the first seal of a journal follows."""

_PERSON: Final = b"seawall-payload1"


@dataclass(frozen=True, slots=True)
class SealKey:
    """A key of the ring: two keys are derived from its secret, so that neither use can be turned against the other."""

    id: str
    chain: bytes
    payload: bytes

    @classmethod
    def of(cls, id: str, secret: bytes) -> SealKey:
        """Derive the key for chaining and the key for payloads.

        Source: RFC 5869 (HKDF-Expand with one block).
        """
        return cls(
            id,
            hmac.digest(secret, b"seawall chain %b\x01" % id.encode(), "sha256"),
            hmac.digest(secret, b"seawall payload %b\x01" % id.encode(), "sha256"),
        )

    def __repr__(self) -> str:
        return f"<SealKey {self.id}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The ten fields under which a record is sealed.

    Attributes:
        event_id: the run and the number of the record in it.
        effect_id: the change in the world that it is about (run and step), or "".
        log_id: the chain (one for each start of a gateway) and the position in the log.
        producer_id: the agent.
        schema_version: of this envelope.
        session_epoch: how often the journal has been opened; grows with each chain.
        destination: the tool and operation it goes to, or "".
        route_status: state of the run after it, and whether it is open.
        issued_at: UTC milliseconds.
        payload_digest: see `payload_digest`, hexadecimal.
    """

    event_id: str
    effect_id: str
    log_id: str
    producer_id: str
    schema_version: int
    session_epoch: int
    destination: str
    route_status: str
    issued_at: int
    payload_digest: str

    def canonical(self) -> bytes:
        """Return the bytes that are sealed; see `canonical`."""
        return canonical(
            self.event_id,
            self.effect_id,
            self.log_id,
            self.producer_id,
            self.schema_version,
            self.session_epoch,
            self.destination,
            self.route_status,
            self.issued_at,
            self.payload_digest,
        )


def canonical(
    event_id: str,
    effect_id: str,
    log_id: str,
    producer_id: str,
    schema_version: int,
    session_epoch: int,
    destination: str,
    route_status: str,
    issued_at: int,
    payload_digest: str,
) -> bytes:
    """Return the bytes that are sealed: JSON without spaces, keys in order. Equal for equal envelopes only.

    A function of its own because the committer needs the bytes for each record and the object for none.
    """
    return orjson.dumps(
        {
            "destination": destination,
            "effect_id": effect_id,
            "event_id": event_id,
            "issued_at": issued_at,
            "log_id": log_id,
            "payload_digest": payload_digest,
            "producer_id": producer_id,
            "route_status": route_status,
            "schema_version": schema_version,
            "session_epoch": session_epoch,
        }
    )


def payload_digest(key: SealKey, salt: bytes, kind: str, data: bytes) -> bytes:
    """Return the digest of a payload: keyed, so that nobody else can make one; salted (16 bytes, a row's own), so that it
    tells nothing any more once the salt is gone."""
    return hashlib.blake2b(
        b"%b\0%b" % (kind.encode(), data), digest_size=32, key=key.payload, salt=salt, person=_PERSON
    ).digest()


def chain_digest(key: SealKey, before: bytes, envelope: bytes) -> bytes:
    """Return the seal of an envelope (its canonical bytes) that follows the seal `before`."""
    return hmac_sha256(key.chain, before + envelope)


class BadCheckpoint(ValueError):
    """This text is no checkpoint, or not one of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far the log reached at a moment: `size` is the position of its last record, `root` the seal of that record."""

    origin: str
    size: int
    root: bytes
    at: int

    def note(self, key: SealKey) -> str:
        """Return the checkpoint as signed text, under the active key."""
        text = self._text()
        signature = base64.b64encode(_signature(key, text)).decode()
        return f"{text}\n— {key.id} {signature}\n"

    def _text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\nissued {self.at}\n"

    @classmethod
    def parse(cls, note: str) -> tuple[Checkpoint, str, bytes]:
        """Return a checkpoint, the id of the key that signed it, and its signature; `is_signed` checks that.

        Raises:
            BadCheckpoint: it is not such a text.
        """
        text, _, signatures = note.partition("\n\n")
        try:
            origin, size, root, issued = text.split("\n")
            word, at = issued.split(" ")
            dash, key, signature = signatures.strip("\n").split("\n")[0].split(" ")
            if word != "issued" or dash != "—":
                raise ValueError
            made = cls(origin=origin, size=int(size), root=base64.b64decode(root, validate=True), at=int(at))
            return made, key, base64.b64decode(signature, validate=True)
        except (ValueError, binascii.Error):
            raise BadCheckpoint(
                "this is no checkpoint: expected four lines (origin, size, root, time), an empty one and a signature"
            ) from None

    def is_signed(self, key: SealKey, signature: bytes) -> bool:
        """Whether a signature is that of `key` under this very checkpoint."""
        return hmac.compare_digest(_signature(key, self._text()), signature)


def _signature(key: SealKey, text: str) -> bytes:
    return hmac.digest(key.chain, b"checkpoint\0" + text.encode(), "sha256")
