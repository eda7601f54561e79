"""Requests whose head has come before, but for what differs from call to call, and what a parser has found in it.

An agent sends the same fields over and over. Of two heads that differ only in the target, in the length of the body, and in
the values of a few fields that nobody but the gateway reads, a parser says the same. So the fields of a head that it has
taken are kept, and of the next request of the kind only what differs is looked at: its request line and those values, in
their plainest form; anything else is left to the parser, which has judged every field that is kept. Only a whole request is
known, with a body of the length that it says, and nothing behind it.

A head is kept once it has come twice, so that those with something in them that never comes again push nothing out.

Source: RFC 9112 sections 3, 5 and 6.2; docs/adr/0170-known-heads.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import compress
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gateway.core.headers import first_values, lower_names
from gateway.core.message import Headers

__all__ = ["BODY_BYTES", "HEADS", "HEAD_BYTES", "Known", "KnownHeads"]

HEADS: Final = 512
"""So many are kept; one more, and it begins anew."""

HEAD_BYTES: Final = 2_048
"""Longer heads are for the parser."""

BODY_BYTES: Final = 1 << 16
"""Larger bodies are, too."""

_CHANGING: Final = re.compile(
    rb"(\n(?:[Cc]ontent-[Ll]ength|[Ii]dempotency-[Kk]ey|[Ss]eawall-[Tt]rajectory|[Tt]race(?:parent|state)): )"
    rb"([!-~]+)(?=\r\n)"
)
"""Fields whose value differs from call to call; all others are part of what is known."""

_METHODS: Final = {name.encode(): name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
_LINE: Final = re.compile(rb'(%b) (/(?:[!"$-.0-~][!"$-~]*)?) HTTP/1\.1\r(?=\n)' % b"|".join(_METHODS))
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_FOR_THE_PARSER: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
_MARK: Final = b"\0"
"""Stands in a kept head where a value was; no field has such a byte."""

_DIGITS: Final = 9


class Known(NamedTuple):
    """A whole request: its line, its fields in order, the first value of each by its name in lower case, and its body."""

    method: str
    target: bytes
    headers: Headers
    fields: dict[bytes, bytes]
    body: bytes


class _Form(NamedTuple):
    """What is the same in all heads of a kind.

    Attributes:
        same: fields that never differ; `names`: of the others, as spelt, and `lowered`, in small letters.
        arranged: puts `same` and the others, one behind the other, in the order in which they stand in the head.
        fields: first values of those that never differ.
    """

    same: Headers
    names: list[bytes]
    lowered: list[bytes]
    arranged: Callable[[tuple[Any, ...]], Headers]
    fields: dict[bytes, bytes]


class KnownHeads:
    """The heads that are known. Ask it with all that has come; tell it with `took` what a parser has taken.

    Args:
        most_bytes: of a head; longer ones are not known.
    """

    __slots__ = ("_forms", "_most_bytes", "_once")

    def __init__(self, most_bytes: int = HEAD_BYTES) -> None:
        self._most_bytes = min(most_bytes, HEAD_BYTES)
        self._forms: dict[bytes, _Form] = {}
        self._once: set[int] = set()

    def __len__(self) -> int:
        return len(self._forms)

    def __call__(self, data: bytes) -> Known | None:
        """Return the request that `data` is, all of it and not a byte more; None where a parser has to look."""
        line = _LINE.match(data)
        if line is None:
            return None
        at = line.end()
        end = data.find(_HEAD_END, at - 1) + 2
        if not 1 < end <= self._most_bytes:
            return None
        pieces = _CHANGING.split(data[at:end])
        values = pieces[2::3]
        del pieces[2::3]
        form = self._forms.get(_MARK.join(pieces))
        if form is None or len(values) != len(form.names):  # the mark itself can be sent
            return None
        method, target = line.groups()
        body = data[end + 2 :]
        fields = form.fields
        if values:
            fields = fields.copy()
            fields.update(zip(form.lowered, values, strict=True))
            headers = form.arranged((*form.same, *zip(form.names, values, strict=True)))
        else:
            headers = form.same
        length = fields.get(b"content-length")
        if length is None:
            if body:
                return None
        elif len(length) > _DIGITS or not length.isdigit() or int(length) != len(body) or len(body) > BODY_BYTES:
            return None
        return Known(_METHODS[method], target, headers, fields, body)

    def took(self, data: bytes, headers: Headers) -> None:
        """Take note of the fields of a whole request of HTTP/1.1 that a parser has taken, after `data` was not known."""
        line_end = data.find(_LINE_END)
        end = data.find(_HEAD_END, line_end) + 2
        if not 1 < end <= self._most_bytes:
            return
        pieces = _CHANGING.split(data[line_end + 1 : end])
        del pieces[2::3]
        head = _MARK.join(pieces)
        if not self._has_come_before(head):
            return
        form = _form(data[line_end + 1 : end], headers)
        if form is not None:
            if len(self._forms) >= HEADS:
                self._forms.clear()
            self._forms[head] = form

    def _has_come_before(self, head: bytes) -> bool:
        known, once = hash(head), self._once
        if known in once:
            once.discard(known)
            return True
        if len(once) >= HEADS:
            once.clear()
        once.add(known)
        return False


def _form(block: bytes, headers: Headers) -> _Form | None:
    """Return what is to be kept of a head, or None.

    None where it is not written in the plainest way, a field that differs from call to call stands there twice, or one says
    more of the connection than that it is kept, or of the body than its length. `block` begins with the line feed before it.
    """
    if block != b"\n%b\r\n" % _LINE_END.join([b"%b: %b" % field for field in headers]) or block.count(_MARK):
        return None
    changes = [_CHANGING.match(b"\n%b: %b\r\n" % field) is not None for field in headers]
    places = [place for place, one in enumerate(changes) if not one] + list(compress(range(len(headers)), changes))
    same, others = tuple(headers[place] for place in places[: changes.count(False)]), tuple(compress(headers, changes))
    lowered = lower_names(others)
    fields = first_values(same)
    if len({*lowered, *fields}) != len(lowered) + len(fields) or not _FOR_THE_PARSER.isdisjoint(fields):
        return None
    if any(value.lower() != b"keep-alive" for name, value in same if name.lower() == b"connection"):
        return None
    order = [places.index(place) for place in range(len(headers))]
    arranged: Callable[[tuple[Any, ...]], Headers] = itemgetter(*order) if len(order) > 1 else tuple
    return _Form(same, [name for name, _ in others], lowered, arranged, fields)
