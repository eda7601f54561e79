"""Why the gateway sends on something else than nginx, HAProxy or Squid do, by reason."""

from __future__ import annotations

__all__ = ["REASONS"]

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "The target goes on byte for byte; nginx decodes and tidies it, which RFC 9110 section 7.7 lets "
        "nobody do who matches on it.",
        (
            "query without a value",
            "percent-encoded slash",
            "lower-case escapes",
            "needless escapes",
            "double slash",
        ),
    ),
    (
        "Space around a value is no part of it (RFC 9112 section 5); nginx keeps tabs.",
        (
            "empty value",
            "space around a value",
        ),
    ),
    (
        "An underscore is a token's character; nginx drops the field.",
        ("underscore in a name",),
    ),
    (
        "A write is read whole before it is recorded, and then has a length; HAProxy streams it.",
        ("body in chunks",),
    ),
    (
        "Read whole; extensions and trailers end at each connection (ADR 0111); HAProxy passes trailers on.",
        ("chunk extensions and trailers",),
    ),
    (
        "A POST without a body says so (RFC 9110 section 8.6).",
        ("no length",),
    ),
    (
        "`100 Continue` is each connection's own; the tool need not be asked.",
        ("expectation",),
    ),
    (
        "No agent is believed about whom it speaks for (`forwarded`, ADR 0112).",
        ("forwarded",),
    ),
    (
        "`Seawall-*` is between agent and gateway.",
        ("our own fields",),
    ),
    (
        "Refused by all, with other statuses.",
        (
            "chunked not last",
            "unknown coding",
            "gzip before chunked",
            "chunked behind a vertical tab",
            "head of 60 KB",
            "the preface of HTTP/2",
            "two lengths",
            "signed length",
            "length in hexadecimal",
            "huge length",
            "chunked twice",
        ),
    ),
    (
        "A tab is space around a value like any (RFC 9112 section 5).",
        ("chunked behind a tab",),
    ),
    (
        "Folded lines are refused (RFC 9112 section 5.2); HAProxy unfolds them.",
        (
            "folded coding",
            "folded field",
        ),
    ),
    (
        "Chunks are no part of HTTP/1.0 (RFC 9112 section 6.1).",
        ("chunked in HTTP/1.0",),
    ),
    (
        "A bare LF ends nothing here; the others take it for CRLF, as RFC 9112 section 2.2 allows.",
        (
            "chunk ended by a bare LF",
            "bare LF in the head",
            "bare LF before a field",
        ),
    ),
    (
        "Refused as RFC 9110 section 5.5 asks; HAProxy passes the NUL on.",
        ("NUL in a value",),
    ),
    (
        "No field (RFC 9112 sections 2.2 and 5); others drop it, mend it or pass it on.",
        (
            "space before the name",
            "no colon",
            "name that is no token",
        ),
    ),
    (
        "A request needs one valid Host (RFC 9112 section 3.2).",
        (
            "no host",
            "host that is none",
            "host with a path",
        ),
    ),
    (
        "What is matched and what is sent must be the same path, so dot segments and backslashes are refused; "
        "nginx resolves the former, HAProxy passes them on.",
        (
            "dot segments",
            "encoded dot segments",
            "dots behind an encoded slash",
            "backslash",
        ),
    ),
    (
        "No part of a request target (RFC 9112 section 3.2).",
        (
            "fragment",
            "byte beyond ASCII in the target",
        ),
    ),
    (
        "A URL is looked up among the tools' hosts, since the gateway is a proxy, too; this one is none of them.",
        (
            "absolute target",
            "CONNECT",
        ),
    ),
    (
        "It asks about the gateway, and names no tool.",
        ("asterisk",),
    ),
    (
        "TRACE would show the tool's credential (RFC 9110 section 9.3.8).",
        ("TRACE",),
    ),
    (
        "Methods are case-sensitive, and the parser knows the registered ones; HAProxy passes any on.",
        ("method in lower case",),
    ),
    (
        "HTTP/1.1 and HTTP/1.0 alone are spoken.",
        (
            "version 2.0",
            "version 1.2",
            "no version",
        ),
    ),
    (
        "A field that matters is not named away, but refused; the others ignore the option.",
        (
            "protected option",
            "content-length named in connection",
        ),
    ),
    (
        "A GET may have a body (RFC 9110 section 9.3.1); Squid takes none.",
        ("body of a GET",),
    ),
    (
        "Refused; Squid hangs up without an answer.",
        (
            "negative chunk",
            "chunk size beyond 64 bits",
            "chunk size with a prefix",
            "chunk without its end",
        ),
    ),
    (
        "Refused as RFC 9112 sections 2.2, 3 and 3.2 ask; Squid mends it.",
        (
            "bare CR in a value",
            "two hosts",
            "tab in the target",
        ),
    ),
    (
        "Two ways of framing one body are an attack (RFC 9112 section 6.1); HAProxy repairs it, Squid lets it through.",
        (
            "length and chunks",
            "chunks and length",
            "the same length twice",
            "list of lengths",
        ),
    ),
    (
        "What follows a request for a WebSocket is never HTTP; nginx and Squid go on with the smuggled request.",
        ("smuggled behind a websocket",),
    ),
    (
        "Hop-by-hop fields, and those that Connection names, end here (RFC 9110 section 7.6.1); so in Squid, "
        "for the most part.",
        (
            "hop-by-hop fields",
            "proxy-connection",
            "an upgrade",
            "proxy credentials",
        ),
    ),
    (
        "More than 128 fields are refused (`limits.header_fields`); nginx and Squid have no such bound.",
        ("200 fields",),
    ),
)
REASONS: dict[str, str] = {case: why for why, cases in _GROUPS for case in cases}
