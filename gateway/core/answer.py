"""A tool's answer that has come whole, in one piece and in the plainest form, read without a parser.

Most answers are so: a status, a few fields, a length, and just as many bytes. What is read here leaves no second reading:
HTTP/1.1, a final status that has a body, fields of one line each with nothing but visible text in them, exactly one
Content-Length that is the length of what came, no transfer coding, no upgrade, and a connection that goes on. Anything else
yields None and is for the parser, which also knows what to say of what is wrong. Nothing is taken here that the parser would
take otherwise: `tests/core/test_answer.py` holds one against the other.

Source: RFC 9112 sections 4, 5, 6.2, 6.3 and 9.3; docs/adr/0164-whole-answers.md.
"""

from __future__ import annotations

import re
from itertools import compress
from operator import itemgetter
from typing import Final

from gateway.core.headers import HOP_BY_HOP, OURS
from gateway.core.message import BytesBody, Headers, Reply
from gateway.core.remembered import Remembered

__all__ = ["whole_answer"]


HEAD_BYTES: Final = 8_190
"""Longer heads are for the parser, which bounds their lines."""

FIELDS: Final = 100

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9]) ([!-~]+(?: [!-~]+)*)")
_FIELD: Final = re.compile(
    rb"(?m:^)([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([!-~\x80-\xff](?:[ -~\x80-\xff]*[!-~\x80-\xff])?)\r\n"
)
_NAME: Final = itemgetter(0)
_WITHOUT_BODY: Final = frozenset({204, 304})
_FOR_THE_PARSER: Final = frozenset({b"transfer-encoding", b"upgrade"})
_DIGITS: Final = 18


def whole_answer(data: bytes) -> Reply | None:
    """Return the answer that `data` is, all of it and not a byte more, or None where a parser has to look.

    It has those fields that go on to the agent (`headers.answer_fields`).
    """
    start = data.find(b"\r\n\r\n") + 4
    head = data[:start]
    said = _HEADS.get(head)
    if said is None:
        if not 4 < start <= HEAD_BYTES + 2 or (said := _look_at(head)) is None:
            return None
        if start <= _KEPT_BYTES:
            if len(_HEADS) >= _KEPT:
                _HEADS.clear()
            _HEADS[head] = said
    status, reason, fields, length = said
    return Reply(status, reason, fields, BytesBody(data[start:])) if length == len(data) - start else None


_Said = tuple[int, bytes, Headers, int]
"""What a head says: status, reason, the fields that go on, and the length of the body."""

_HEADS: Final[dict[bytes, _Said]] = {}
"""A tool sends the same head again and again, within a second at least, until its Date changes."""

_KEPT: Final = 256
_KEPT_BYTES: Final = 1024


def _look_at(head: bytes) -> _Said | None:
    status_line, _, lines = head[:-2].partition(b"\r\n")
    status = _STATUS(status_line)
    if status is None:
        return None
    fields = _FIELD.findall(lines)
    # Each was found at the beginning of a line and reaches to its end: as many as there are lines are all of them.
    if len(fields) != lines.count(b"\n") or len(fields) > FIELDS:
        return None
    fates = list(map(_FATE, map(_NAME, fields)))
    if max(fates, default=_GOES) >= _CONNECTION:
        fields = [field for field in fields if not _goes_on(field)]
        fates = list(map(_FATE, map(_NAME, fields)))
        if max(fates, default=_GOES) >= _CONNECTION:
            return None
    if fates.count(_LENGTH) != 1:
        return None
    length = fields[fates.index(_LENGTH)][1]
    if not length.isdigit() or len(length) > _DIGITS:
        return None
    return (*status, tuple(compress(fields, fates)), int(length))


def _goes_on(field: tuple[bytes, bytes]) -> bool:
    """Whether a field says only that the connection is kept, as HTTP/1.1 has it anyway."""
    return field[1].lower() == b"keep-alive" and field[0].lower() == b"connection"


# In this order: what is beyond a length has to be looked at more closely.
_GOES: Final = 0
_STAYS: Final = 1
_LENGTH: Final = 2
_CONNECTION: Final = 3
_PARSED: Final = 4


def _fate(spelt: bytes) -> int:
    name = spelt.lower()
    if name == b"content-length":
        return _LENGTH
    if name == b"connection":
        return _CONNECTION
    if name in _FOR_THE_PARSER:
        return _PARSED
    return _GOES if name in HOP_BY_HOP or name.startswith(OURS) else _STAYS


def _status(line: bytes) -> tuple[int, bytes] | None:
    """Return status and reason of a line; None where a parser has to look."""
    said = _STATUS_LINE.fullmatch(line)
    return None if said is None or int(said[1]) in _WITHOUT_BODY else (int(said[1]), said[2])


_FATE: Final = Remembered[bytes, int](_fate).__getitem__
_STATUS: Final = Remembered[bytes, tuple[int, bytes] | None](_status).__getitem__
