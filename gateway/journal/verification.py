"""Reading the chain again, record by record, and saying exactly what is wrong with it.

Verdicts: `ok`; `tampered` (a record was changed, removed, put in, or sealed by somebody without the key); `missing_key`
(all that can be checked is right, but some records are sealed under a key that the ring does not hold); `truncated` (the log
ends before a checkpoint that was told outside); `acknowledged` (broken, and a person has said why). The first bad record is
named.

Rows that retention archived, payloads that were erased, and breaks that were acknowledged are excused by entries of the
journal's own, which are sealed like everything else: an excuse counts only if its entry verifies.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from gateway.core.seal import FIRST_LINK, SCHEMA_VERSION, Checkpoint, Envelope, canonical, chain_digest, payload_digest
from gateway.journal.keyring import KeyRing
from gateway.journal.plan import route_status
from gateway.journal.sealer import OWN, rotation_proof

__all__ = ["Range", "SealedRow", "Verdict", "Verification", "archived_digest", "rows_after", "verify"]

_ROWS = (
    "SELECT e.id, e.epoch, e.key, e.effect, e.destination, e.route, e.producer, e.salt, e.digest, e.mac, e.note, c.boot, "
    "r.n, r.kind, r.at, r.data, h.name, h.version, h.state, h.is_open, h.agent "
    "FROM envelope e LEFT JOIN chain c ON c.epoch = e.epoch LEFT JOIN record r ON r.id = e.id "
    "LEFT JOIN head h ON h.id = r.stream WHERE e.id > ? ORDER BY e.id"
)
_START = "SELECT id, key, mac FROM envelope WHERE id <= ? ORDER BY id DESC LIMIT 1"
_OWN = "SELECT id, note FROM envelope WHERE note IS NOT NULL AND route <> 'RunsArchived' ORDER BY id"
_LAST_ARCHIVED = (
    "SELECT id, note FROM envelope WHERE note IS NOT NULL AND route = 'RunsArchived' ORDER BY id DESC LIMIT 1"
)
_UNSEALED = (
    "SELECT r.id FROM record r LEFT JOIN envelope e ON e.id = r.id "
    "WHERE r.id > ? AND e.id IS NULL ORDER BY r.id LIMIT 1"
)
_HEADLESS = (
    "SELECT name FROM head h "
    "WHERE NOT EXISTS (SELECT 1 FROM record r WHERE r.stream = h.id AND r.n = h.version) LIMIT 1"
)


class Verdict(StrEnum):
    """What a verification found."""

    OK = "ok"
    TAMPERED = "tampered"
    MISSING_KEY = "missing_key"
    TRUNCATED = "truncated"
    ACKNOWLEDGED = "acknowledged"


class Range(NamedTuple):
    """Rows from `first` to `last` that are excused, and the seal that the next row follows."""

    first: int
    last: int
    mac: bytes


class SealedRow(NamedTuple):
    """A row of the log with its record (None where there is none) and the head of its run as it is now."""

    id: int
    epoch: int
    key: str
    effect: str
    destination: str
    route: str
    producer: str
    salt: bytes | None
    digest: bytes
    mac: bytes
    note: bytes | None
    boot: str | None
    n: int | None
    kind: str | None
    at: int | None
    data: bytes | None
    stream: str | None
    version: int | None
    state: str | None
    is_open: int | None
    agent: str | None

    @property
    def is_sealed(self) -> bool:
        """Whether it has an envelope; records from before the seal have none."""
        return self.boot is not None

    def sealed_bytes(self) -> bytes:
        """Return the canonical bytes of the envelope."""
        if self.note is not None:
            return self.envelope().canonical()
        return canonical(
            f"{self.stream}#{self.n}",
            self.effect,
            f"{self.boot}/{self.id}",
            self.producer,
            SCHEMA_VERSION,
            self.epoch,
            self.destination,
            self.route,
            self.at or 0,
            self.digest.hex(),
        )

    def envelope(self) -> Envelope:
        """Return the ten fields."""
        told = orjson.loads(self.note) if self.note is not None else {}
        return Envelope(
            event_id=f"{OWN}#{self.id}" if self.note is not None else f"{self.stream}#{self.n}",
            effect_id=self.effect,
            log_id=f"{self.boot}/{self.id}",
            producer_id=self.producer,
            schema_version=SCHEMA_VERSION,
            session_epoch=self.epoch,
            destination=self.destination,
            route_status=self.route,
            issued_at=told["at"] if self.note is not None else self.at or 0,
            payload_digest=self.digest.hex(),
        )


@dataclass(slots=True, kw_only=True)
class Verification:
    """What was found.

    Attributes:
        verdict: the gravest finding.
        first_bad: position of the first bad record, or None.
        finding: one sentence about it, with what to do.
        rows, own: rows that verified, and how many of them are the journal's own.
        erased: records whose payload was erased.
        archived: records that retention took.
        unsealed: records from before the seal was introduced; nothing is known about them.
        size, root: where the log ends.
        bad: ranges that do not verify, for an acknowledgement.
    """

    verdict: Verdict = Verdict.OK
    first_bad: int | None = None
    finding: str = "every record is as it was written"
    rows: int = 0
    own: int = 0
    erased: int = 0
    archived: int = 0
    unsealed: int = 0
    size: int = 0
    root: bytes = FIRST_LINK
    missing_keys: list[str] = field(default_factory=list)
    bad: list[Range] = field(default_factory=list)

    def note(self, verdict: Verdict, position: int | None, finding: str) -> None:
        """Keep a finding if it is graver than what is known."""
        if _GRAVITY[verdict] > _GRAVITY[self.verdict]:
            self.verdict, self.first_bad, self.finding = verdict, position, finding


_FIRST = attrgetter("first")

_GRAVITY = {
    Verdict.OK: 0,
    Verdict.ACKNOWLEDGED: 1,
    Verdict.MISSING_KEY: 2,
    Verdict.TRUNCATED: 3,
    Verdict.TAMPERED: 4,
}


@dataclass(slots=True)
class _Excuses:
    """What the journal's own entries excuse, and the entry that each excuse came from; `holes` in their order."""

    holes: list[Range] = field(default_factory=list)
    breaks: list[tuple[Range, int]] = field(default_factory=list)
    erased: dict[str, tuple[int, int]] = field(default_factory=dict)
    roots: dict[tuple[int, bytes], int] = field(default_factory=dict)
    archive: tuple[int, str] | None = None
    unsealed: int = 0
    first: int | None = None
    used: set[int] = field(default_factory=set)

    def hole(self, first: int, last: int) -> tuple[bytes, bool] | None:
        """Return the seal that follows the missing rows `first` to `last`, and whether that is an acknowledged break."""
        at, mac, is_break = first, b"", False
        while at <= last:
            index = bisect_right(self.holes, at, key=_FIRST) - 1
            found = self.holes[index] if index >= 0 else None
            if found is None or not at <= found.last <= last:
                broken = self.broken(at)
                if broken is None or broken.last > last:
                    return None
                found, is_break = broken, True
            at, mac = found.last + 1, found.mac
        return mac, is_break

    def broken(self, id: int) -> Range | None:
        """Return the acknowledged break that holds a row."""
        for each, entry in self.breaks:
            if each.first <= id <= each.last:
                self.used.add(entry)
                return each
        return None


def rows_after(connection: sqlite3.Connection, after: int) -> Any:
    """Return a cursor over `SealedRow`s beyond a position; its connection must hold a read transaction."""
    return map(SealedRow._make, connection.execute(_ROWS, (after,)))


def verify(
    connection: sqlite3.Connection,
    ring: KeyRing,
    *,
    after: int = 0,
    checkpoints: Sequence[Checkpoint] = (),
    is_tolerant: bool = False,
) -> Verification:
    """Verify the chain beyond position `after` and return what was found. Changes nothing.

    Args:
        connection: a reading one; it sees one moment of the log, however long this takes; a transaction it
            has open is used.
        ring: keys to verify with.
        after: 0 for all of it; else the row at `after` is believed, and heads and excuses are not looked at as a whole.
        checkpoints: what was told outside, their signatures checked by the caller.
        is_tolerant: go on after a bad row, so that `bad` lists all of them.
    """
    if connection.in_transaction:
        return _Verifying(connection, ring, after, is_tolerant).run(checkpoints)
    connection.execute("BEGIN")
    try:
        return _Verifying(connection, ring, after, is_tolerant).run(checkpoints)
    finally:
        connection.execute("ROLLBACK")


class _Verifying:
    """One verification on its way."""

    def __init__(self, connection: sqlite3.Connection, ring: KeyRing, after: int, is_tolerant: bool) -> None:
        self._connection = connection
        self._ring = ring
        self._is_tolerant = is_tolerant
        self._is_whole = after == 0
        self._excuses = _read_excuses(connection)
        self._verified: set[int] = set()
        self.result = Verification(unsealed=self._excuses.unsealed)
        start = connection.execute(_START, (after,)).fetchone() if after else None
        self._position: int = self._excuses.unsealed
        self._mac: bytes = FIRST_LINK
        self._key: str | None = None
        if start is not None:
            self._position, self._key, self._mac = start
        self._roots: dict[int, bytes] = {}

    def run(self, checkpoints: Sequence[Checkpoint]) -> Verification:
        result = self.result
        wanted = {each.size for each in checkpoints}
        for row in rows_after(self._connection, self._position):
            if not self._step(row) and not self._is_tolerant:
                return result
            if row.id in wanted:
                self._roots[row.id] = row.mac
        result.size, result.root = self._position, self._mac
        if self._is_whole:
            self._check_tables()
        for checkpoint in checkpoints:
            self._compare(checkpoint)
        return result

    def _step(self, row: SealedRow) -> bool:
        """Check one row and go on to it; return False if it is bad and nobody has acknowledged that."""
        is_good = True
        if row.id != self._position + 1:
            is_good = self._skip(self._position + 1, row)
        problem = self._problem(row) if is_good else None
        if is_good and problem is not None:
            is_good = self._judge(row, problem)
        elif is_good:
            self.result.rows += 1
            if row.note is not None:
                self.result.own += 1
                self._verified.add(row.id)
        before, self._position, self._mac, self._key = self._mac, row.id, row.mac, row.key
        if self._ring.find(row.key) is None:
            self._key = None  # it may say that the key changed, and cannot be believed or doubted
        elif row.note is not None and is_good and problem is None:
            self._heed(row, row.note, before)
        return is_good

    def _skip(self, first: int, row: SealedRow) -> bool:
        found = self._excuses.hole(first, row.id - 1)
        if found is None and (broken := self._excuses.broken(row.id)) is not None and broken.first <= first:
            self.result.note(Verdict.ACKNOWLEDGED, first, f"record {first} is missing, as was acknowledged")
            return True
        if found is None:
            self._blame(first, row, f"record {first} is missing")
            return False
        self._mac, is_break = found
        if is_break:
            self.result.note(Verdict.ACKNOWLEDGED, first, f"record {first} is missing, as was acknowledged")
            self._key = row.key
        else:
            self.result.archived += row.id - first
        return True

    def _judge(self, row: SealedRow, problem: str) -> bool:
        if self._excuses.broken(row.id) is not None:
            self._verified.add(row.id)
            self.result.note(Verdict.ACKNOWLEDGED, row.id, f"record {row.id} {problem}; the break was acknowledged")
            return True
        if self._ring.find(row.key) is None:
            if row.key not in self.result.missing_keys:
                self.result.missing_keys.append(row.key)
            self._extend(row.id, row)
            self.result.note(
                Verdict.MISSING_KEY,
                row.id,
                f"record {row.id} is sealed under key {row.key}, which the ring {self._ring.path} does not hold: "
                "name the ring it was sealed with",
            )
            return True
        self._blame(row.id, row, f"record {row.id} {problem}")
        return False

    def _blame(self, first: int, row: SealedRow, finding: str) -> None:
        self._extend(first, row)
        self.result.note(Verdict.TAMPERED, first, f"{finding}: keep a copy of this folder, then restore a backup")

    def _extend(self, first: int, row: SealedRow) -> None:
        bad = self.result.bad
        if bad and bad[-1].last + 1 == first:
            first = bad.pop().first
        bad.append(Range(first, row.id, row.mac))

    def _problem(self, row: SealedRow) -> str | None:
        """Return what is wrong with a row, given the seal before it, or None."""
        key = self._ring.find(row.key)
        if key is None:
            return "is sealed under an unknown key"
        kind, data = row.kind, row.data
        if row.note is not None:
            kind, data = row.route, row.note
        if kind is None or data is None or (row.note is None and row.stream is None):
            return "has lost its content"
        if row.salt is None:
            if (problem := self._unerased(row)) is not None:
                return problem
        elif not hmac.compare_digest(payload_digest(key, row.salt, kind, data), row.digest):
            return "has another content than the one that was sealed"
        if not hmac.compare_digest(chain_digest(key, self._mac, row.sealed_bytes()), row.mac):
            return "does not follow the one before it: its envelope was changed, or a record was put in or taken out"
        if self._key not in (None, row.key) and not (row.note is not None and row.route == "BreakAcknowledged"):
            return f"is sealed under key {row.key} without a rotation"
        if row.n is not None and row.n == row.version and row.note is None:
            return self._head_problem(row)
        return None

    def _unerased(self, row: SealedRow) -> str | None:
        version, entry = self._excuses.erased.get(row.stream or "", (0, 0))
        if row.n is None or row.n > version:
            return "has lost its salt, and no erasure was written"
        self._excuses.used.add(entry)
        self.result.erased += 1
        return None

    @staticmethod
    def _head_problem(row: SealedRow) -> str | None:
        if row.route == route_status(str(row.state), bool(row.is_open)) and row.producer == row.agent:
            return None
        return f"is the last of run {row.stream!r}, whose head tells another state ({row.state}) than was sealed"

    def _heed(self, row: SealedRow, note: bytes, before: bytes) -> None:
        """Heed an entry of the journal's own: a rotation, if whoever wrote it had the new key, and an acknowledged break."""
        if row.route == "KeyRotated":
            told = orjson.loads(note)
            new = self._ring.find(told["to"])
            if new is None or rotation_proof(new, told["from"], before) == told["proof"]:
                self._key = told["to"]
        elif row.route == "BreakAcknowledged":
            told = orjson.loads(note)
            first = told["ranges"][0][0] if told["ranges"] else None
            self.result.note(
                Verdict.ACKNOWLEDGED, first, f"{told['by']} acknowledged a break ({told['reason']}): {told['finding']}"
            )

    def _check_tables(self) -> None:
        """What no single row shows: strays, heads without records, excuses whose entry is bad."""
        result, excuses, connection = self.result, self._excuses, self._connection
        if (stray := connection.execute(_UNSEALED, (excuses.unsealed,)).fetchone()) is not None:
            result.note(Verdict.TAMPERED, stray[0], f"record {stray[0]} has no envelope: it was put in from outside")
        if (headless := connection.execute(_HEADLESS).fetchone()) is not None:
            result.note(Verdict.TAMPERED, None, f"the last record of run {headless[0]!r} is missing")
        archive = excuses.archive
        if excuses.holes or archive is not None:
            if archive is None or archive[1] != archived_digest(excuses.holes):
                result.note(Verdict.TAMPERED, None, "the table of archived records is not the one that was sealed")
            else:
                excuses.used.add(archive[0])
        if excuses.first is not None:
            excuses.used.add(excuses.first)
        if not excuses.used <= self._verified and result.verdict is not Verdict.MISSING_KEY:
            bad = min(excuses.used - self._verified)
            result.note(Verdict.TAMPERED, bad, f"record {bad} excuses others and does not verify itself")

    def _compare(self, checkpoint: Checkpoint) -> None:
        size, result = checkpoint.size, self.result
        if (size, checkpoint.root) in self._excuses.roots:
            result.note(Verdict.ACKNOWLEDGED, size, f"what followed record {size} was lost, as was acknowledged")
        elif size > self._position:
            result.note(
                Verdict.TRUNCATED,
                self._position + 1,
                f"the log ends at record {self._position}, but a checkpoint was written at {size}: "
                f"records {self._position + 1} to {size} are gone",
            )
        elif size in self._roots and not hmac.compare_digest(self._roots[size], checkpoint.root):
            result.note(
                Verdict.TAMPERED,
                size,
                f"record {size} is another than when the checkpoint was written: history was rewritten",
            )


def archived_digest(ranges: Sequence[Range]) -> str:
    """Return the digest of the table of archived ranges, as the entry `RunsArchived` tells it."""
    digest = hashlib.sha256()
    for each in ranges:
        digest.update(b"%d-%d %b\n" % (each.first, each.last, each.mac.hex().encode()))
    return digest.hexdigest()


def _read_excuses(connection: sqlite3.Connection) -> _Excuses:
    excuses = _Excuses()
    excuses.holes = [Range(*row) for row in connection.execute("SELECT first, last, mac FROM archived ORDER BY first")]
    for entry, note in (*connection.execute(_OWN), *connection.execute(_LAST_ARCHIVED)):
        try:
            told = orjson.loads(note)
            if excuses.first is None:
                excuses.first, excuses.unsealed = entry, int(told.get("unsealed") or 0)
            _excuse(excuses, entry, told)
        except (ValueError, KeyError, TypeError):
            continue  # a damaged note does not verify, and is found in its turn
    return excuses


def _excuse(excuses: _Excuses, entry: int, told: Mapping[str, Any]) -> None:
    match told["kind"]:
        case "BreakAcknowledged":
            ranges = [Range(int(first), int(last), bytes.fromhex(mac)) for first, last, mac in told["ranges"]]
            excuses.breaks += [(each, entry) for each in ranges]
            excuses.roots.update({(int(size), bytes.fromhex(root)): entry for size, root in told["roots"]})
        case "PayloadsErased":
            excuses.erased[told["run"]] = (int(told["version"]), entry)
        case "RunsArchived":
            excuses.archive = (entry, str(told["ranges"]))
