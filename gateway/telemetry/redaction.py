"""What may not be written down, and how it is taken out of text.

Two nets, since either alone has holes: the values of the manifest's secrets, in every spelling in which a log line could
hold them, and whatever stands behind the name of a header or parameter that carries credentials.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

import orjson

__all__ = ["MARK", "Redactor"]

MARK = "[redacted]"
MAX_DEPTH = 6
MIN_LINE_CHARS = 16  # lines of a secret of several lines (a PEM key) that are taken out on their own

_NAME = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]*(?:key|token|secret|signature)|api[-_]?key|"
    r"(?:access|refresh|id|session|auth|security)[-_]?token|token|(?:client[-_]?)?secret|passw(?:or)?d|signature|sig"
)
_SENSITIVE_NAME = re.compile(rf"(?:{_NAME})", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"\b(Bearer|Basic|Digest|Negotiate)\s+[^\s,'\"]{4,}", re.IGNORECASE), rf"\1 {MARK}"),
    (re.compile(rf"(?<![\w-])((?:{_NAME})['\"]?\s*:\s*b?['\"]?)[^'\"\r\n]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(rf"(?<![\w-])((?:{_NAME})['\"],\s*b?['\"])[^'\"\r\n]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(rf"(?<![\w-])((?:{_NAME})=b?['\"]?)[^&\s'\"]+", re.IGNORECASE), rf"\1{MARK}"),
    (re.compile(r"(://)[^/\s@'\"]+@"), rf"\1{MARK}@"),
)


class Redactor:
    """Takes secrets out of text and values."""

    def __init__(self) -> None:
        self._spellings: set[str] = set()
        self._secrets: re.Pattern[str] | None = None

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._spellings)} spellings>"

    def add(self, values: Iterable[str | bytes]) -> None:
        """Remember secrets; for the life of the process, since old ones may still stand in an exception."""
        for value in values:
            text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
            self._spellings.update(_spellings(text))
        longest_first = sorted(self._spellings, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def known(self, text: str) -> str:
        """Return `text` without the secrets that were added."""
        return text if self._secrets is None else self._secrets.sub(MARK, text)

    def text(self, text: str) -> str:
        """Return `text` without the secrets that were added, and without what looks like one."""
        text = self.known(text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def value(self, value: object, depth: int = 0) -> object:
        """Return `value` as plain JSON values without secrets; what stands under a sensitive name is gone entirely."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(str(value))
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode("utf-8", "backslashreplace"))
        if depth < MAX_DEPTH and isinstance(value, Mapping):
            return {self.text(str(key)): self._member(key, item, depth) for key, item in value.items()}
        if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self.value(item, depth + 1) for item in value]
        return self.text(str(value))

    def _member(self, key: object, item: object, depth: int) -> object:
        return MARK if _SENSITIVE_NAME.fullmatch(str(key)) else self.value(item, depth + 1)


def _spellings(secret: str) -> Iterator[str]:
    """Yield the ways in which a line may spell a secret: as it is, in a URL, in a repr, in JSON, in Base64, line by line."""
    if not secret.strip():
        return
    raw = secret.encode("utf-8", "surrogateescape")
    yield secret
    yield secret.strip()
    yield quote(secret, safe="", errors="surrogateescape")
    yield quote(secret, errors="surrogateescape")
    yield quote_plus(secret, errors="surrogateescape")
    yield repr(secret)[1:-1]
    yield repr(raw)[2:-1]
    yield orjson.dumps(raw.decode("utf-8", "replace")).decode()[1:-1]
    yield base64.b64encode(raw).decode()
    yield from (line.strip() for line in secret.splitlines() if len(line.strip()) >= MIN_LINE_CHARS)
