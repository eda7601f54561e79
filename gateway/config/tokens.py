"""The file of tokens: written by `seawall token`, read again by a running gateway whenever it changes.

A change replaces the file in one step, under a lock, so that a reader sees the old tokens or the new ones and two writers
lose nothing. The file holds digests only, and is still readable by its owner alone. A file that has become unreadable or
malformed is reported and changes nothing; one that is gone means that nobody has a token.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.core.tokens import SECRET_BYTES, BadTokens, Entry, Scope, Tokens, decode_tokens, encode_tokens, mint

__all__ = ["TokenFile", "TokenFileError"]

LIMIT_BYTES = 16 << 20


class TokenFileError(Exception):
    """The file cannot be read or written. The message says why and what to do."""


class TokenFile:
    """Tokens on disk. `tokens` is what was read last."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.tokens = Tokens()
        self._stamp: tuple[int, ...] | None = None

    def read(self) -> Tokens:
        """Read the file; no file means no tokens. Blocks for a moment.

        Raises:
            TokenFileError: it is there and cannot be used; `tokens` stays as it was.
        """
        stamp = self._look()
        try:
            data = self.path.read_bytes()[: LIMIT_BYTES + 1]
            if len(data) > LIMIT_BYTES:
                raise TokenFileError(f"{self.path} is larger than {LIMIT_BYTES >> 20} MiB: is it the right file?")
            tokens = decode_tokens(data)
        except FileNotFoundError:
            tokens = Tokens()
        except OSError as error:
            raise TokenFileError(f"{self.path} cannot be read: {error.strerror}") from None
        except BadTokens as error:
            raise TokenFileError(f"{self.path} is no file of tokens: {error}. See `seawall token issue`.") from None
        finally:
            self._stamp = stamp
        self.tokens = tokens
        return tokens

    def has_changed(self) -> bool:
        """Whether the file is another one than `read` saw. Costs one look at the directory."""
        return self._look() != self._stamp

    def _look(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def issue(self, scope: Scope, name: str, at: int, expires_at: int | None = None) -> tuple[str, Entry]:
        """Add a token and return it, once and never again, with its entry.

        Raises:
            TokenFileError: the file cannot be read or written.
            ValueError: the name cannot be used.
        """
        random = secrets.token_bytes(SECRET_BYTES + 7)
        text, entry = mint(random, scope=scope, name=name, at=at, expires_at=expires_at)
        self._change(lambda tokens: tokens.with_entry(entry))
        return text, entry

    def revoke(self, id_or_name: str, at: int) -> tuple[Entry, ...]:
        """Revoke the token of that id, or all of that name; return what was revoked.

        Raises:
            TokenFileError: the file cannot be read or written.
        """
        revoked: tuple[Entry, ...] = ()

        def change(tokens: Tokens) -> Tokens:
            nonlocal revoked
            left, revoked = tokens.without(id_or_name, at)
            return left

        self._change(change)
        return revoked

    def _change(self, change: Callable[[Tokens], Tokens]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_name(self.path.name + ".lock")):
                changed = change(self.read())
                _replace(self.path, encode_tokens(changed))
                self.read()
        except OSError as error:
            raise TokenFileError(f"{self.path} cannot be written: {error.strerror}") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
