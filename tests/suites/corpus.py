"""Odd and hostile requests, by name: what a client might send, and what someone who means harm would."""

from __future__ import annotations

__all__ = ["CORPUS"]

_HOST = b"Host: gateway\r\n"
_SECOND = b"GET /tool/smuggled HTTP/1.1\r\n" + _HOST + b"\r\n"


def _get(
    target: bytes = b"/tool/x", fields: bytes = b"", method: bytes = b"GET", version: bytes = b"HTTP/1.1"
) -> bytes:
    return b"%b %b %b\r\n%b%b\r\n" % (method, target, version, _HOST, fields)


def _post(fields: bytes, body: bytes = b"", method: bytes = b"POST") -> bytes:
    return _get(fields=fields, method=method) + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"

CORPUS: dict[str, bytes] = {
    # odd, and right
    "plain": _get(),
    "query without a value": _get(b"/tool/x?"),
    "odd query": _get(b"/tool/x?a=%zz&&b==?&c=[1]"),
    "percent-encoded slash": _get(b"/tool/a%2Fb"),
    "lower-case escapes": _get(b"/tool/%c3%a9"),
    "needless escapes": _get(b"/tool/%41"),
    "double slash": _get(b"/tool/a//b"),
    "semicolon parameters": _get(b"/tool/a;v=1/b"),
    "repeated fields": _get(fields=b"X-A: 1\r\nx-a: 2\r\nX-A: 3\r\n"),
    "cookies in two lines": _get(fields=b"Cookie: a=1\r\nCookie: b=2\r\n"),
    "bytes beyond ASCII": _get(fields=b"X-A: caf\xe9 \xff\r\n"),
    "empty value": _get(fields=b"X-A:\r\nX-B: \t \r\n"),
    "space around a value": _get(fields=b"X-A:  \t1 \t\r\n"),
    "underscore in a name": _get(fields=b"X_A: 1\r\n"),
    "accept-encoding": _get(fields=b"Accept-Encoding: gzip, br;q=0\r\n"),
    "user agent and range": _get(fields=b"User-Agent: x\r\nRange: bytes=0-1\r\n"),
    "conditional": _get(fields=b'If-None-Match: "a", W/"b"\r\n'),
    "unknown method": _get(method=b"PROPFIND"),
    "odd version 1.0": _get(version=b"HTTP/1.0"),
    "body in chunks": _post(CHUNKED, b"3\r\nabc\r\n0\r\n\r\n"),
    "chunk extensions and trailers": _post(CHUNKED, b"3;a=b\r\nabc\r\n0\r\nX-T: 1\r\n\r\n"),
    "body of a GET": _post(b"Content-Length: 3\r\n", b"abc", b"GET"),
    "empty body": _post(b"Content-Length: 0\r\n"),
    "no length": _post(b""),
    "expectation": _post(b"Expect: 100-continue\r\nContent-Length: 3\r\n", b"abc"),
    "hop-by-hop fields": _get(fields=b"Connection: x-a, close\r\nX-A: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\n"),
    "proxy-connection": _get(fields=b"Proxy-Connection: keep-alive\r\n"),
    "an upgrade": _get(fields=b"Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"),
    "forwarded": _get(fields=b"X-Forwarded-For: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\nX-Real-IP: 10.0.0.1\r\n"),
    "via": _get(fields=b"Via: 1.0 other\r\n"),
    "another host": b"GET /tool/x HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "our own fields": _get(fields=b"Seawall-Trajectory: r\r\nSeawall-Agent: a\r\n"),
    "proxy credentials": _get(fields=b"Proxy-Authorization: Basic eDp5\r\n"),
    # hostile
    "length and chunks": _post(b"Content-Length: 6\r\n" + CHUNKED, b"0\r\n\r\nX" + _SECOND),
    "chunks and length": _post(CHUNKED + b"Content-Length: 6\r\n", b"0\r\n\r\nX" + _SECOND),
    "two lengths": _post(b"Content-Length: 0\r\nContent-Length: 6\r\n", b"abcdef" + _SECOND),
    "the same length twice": _post(b"Content-Length: 3\r\nContent-Length: 3\r\n", b"abc"),
    "list of lengths": _post(b"Content-Length: 3, 3\r\n", b"abc"),
    "signed length": _post(b"Content-Length: +3\r\n", b"abc"),
    "length in hexadecimal": _post(b"Content-Length: 0x3\r\n", b"abc"),
    "length with a space": _post(b"Content-Length : 3\r\n", b"abc"),
    "huge length": _post(b"Content-Length: 99999999999999999999\r\n"),
    "chunked twice": _post(CHUNKED + CHUNKED, b"0\r\n\r\n"),
    "chunked not last": _post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
    "unknown coding": _post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "gzip before chunked": _post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "chunked behind a tab": _post(b"Transfer-Encoding:\tchunked\r\n", b"0\r\n\r\n"),
    "chunked behind a vertical tab": _post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
    "folded coding": _post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "chunked in HTTP/1.0": _post(CHUNKED, b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "negative chunk": _post(CHUNKED, b"-3\r\nabc\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": _post(CHUNKED, b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "chunk size with a prefix": _post(CHUNKED, b"0x3\r\nabc\r\n0\r\n\r\n"),
    "chunk ended by a bare LF": _post(CHUNKED, b"3\nabc\n0\n\n"),
    "chunk without its end": _post(CHUNKED, b"3\r\nabcX0\r\n\r\n"),
    "bare LF in the head": b"GET /tool/x HTTP/1.1\nHost: g\n\n",
    "bare LF before a field": _get(fields=b"X-A: 1\nX-B: 2\r\n"),
    "bare CR in a value": _get(fields=b"X-A: 1\rX-B: 2\r\n"),
    "NUL in a value": _get(fields=b"X-A: 1\x00\r\n"),
    "folded field": _get(fields=b"X-A: 1\r\n 2\r\n"),
    "space before the colon": _get(fields=b"X-A : 1\r\n"),
    "space before the name": _get(fields=b" X-A: 1\r\n"),
    "no colon": _get(fields=b"nonsense\r\n"),
    "name that is no token": _get(fields=b"X(A): 1\r\n"),
    "two hosts": _get(fields=b"Host: other\r\n"),
    "no host": b"GET /tool/x HTTP/1.1\r\n\r\n",
    "host that is none": b"GET /tool/x HTTP/1.1\r\nHost: a b\r\n\r\n",
    "host with a path": b"GET /tool/x HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "dot segments": _get(b"/tool/a/../b"),
    "encoded dot segments": _get(b"/tool/a/%2e%2e/b"),
    "dots behind an encoded slash": _get(b"/tool/a%2f..%2fb"),
    "backslash": _get(b"/tool/a\\..\\b"),
    "fragment": _get(b"/tool/x#y"),
    "tab in the target": _get(b"/tool/a\tb"),
    "byte beyond ASCII in the target": _get(b"/tool/\xe9"),
    "NUL in the target": _get(b"/tool/\x00"),
    "absolute target": _get(b"http://evil.example/tool/x"),
    "asterisk": _get(b"*", method=b"OPTIONS"),
    "CONNECT": _get(b"evil.example:443", method=b"CONNECT"),
    "TRACE": _get(method=b"TRACE"),
    "method in lower case": _get(method=b"get"),
    "method that is no token": _get(method=b"G(T"),
    "version 2.0": _get(version=b"HTTP/2.0"),
    "version 1.2": _get(version=b"HTTP/1.2"),
    "no version": b"GET /tool/x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "protected option": _get(fields=b"Connection: authorization\r\nAuthorization: x\r\n"),
    "content-length named in connection": _post(b"Connection: content-length\r\nContent-Length: 3\r\n", b"abc"),
    "smuggled behind a websocket": _get(
        fields=b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
    ) + _SECOND,
    "head of 60 KB": _get(fields=b"X-A: " + b"a" * 60_000 + b"\r\n"),
    "200 fields": _get(fields=b"X-A: 1\r\n" * 200),
}  # fmt: skip
