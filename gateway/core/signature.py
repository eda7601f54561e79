"""What an error is, apart from its accidents: a signature that is equal for the same error met again.

Two observations of one error differ in times, ids, counters, addresses and paths. Those are normalised away, and what is
left, with the error's type and source, is hashed. Equal signatures in one sequence of repairs mean that the agent goes in
circles (`core/antispin.py`).

The order of the patterns matters: a UUID is not a row of numbers, a time is not a ratio of numbers, a path may hold either.

Source: seed 000, "Anti-Spin Invariant": SHA-256(Normalize(type, source, signature)).
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["error_signature", "normalise"]

LIMIT = 4096
"""Characters of an error's text that count: the cause stands at its beginning or not at all."""

_ACCIDENTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b"), "<time>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}(?![\w:])", re.IGNORECASE), "<address>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"(?:[a-z]+://|(?<![\w.<>])[.~]{0,2}/|\b[a-z]:\\)[^\s'\"<>,;)\]]*", re.IGNORECASE), "<path>"),
    (re.compile(r"\b(?=[a-z_]*\d)(?=\w*[a-z])[a-z0-9]+(?:[_-][a-z0-9]+)*\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(?=\d*[a-f])[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"[+-]?\d+(?:[.,]\d+)*%?"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def normalise(text: str, *, keep_numbers: bool = False) -> str:
    """Return the text with numbers, ids, times, paths and addresses replaced, spacing folded, in lower case.

    `keep_numbers`: numbers that are none of the others stay, where how many matters.
    """
    text = text[:LIMIT]
    for pattern, placeholder in _ACCIDENTS:
        if not (keep_numbers and placeholder == "<n>"):
            text = pattern.sub(placeholder, text)
    return text.strip().lower()


def error_signature(kind: str, source: str, text: str) -> str:
    """Return 64 hexadecimal digits that name an error.

    Args:
        kind: its type: a status, a fault, the `type` or `code` of an error object.
        source: where it comes from: tool and operation.
        text: what was said of it, as observed.
    """
    digest = hashlib.sha256()
    for part in (kind, source, normalise(text)):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)
    return digest.hexdigest()
