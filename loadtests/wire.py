"""What is said on the wire: the calls that are measured, the answers they must get, and how a message is taken off it.

Every call carries a number of its own, in the path of a read and in the body of a write, and the tool's answer repeats
it. So no two calls are the same step to a gateway that knows repeats, and an answer that went to the wrong caller is
found at once. Parsing is the least that serves HTTP/1.1 on loopback; it is not for use elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "LARGE",
    "NUMBER_DIGITS",
    "READ",
    "REFUSED",
    "STREAM",
    "TLS",
    "WORKLOADS",
    "WRITE",
    "Workload",
    "answer_to",
    "answers_to",
    "number_of",
    "take_message",
]

NUMBER_DIGITS = 12
_WRITE_BYTES = 500

_HEADERS = (
    b"Host: 127.0.0.1\r\nUser-Agent: agent/1.0\r\nAccept: application/json\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Seawall-Trajectory: %(run)b\r\n"
)
_CONTENT = b'{"number":"%(number)012d","amount":1250,"currency":"eur","note":"'
_CONTENT += b"n" * (_WRITE_BYTES - len(_CONTENT % {b"number": 0}) - 2) + b'"}'
_ANSWER = b'{"id":"%b","object":"hold","status":"succeeded","amount":1250,"currency":"eur","note":"0123456789"}'
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
    len(_ANSWER % bytes(NUMBER_DIGITS))
)
_LARGE_BYTES = 65_536
_FILLING = b"x" * (_LARGE_BYTES - NUMBER_DIGITS)
_EVENT = b'event: token\ndata: {"number":"%b","index":%d}\n\n'
_EVENTS = 8
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _small(number: bytes) -> bytes:
    return _ANSWER % number


def _large(number: bytes) -> bytes:
    return number + _FILLING


def _stream(number: bytes) -> bytes:
    return b"".join(_EVENT % (number, index) for index in range(_EVENTS))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of call, and what counts as its right answer.

    Attributes:
        template: the request, with places for `prefix`, `run` and `number`.
        status: the status that the answer must have.
        holds: text that the answer's body must hold; None means that the body must equal the tool's, byte for byte.
        body: returns the body of the tool's answer to a call with these digits.
    """

    name: str
    template: bytes
    status: bytes = b"200"
    holds: bytes | None = None
    body: Callable[[bytes], bytes] = _small

    def request(self, prefix: bytes, run: bytes, number: int) -> bytes:
        """Return the whole request of one call."""
        return self.template % {b"prefix": prefix, b"run": run, b"number": number}

    def is_right(self, head: bytes, body: bytes, number: int) -> bool:
        """Return whether this is the answer that call `number` must get."""
        if head[9:12] != self.status:
            return False
        return body == self.body(b"%012d" % number) if self.holds is None else self.holds in body


_POST = (
    b"POST %(prefix)b/v1/holds HTTP/1.1\r\n" + _HEADERS + b"Content-Type: application/json\r\n"
    b"Content-Length: " + str(_WRITE_BYTES).encode() + b"\r\n\r\n" + _CONTENT
)
_GET = b"GET %%(prefix)b/v1/%b/%%(number)012d HTTP/1.1\r\n"
READ = Workload("read", _GET % b"items" + _HEADERS + b"\r\n")
WRITE = Workload("write", _POST)
REFUSED = Workload("refused", _POST, status=b"503", holds=b"ERR_CIRCUIT_OPEN")
TLS = Workload("tls", READ.template)
LARGE = Workload("large", _GET % b"blobs" + _HEADERS + b"\r\n", body=_large)
STREAM = Workload("stream", _GET % b"events" + _HEADERS + b"\r\n", body=_stream)
WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (READ, WRITE, REFUSED, TLS, LARGE, STREAM)}


def number_of(head: bytes, body: bytes) -> bytes:
    """Return the number that a call carries, as its digits: of one without a body, the end of its path. `head` may be in
    lower case."""
    if body:
        return body[11 : 11 + NUMBER_DIGITS]
    end = head.index(b" ", len(b"post "))
    return head[end - NUMBER_DIGITS : end]


def answer_to(number: bytes) -> bytes:
    """Return the tool's whole answer to the read or write with this number."""
    return _OK + _ANSWER % number


def answers_to(head: bytes, number: bytes) -> Sequence[bytes]:
    """Return the tool's answer to a call in the pieces in which it is sent: events go one at a time."""
    if b"/v1/blobs/" in head:
        body = _large(number)
        return (b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),)
    if b"/v1/events/" in head:
        events = [_EVENT % (number, index) for index in range(_EVENTS)]
        return [_STREAM_HEAD, *(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]
    return (answer_to(number),)


def take_message(data: bytes) -> tuple[bytes, bytes, int] | None:
    """Take the first whole message off `data`.

    Returns:
        Its head in lower case, its body, and how many bytes of `data` it took; None if it is not all there yet.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head, start = data[: end + 2].lower(), end + 4
    field = head.find(b"\r\ncontent-length:")
    if field >= 0:
        stop = start + int(head[field + 17 : head.index(b"\r\n", field + 17)])
        return (head, data[start:stop], stop) if len(data) >= stop else None
    if b"\r\ntransfer-encoding: chunked\r\n" in head:
        return _take_chunks(head, data, start)
    return head, b"", start


def _take_chunks(head: bytes, data: bytes, at: int) -> tuple[bytes, bytes, int] | None:
    body = b""
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line], 16)
        at = line + 2 + size + 2
        if len(data) < at:
            return None
        if size == 0:
            return head, body, at
        body += data[line + 2 : line + 2 + size]
    return None
