"""The writing side of the seal: one chain for each opening of the journal, advanced inside the commit that writes the rows.

Only the thread that writes the file touches a `Sealer`, so a chain cannot fork. Its first entry, `ChainOpened`, follows
the last seal that was there: chains of all openings are links of one. A failed commit leaves the sealer stale; the next one
reads the head of the chain from the file before it goes on, since nobody else knows whether the rows are there.

When the ring has another active key than the chain, the next commit begins with `KeyRotated`: sealed under the old key, with
a proof under the new one inside. No other entry may change the key, so a retired key cannot be used to forge.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.seal import (
    FIRST_LINK,
    SALT_BYTES,
    SCHEMA_VERSION,
    SealKey,
    canonical,
    chain_digest,
    payload_digest,
)
from gateway.journal.keyring import KeyRing
from gateway.journal.plan import Plan

__all__ = ["ADD_ENVELOPE", "OWN", "Row", "Sealer", "last_own_count", "rotation_proof"]

ADD_ENVELOPE: Final = (
    "INSERT INTO envelope (id, epoch, key, effect, destination, route, producer, salt, digest, mac, note) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

OWN: Final = "journal"
"""Producer and destination of the journal's own entries."""

_HEAD = "SELECT id, key, mac FROM envelope ORDER BY id DESC LIMIT 1"
_ADD_CHAIN = "INSERT INTO chain (epoch, boot) VALUES (?, ?)"
_NEXT_EPOCH = "SELECT coalesce(max(epoch), 0) + 1 FROM chain"
_LAST_OWN = "SELECT note FROM envelope WHERE note IS NOT NULL ORDER BY id DESC LIMIT 1"
_LAST_RECORD = "SELECT coalesce(max(id), 0) FROM record"

Row = tuple[int, int, str, str, str, str, str, bytes | None, bytes, bytes, bytes | None]


class Sealer:
    """The chain of this opening of the journal.

    Attributes:
        ring: the keys; may be replaced by one that was read again, also from another thread.
        position: id of the last row.
        mac: its seal.
        is_stale: a commit failed; `begin` reads the head again.
    """

    def __init__(self, ring: KeyRing, key: SealKey, epoch: int, boot: str, position: int, mac: bytes, own: int) -> None:
        self.ring = ring
        self.key = key
        self.epoch = epoch
        self.boot = boot
        self.position = position
        self.mac = mac
        self.own = own
        self.is_stale = False

    def __repr__(self) -> str:
        return f"<Sealer epoch={self.epoch} position={self.position} key={self.key.id}>"

    @classmethod
    def open(cls, connection: sqlite3.Connection, ring: KeyRing, boot: str, at: int) -> Sealer:
        """Begin a chain in a transaction that the caller holds, after the last row of the file. Nothing is verified here.

        Args:
            connection: in a write transaction.
            ring: keys; the one that sealed last must be among them.
            boot: a fresh name.
            at: UTC milliseconds.
        """
        sealer = cls.follow(connection, ring, boot)
        sealer.turn(connection, at)
        unsealed = _one(connection, _LAST_RECORD) if sealer.epoch == 1 else None
        sealer.add(connection, "ChainOpened", at, {"boot": boot, "unsealed": unsealed})
        return sealer

    @classmethod
    def follow(cls, connection: sqlite3.Connection, ring: KeyRing, boot: str) -> Sealer:
        """Note a new chain, without an entry of its own yet."""
        head = connection.execute(_HEAD).fetchone()
        position, key, mac = head or (_one(connection, _LAST_RECORD), ring.active.id, FIRST_LINK)
        epoch = _one(connection, _NEXT_EPOCH)
        connection.execute(_ADD_CHAIN, (epoch, boot))
        found = ring.find(key) or ring.active
        return cls(ring, found, epoch, boot, position, mac, last_own_count(connection))

    @property
    def goes_on(self) -> bool:
        """Whether the next row follows this one, without a look at the file or another key in between."""
        return not self.is_stale and self.ring.active.id == self.key.id

    def begin(self, connection: sqlite3.Connection) -> None:
        """Make sure, inside a transaction, that the chain goes on where the file ends."""
        if self.is_stale:
            position, key, mac = connection.execute(_HEAD).fetchone()
            self.position, self.mac = position, mac
            self.key = self.ring.find(key) or self.key
            self.own = last_own_count(connection)
            self.is_stale = False

    def turn(self, connection: sqlite3.Connection, at: int) -> None:
        """Go over to the ring's active key, if it is another."""
        new = self.ring.active
        if new.id == self.key.id:
            return
        proof = rotation_proof(new, self.key.id, self.mac)
        self.add(connection, "KeyRotated", at, {"from": self.key.id, "to": new.id, "proof": proof})
        self.key = new

    def seal(self, plan: Plan) -> list[Row]:
        """Return the envelope row of each record of a plan, and advance the chain. The records have the rows' ids."""
        rows: list[Row] = []
        id, mac, key, key_id, epoch, boot = self.position, self.mac, self.key, self.key.id, self.epoch, self.boot
        salts = os.urandom(SALT_BYTES * len(plan.records))
        start = 0
        for (_, n, kind, at, data), (stream, effect, destination, route, producer) in zip(
            plan.records, plan.facts, strict=True
        ):
            id += 1
            salt = salts[start : start + SALT_BYTES]
            start += SALT_BYTES
            digest = payload_digest(key, salt, kind, data)
            sealed = canonical(
                f"{stream}#{n}",
                effect,
                f"{boot}/{id}",
                producer,
                SCHEMA_VERSION,
                epoch,
                destination,
                route,
                at,
                digest.hex(),
            )
            mac = chain_digest(key, mac, sealed)
            rows.append((id, epoch, key_id, effect, destination, route, producer, salt, digest, mac, None))
        self.position, self.mac = id, mac
        return rows

    def add(self, connection: sqlite3.Connection, kind: str, at: int, told: Mapping[str, Any]) -> None:
        """Write an entry of the journal's own."""
        self.own += 1
        self.position += 1
        id, note, salt = (
            self.position,
            orjson.dumps({"kind": kind, "at": at, "own": self.own, **told}),
            os.urandom(SALT_BYTES),
        )
        digest = payload_digest(self.key, salt, kind, note)
        sealed = canonical(
            f"{OWN}#{id}", "", f"{self.boot}/{id}", OWN, SCHEMA_VERSION, self.epoch, OWN, kind, at, digest.hex()
        )
        self.mac = chain_digest(self.key, self.mac, sealed)
        row: Row = (id, self.epoch, self.key.id, "", OWN, kind, OWN, salt, digest, self.mac, note)
        connection.execute(ADD_ENVELOPE, row)


def rotation_proof(new: SealKey, old: str, before: bytes) -> str:
    """Return what shows that whoever retired the key `old` after the seal `before` had the new key too."""
    return hmac.digest(new.chain, b"rotate\0%b\0%b" % (old.encode(), before), "sha256").hex()


def last_own_count(connection: sqlite3.Connection) -> int:
    """Return how many entries of its own the journal has written."""
    row = connection.execute(_LAST_OWN).fetchone()
    return int(orjson.loads(row[0])["own"]) if row is not None else 0


def _one(connection: sqlite3.Connection, sql: str) -> int:
    value: int = connection.execute(sql).fetchone()[0]
    return value
