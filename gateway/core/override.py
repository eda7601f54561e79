"""A second word about a call's method or path: where a request may hold one, and how it is found.

Which operation a call is follows from its method and its path, and so does everything that is asked before it leaves. Many
servers take another word for either: a header field (`X-HTTP-Method-Override`, `X-Original-URL`), a parameter of the query
or a field of the body (`_method`). With it a read becomes a DELETE at the tool, whatever was decided here. So a call that
brings one along is refused, unless the manifest names it for the tool or the operation (`overrides`, `headers.allow`, or the
query of a `match`): then whoever wrote the manifest knows what the operation may become.

What is known of servers, and looked for here whatever the method, since WordPress, Yii and CakePHP ask for none:

    X-HTTP-Method-Override    Rack, Symfony, Laravel, WordPress, Yii, CakePHP, ASP.NET Core, Express, Google's APIs
    X-HTTP-Method             OData, SharePoint, Express
    X-Method-Override         Maximo, TRIRIGA, Express
    X-Original-URL, X-Rewrite-URL    IIS and its modules; Symfony (CVE-2018-14773), Laminas, Drupal, Yii, CakePHP
    X-Original-URI, -Method, X-Forwarded-Uri, -Method, -Path    who decides for nginx, Traefik, Caddy (forward auth)
    Script-Name, X-Script-Name    Gunicorn and WSGI middleware: what is cut off the path
    _method    Rack, Symfony, Laravel, Spring, Phoenix, Express, CakePHP, Yii, Slim (`_METHOD`), WordPress (in any query)
    _HttpMethod    Salesforce (query)

Servers that go by CGI's names (RFC 3875 section 4.1.18) do not tell `_` from `-` in a field's name, PHP takes `.method` and
` _method` for `_method`, and any of them decodes escapes: each spelling counts. A JSON string `"_method"` counts at any
depth, so that a body can be looked through in pieces and the answer does not depend on where the network cuts it.

Left out: names that servers were taught by their own configuration; `method`, which means too much else; bodies under a
content coding or in other charsets than ASCII's kin. Source: the documentation of the servers named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import product
from typing import Final
from urllib.parse import unquote_plus

from gateway.core.message import Headers

__all__ = [
    "FIELDS", "PARAMETERS", "SPELLINGS", "Lookout", "finder", "is_suspect", "lookout", "objection", "parameters",
    "second_field",
]  # fmt: skip

FIELDS: Final = frozenset(
    {
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-method",
        "x-forwarded-method",
        "x-original-url",
        "x-original-uri",
        "x-rewrite-url",
        "x-forwarded-uri",
        "x-forwarded-path",
        "script-name",
        "x-script-name",
    }
)
"""Header fields, in lower case and with `-`. X-Forwarded-Prefix is one of the fields that `forwarded` is about."""

PARAMETERS: Final = frozenset({"_method", "_httpmethod"})
"""Parameters of a query and fields of a body, in lower case."""


def _spellings(name: str) -> list[bytes]:
    first, *others = name.encode().split(b"-")
    ways = product(b"-_", repeat=len(others))
    return [first + b"".join(b"%c%b" % pair for pair in zip(way, others, strict=True)) for way in ways]


SPELLINGS: Final = frozenset(spelt for name in FIELDS for spelt in _spellings(name))
"""The same with `-` or `_` at each place: a request without any of them is done with."""


def _letters(word: str) -> str:
    """A pattern for letters, small or capital, escaped for a URL or not."""
    return "".join(f"(?:{one}|%{ord(one):x}|%{ord(one.upper()):x})" for one in word)


def _escaped(word: str) -> str:
    """A pattern for letters, escaped for JSON or not."""
    return "".join(f"(?:{one}|\\\\u00{ord(one):x})" for one in word)


_MARK: Final = "(?:[_.]|%5f|%2e)"
_NAME: Final = _MARK + _letters("method")
_PARAMETER: Final = re.compile(
    f"(?:[&;+ ]|%20)({_MARK}(?:{_letters('http')})?{_letters('method')})(?:=|%00)".encode(), re.IGNORECASE
)
_FIELD: Final = re.compile(f"(?:[&;+ ]|%20){_NAME}(?:=|%00)".encode(), re.IGNORECASE)
_MEMBER: Final = re.compile(f'"{_escaped("_method")}"'.encode(), re.IGNORECASE)
_PART: Final = re.compile(
    rb"[\r\n]content-disposition[ \t]*:(?:[^\r\n]|\r?\n[ \t])*?[;\s]name\*?[ \t]*=[ \t]*(?:[\w-]*'[\w-]*')?[\"'\\ ]*"
    + _NAME.encode()
    + rb"(?:[\"'\\;\s]|%00)",
    re.IGNORECASE,
)
_KEPT: Final = {_FIELD: 64, _MEMBER: 64, _PART: 8192}
"""How many of the bytes before a piece are looked at with it: more than is found at once; of a part's head all that common
servers read."""


def second_field(headers: Headers, allowed: Collection[str]) -> str | None:
    """Return the first header field that could replace method or path, as it is spelt, or None; `allowed` ones may."""
    for name, _ in headers:
        known = name.lower().replace(b"_", b"-").decode("latin-1")
        if known in FIELDS and known not in allowed:
            return name.decode("latin-1")
    return None


def parameters(query: str) -> list[str]:
    """Return the names of parameters that could replace the method, decoded, in order."""
    found = _PARAMETER.findall(b"&%b" % query.encode("utf-8", "surrogateescape"))
    return [unquote_plus(name.decode("ascii")) for name in found]


class Lookout:
    """Looks for a field that could replace the method in a body of one kind, piece by piece."""

    __slots__ = ("_before", "_kept", "pattern")

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self._kept = _KEPT[pattern]
        self._before = b"\n" if pattern is _PART else b"&"

    def finds(self, piece: bytes) -> bool:
        """Whether there is one in what has come so far, at the latest with this piece."""
        text = self._before + piece
        self._before = text[-self._kept :]
        return self.pattern.search(text) is not None


def lookout(content_type: str) -> Lookout | None:
    """Return what looks through bodies of a kind, or None for kinds that servers take no parameters from.

    A body of no kind at all counts as a form: to Rack it is one.
    """
    kind = content_type.strip().lower()
    if "json" in kind:
        return Lookout(_MEMBER)
    if kind.startswith("multipart/"):
        return Lookout(_PART)
    return Lookout(_FIELD) if not kind or "urlencoded" in kind else None


def is_suspect(data: bytes) -> bool:
    """Whether a JSON body may have a member that could replace the method: a quick look, for bodies that nearly never do."""
    return data.find(b'"_') >= 0 or data.find(b"\\u00") >= 0


def finder(content_type: str) -> Callable[[bytes], bool] | None:
    """Return what says of a whole body of a kind whether it has a field that could replace the method; see `lookout`."""
    found = lookout(content_type)
    if found is None:
        return None
    pattern = found.pattern
    if pattern is _MEMBER:
        return lambda data: is_suspect(data) and Lookout(pattern).finds(data)
    return lambda data: Lookout(pattern).finds(data)


def objection(what: str, tool: str) -> str:
    """Return why a call is not sent, as a clause for a model."""
    return (
        f"{what} could have {tool} take the call for another operation than the one it was found to be: leave it out, and "
        "call with the method and path that you mean; if the tool needs it, an operator has to name it in the manifest "
        "(`overrides`)"
    )
