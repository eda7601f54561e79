"""Beginning a chain: look at the end of the journal, compare it with what was told outside, and seal from there on.

A bad end stops the start, since going on would bury the finding. `acknowledge` is the way past one that a person can
explain: it writes what is broken and why into the chain, and from then on the verdict is "acknowledged", never again "ok".
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.core.seal import BadCheckpoint, Checkpoint
from gateway.journal import JournalCorrupt, JournalError
from gateway.journal.keyring import KeyRing
from gateway.journal.sealer import Sealer
from gateway.journal.verification import Verdict, Verification, verify

__all__ = ["TAIL_ROWS", "acknowledge", "open_chain", "read_checkpoint", "transaction"]

TAIL_ROWS = 1_000

_LAST = "SELECT coalesce(max(id), 0) FROM envelope"
_IS_SEALED = "SELECT EXISTS (SELECT 1 FROM chain)"


def open_chain(
    connection: sqlite3.Connection, ring: KeyRing, boot: str, at: int, checkpoints: Sequence[Checkpoint] = ()
) -> Sealer:
    """Verify the end of the journal and begin a chain. Cost does not grow with history.

    Raises:
        JournalCorrupt: the end does not verify; names the first bad record.
        JournalError: a key is missing.
    """
    last = connection.execute(_LAST).fetchone()[0]
    if last or connection.execute(_IS_SEALED).fetchone()[0]:
        after = _start(connection, last, checkpoints)
        _insist(verify(connection, ring, after=after, checkpoints=checkpoints))
    elif checkpoints:
        _insist(verify(connection, ring, checkpoints=checkpoints))
    with transaction(connection):
        return Sealer.open(connection, ring, boot, at)


def _start(connection: sqlite3.Connection, last: int, checkpoints: Sequence[Checkpoint]) -> int:
    """Return where verifying begins: far enough back to meet the checkpoints, if they are near the end."""
    near = [each.size - 1 for each in checkpoints if last - 20 * TAIL_ROWS < each.size <= last]
    return max(0, min([last - TAIL_ROWS, *near]))


def _insist(found: Verification) -> None:
    if found.verdict in (Verdict.OK, Verdict.ACKNOWLEDGED):
        return
    kind = JournalError if found.verdict is Verdict.MISSING_KEY else JournalCorrupt
    raise kind(
        f"the journal does not verify ({found.verdict.value}): {found.finding}. `seawall journal verify` looks at all of "
        "it; `seawall journal acknowledge --reason WHY` goes on from here, if you can explain it"
    )


def acknowledge(
    connection: sqlite3.Connection,
    ring: KeyRing,
    boot: str,
    at: int,
    *,
    reason: str,
    by: str,
    checkpoints: Sequence[Checkpoint] = (),
) -> Verification:
    """Write down everything that does not verify, with the reason, and return what it was. Repeatable: a journal with
    nothing new to acknowledge is left alone.

    Raises:
        JournalCorrupt: something is wrong that no range of records describes.
    """
    found = verify(connection, ring, checkpoints=checkpoints, is_tolerant=True)
    if found.verdict in (Verdict.OK, Verdict.ACKNOWLEDGED):
        return found
    roots = (
        [(each.size, each.root.hex()) for each in checkpoints] if not found.bad or _is_short(found, checkpoints) else []
    )
    ranges = [(each.first, each.last, each.mac.hex()) for each in found.bad]
    told = {"ranges": ranges, "roots": roots, "reason": reason, "by": by, "finding": found.finding}
    with transaction(connection):
        sealer = Sealer.follow(connection, ring, boot)
        sealer.key = ring.active
        sealer.add(connection, "BreakAcknowledged", at, told)
        again = verify(connection, ring, checkpoints=checkpoints)
        if again.verdict is not Verdict.ACKNOWLEDGED:
            raise JournalCorrupt(f"this cannot be acknowledged: {again.finding}")
    return found


def _is_short(found: Verification, checkpoints: Sequence[Checkpoint]) -> bool:
    return any(each.size > found.size for each in checkpoints)


def read_checkpoint(path: Path, ring: KeyRing) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        JournalError: it cannot be read, or was not signed by a key of the ring.
    """
    try:
        checkpoint, key, signature = Checkpoint.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JournalError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
    except (BadCheckpoint, UnicodeDecodeError) as error:
        raise JournalCorrupt(f"{path}: {error}") from None
    found = ring.find(key)
    if found is None:
        raise JournalError(f"the checkpoint {path} is signed under key {key}, which the ring {ring.path} does not hold")
    if not checkpoint.is_signed(found, signature):
        raise JournalCorrupt(f"the checkpoint {path} was changed: its signature under key {key} does not fit")
    return checkpoint


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold a write transaction: committed at the end, rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
