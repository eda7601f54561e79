"""Who is calling? Tokens that prove it, and what each may do.

A token is `swt_ID_SECRET`: the id is public and finds the entry, the secret is 256 random bits. Only a digest of it is kept,
so whoever reads the file of tokens can use none of them; the bits being random, a fast digest is enough and a check costs a
microsecond on every request. The comparison takes the same time whatever was guessed, also where the id is unknown.

An `agent` token names the agent its runs belong to: several tokens may name the same agent, which is how one is exchanged
without a pause. `viewer` and `operator` tokens are for the control plane: a viewer reads, an operator also acts.

Source: RFC 6750 sections 2.1 and 5 (bearer tokens and their threats); NIST SP 800-63B section 5.1.1.2 (random secrets need
no slow hash); OWASP API Security Top 10 2023, API1 and API5.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import orjson

from gateway.core.headers import basic_password
from gateway.core.message import Headers

__all__ = [
    "SECRET_BYTES",
    "BadTokens",
    "Entry",
    "Scope",
    "Tokens",
    "decode_tokens",
    "encode_tokens",
    "mint",
    "presented",
    "without_token",
]

SECRET_BYTES: Final = 32
VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TOKEN = re.compile(r"swt_([a-z2-7]{10})_([a-z2-7]{52})")
_SHAPE = re.compile(rb"swt_[a-z2-7]{10}_[a-z2-7]{52}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOBODY = "0" * 64
_KEYS = {"id", "scope", "name", "digest", "issued_at", "expires_at", "revoked_at"}


class Scope(StrEnum):
    """What a token is for."""

    AGENT = "agent"
    VIEWER = "viewer"
    OPERATOR = "operator"

    def includes(self, wanted: Scope) -> bool:
        """Whether who has this scope may do what `wanted` stands for."""
        return self is wanted or (self is Scope.OPERATOR and wanted is Scope.VIEWER)


class BadTokens(ValueError):
    """What should be a file of tokens is none. The message names the entry and what is wrong with it, and no digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A token as it is kept: everything but its secret. Times are UTC milliseconds.

    Attributes:
        id: public, part of the token.
        scope: what it is for.
        name: the agent, or the person, that it stands for.
        digest: of the whole token.
        expires_at, revoked_at: from when it is good no more; None means never.
    """

    id: str
    scope: Scope
    name: str
    digest: str
    issued_at: int
    expires_at: int | None = None
    revoked_at: int | None = None

    def is_good(self, at: int) -> bool:
        """Whether it may be used at this time."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class Tokens:
    """All tokens, looked up by id. Immutable."""

    __slots__ = ("_by_id", "entries")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)
        self._by_id = {entry.id: entry for entry in self.entries}

    def holder(self, text: str | None, at: int) -> Entry | None:
        """Return the entry of a good token, or None. Takes as long for an unknown token as for a wrong one."""
        found = _TOKEN.fullmatch(text or "")
        entry = self._by_id.get(found.group(1)) if found is not None else None
        is_right = hmac.compare_digest(_digest(text or ""), _NOBODY if entry is None else entry.digest)
        return entry if entry is not None and is_right and entry.is_good(at) else None

    def is_good(self, entry: Entry, at: int) -> bool:
        """Whether a token that was good once still is."""
        known = self._by_id.get(entry.id)
        return known is not None and known.digest == entry.digest and known.is_good(at)

    def knows(self, name: str, at: int) -> bool:
        """Whether an agent of that name has a good token."""
        return any(entry.name == name and entry.scope is Scope.AGENT and entry.is_good(at) for entry in self.entries)

    def with_entry(self, entry: Entry) -> Tokens:
        """Return these and one more."""
        return Tokens((*self.entries, entry))

    def without(self, id_or_name: str, at: int) -> tuple[Tokens, tuple[Entry, ...]]:
        """Revoke the token of that id, or every good one of that name. Returns what is left, and what was revoked."""
        revoked = tuple(
            replace(entry, revoked_at=at)
            for entry in self.entries
            if id_or_name in (entry.id, entry.name) and entry.revoked_at is None
        )
        by_id = {entry.id: entry for entry in revoked}
        return Tokens(by_id.get(entry.id, entry) for entry in self.entries), revoked

    def __repr__(self) -> str:
        return f"<Tokens {len(self.entries)}>"


def mint(random: bytes, *, scope: Scope, name: str, at: int, expires_at: int | None = None) -> tuple[str, Entry]:
    """Return a new token and the entry to keep of it.

    `random`: at least `SECRET_BYTES` + 7 bytes from a secure source, never used for anything else.

    Raises:
        ValueError: the name is not one that a run's agent can have, or there are too few random bytes.
    """
    if not NAME.fullmatch(name):
        raise ValueError("a name is 1 to 128 letters, digits and . _ : -, the first a letter or digit")
    if len(random) < SECRET_BYTES + 7:
        raise ValueError("too few random bytes")
    number, secret = _base32(random[SECRET_BYTES:])[:10], _base32(random[:SECRET_BYTES])
    text = f"swt_{number}_{secret}"
    entry = Entry(id=number, scope=scope, name=name, digest=_digest(text), issued_at=at, expires_at=expires_at)
    return text, entry


def _base32(data: bytes) -> str:
    return b32encode(data).decode("ascii").rstrip("=").lower()


def _digest(text: str) -> str:
    return hashlib.sha256(b"seawall token 1\0" + text.encode("utf-8", "surrogateescape")).hexdigest()


def presented(headers: Headers) -> str | None:
    """Return the token that a request carries, or None.

    `Seawall-Agent-Token` is its own place. A client that can only be given a URL sends the password of
    `http://agent:TOKEN@gateway/` as Basic credentials, in Proxy-Authorization where the gateway is its proxy, else in
    Authorization; there only what looks like a token of ours is taken, for the field belongs to the tool.
    """
    found: str | None = None
    for name, value in headers:
        match name.lower():
            case b"seawall-agent-token":
                return value.strip().decode("latin-1")
            case b"proxy-authorization" | b"authorization" if (ours := _ours(value)) is not None:
                found = found or ours
            case _:
                pass
    return found


def without_token(headers: Headers) -> Headers:
    """Return the fields without an Authorization that holds a token of ours: no tool may see it.

    `Seawall-*` and Proxy-Authorization go anyway (`core/headers.py`).
    """
    return tuple((name, value) for name, value in headers if name.lower() != b"authorization" or _ours(value) is None)


def _ours(value: bytes) -> str | None:
    kind, _, rest = value.strip().partition(b" ")
    text = basic_password(rest) if kind.lower() == b"basic" else rest.strip() if kind.lower() == b"bearer" else None
    return text.decode("ascii") if text is not None and _SHAPE.fullmatch(text) else None


def encode_tokens(tokens: Tokens) -> bytes:
    """Return the file's content, one entry a line, in order."""
    lines = b",\n".join(b"  " + orjson.dumps(_plain(entry)) for entry in tokens.entries)
    return b'{"version": %d, "tokens": [\n%b\n]}\n' % (VERSION, lines)


def _plain(entry: Entry) -> dict[str, object]:
    plain = {name: getattr(entry, name) for name in ("id", "scope", "name", "digest", "issued_at")}
    for name in ("expires_at", "revoked_at"):
        if getattr(entry, name) is not None:
            plain[name] = getattr(entry, name)
    return plain


def decode_tokens(data: bytes) -> Tokens:
    """Read a file's content.

    Raises:
        BadTokens: it is not what `encode_tokens` writes.
    """
    try:
        document = orjson.loads(data)
    except ValueError:
        raise BadTokens("it is not JSON") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise BadTokens(f"it is not a file of tokens of version {VERSION}")
    listed = document.get("tokens")
    if not isinstance(listed, list):
        raise BadTokens("`tokens` is not a list")
    entries = [_entry(number, one) for number, one in enumerate(listed, 1)]
    if len({entry.id for entry in entries}) != len(entries):
        raise BadTokens("two tokens have the same id")
    return Tokens(entries)


def _entry(number: int, one: object) -> Entry:
    if not isinstance(one, Mapping) or not one.keys() <= _KEYS:
        raise BadTokens(f"token {number} is not an object of {', '.join(sorted(_KEYS))}")
    expires_at, revoked_at = one.get("expires_at"), one.get("revoked_at")
    for is_wrong, what in (
        (not _TOKEN.fullmatch(f"swt_{one.get('id')}_{'a' * 52}"), "id"),
        (one.get("scope") not in tuple(Scope), "scope"),
        (not NAME.fullmatch(str(one.get("name", ""))), "name"),
        (not _DIGEST.fullmatch(str(one.get("digest", ""))), "digest"),
        (type(one.get("issued_at")) is not int, "issued_at"),
        (expires_at is not None and type(expires_at) is not int, "expires_at"),
        (revoked_at is not None and type(revoked_at) is not int, "revoked_at"),
    ):
        if is_wrong:
            raise BadTokens(f"token {number}: `{what}` is missing or not what it should be")
    return Entry(
        id=one["id"],
        scope=Scope(one["scope"]),
        name=one["name"],
        digest=one["digest"],
        issued_at=one["issued_at"],
        expires_at=expires_at,
        revoked_at=revoked_at,
    )
