"""The keys that seal the journal: a small file outside the data folder, with exactly one active key.

Old keys stay for verifying, until the last record under them is archived. Where nobody names a file, the ring lies beside
the data folder (`var.keys` for `var`), so that whoever copies, restores or mounts the folder alone does not get the keys.
If the folder is a mount of its own, a file beside it might not outlive the container: the ring then lies in the folder, and
the seal shows damage and careless edits but not an attacker who may write there. `is_apart` says which it is.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core.seal import SealKey
from gateway.journal import JournalError
from gateway.journal.place import aside

__all__ = ["KeyRing", "KeyRingError", "RingKey", "default_ring"]

_SECRET_BYTES = 32


class KeyRingError(JournalError):
    """The key ring cannot be used. The message says what to do."""


@dataclass(frozen=True, slots=True)
class RingKey:
    """One key as the file keeps it."""

    id: str
    secret: bytes = field(repr=False)
    made_at: int
    is_active: bool


@dataclass(frozen=True, slots=True)
class KeyRing:
    """A ring as it was read. Immutable: a rotation writes the file and returns another."""

    path: Path
    keys: tuple[RingKey, ...]
    derived: Mapping[str, SealKey] = field(repr=False, compare=False)

    @classmethod
    def of(cls, path: Path, keys: tuple[RingKey, ...]) -> KeyRing:
        """Make a ring of keys.

        Raises:
            KeyRingError: not exactly one is active, or two have one id.
        """
        if sum(key.is_active for key in keys) != 1:
            raise KeyRingError(f"the key ring {path} needs exactly one active key: restore it from your secret store")
        if len({key.id for key in keys}) != len(keys):
            raise KeyRingError(f"two keys of the ring {path} have the same id: restore it from your secret store")
        return cls(path, keys, {key.id: SealKey.of(key.id, key.secret) for key in keys})

    @classmethod
    def load(cls, path: Path) -> KeyRing:
        """Read a ring.

        Raises:
            KeyRingError: it is missing, unreadable, or no ring.
        """
        try:
            told = json.loads(path.read_bytes())
            keys = tuple(
                RingKey(
                    str(key["id"]), base64.b64decode(key["secret"], validate=True), int(key["made_at"]),
                    {"active": True, "verify": False}[key["state"]],
                )
                for key in told["keys"]
            )  # fmt: skip
        except FileNotFoundError:
            raise KeyRingError(f"there is no key ring at {path}: restore it, or name it with --journal-keys") from None
        except OSError as error:
            raise KeyRingError(f"the key ring {path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, binascii.Error):
            raise KeyRingError(f"{path} is no key ring: restore it from your secret store") from None
        if any(len(key.secret) < _SECRET_BYTES for key in keys):
            raise KeyRingError(f"a key of the ring {path} is shorter than {_SECRET_BYTES} bytes")
        return cls.of(path, keys)

    @classmethod
    def make(cls, path: Path, at: int) -> KeyRing:
        """Make a ring with one key, durably; if somebody else made it meanwhile, read theirs.

        Raises:
            KeyRingError: it cannot be written.
        """
        ring = cls.of(path, (_fresh(at),))
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            _write(draft, ring.keys)
            try:
                os.link(draft, path)
            except FileExistsError:
                return cls.load(path)
            finally:
                draft.unlink()
            _sync_folder(path.parent)
        except OSError as error:
            raise KeyRingError(f"the key ring {path} cannot be made: {error.strerror}") from error
        return ring

    def rotate(self, at: int) -> KeyRing:
        """Write a fresh active key to the file; the old one stays for verifying.

        Raises:
            KeyRingError: it cannot be written.
        """
        old = tuple(RingKey(key.id, key.secret, key.made_at, False) for key in self.keys)
        ring = KeyRing.of(self.path, (*old, _fresh(at)))
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            _write(draft, ring.keys)
            draft.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise KeyRingError(f"the key ring {self.path} cannot be written: {error.strerror}") from error
        return ring

    @property
    def active(self) -> SealKey:
        """The key that seals."""
        return next(self.derived[key.id] for key in self.keys if key.is_active)

    def find(self, id: str) -> SealKey | None:
        """Return a key by id, for verifying."""
        return self.derived.get(id)

    def is_apart(self, folder: Path) -> bool:
        """Whether the ring lies outside a data folder."""
        return not self.path.resolve().is_relative_to(folder.resolve())


def default_ring(folder: Path) -> Path:
    """Return where the ring of a data folder is, or is to be made, if nobody names a file."""
    return aside(folder, "keys")


def _fresh(at: int) -> RingKey:
    return RingKey(f"k-{secrets.token_hex(4)}", secrets.token_bytes(_SECRET_BYTES), at, True)


def _write(path: Path, keys: tuple[RingKey, ...]) -> None:
    told = [
        {
            "id": key.id,
            "state": "active" if key.is_active else "verify",
            "made_at": key.made_at,
            "secret": base64.b64encode(key.secret).decode(),
        }
        for key in keys
    ]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"version": 1, "keys": told}, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
