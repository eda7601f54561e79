"""Who a request comes from, as far as anybody knows: what a token proves, or what the request says of itself.

`Door` is the outermost part of the data plane. Where tokens are in use it lets nobody through who has none, and notes on the
request whom the token proves the caller to be; from there on that agent's runs are its own. Where none are in use, the
`Seawall-Agent` header, else the peer's address, tells agents apart for fairness, and nobody is kept from anybody's run.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from gateway.clock import Clock
from gateway.core.codes import Code
from gateway.core.message import BytesBody
from gateway.core.outcome import Refusal
from gateway.core.problem import Problem, problem
from gateway.core.remembered import Remembered
from gateway.core.tokens import Entry, Scope, Tokens, presented, without_token
from gateway.core.value import frozen
from gateway.ingress.http import AtOnce, IncomingRequest, OutgoingResponse

__all__ = ["Caller", "Door", "caller_of"]

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@frozen(kw_only=False)
class Caller:
    """An agent. `is_proven`: by a token; its runs are then nobody else's."""

    name: str
    is_proven: bool


def caller_of(request: IncomingRequest) -> Caller | Refusal:
    """Return who sent a request, or why its word cannot be taken."""
    proven = request.proven_agent
    if proven is not None:
        return Caller(proven, is_proven=True)
    told = request.field(b"seawall-agent")
    if told is None:
        return _unproven[request.peer or "local"]
    if not _NAME.fullmatch(told):
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail="The header Seawall-Agent must hold 1 to 128 letters, digits and . _ : -.",
        )
    return _unproven[told.decode("ascii")]


_unproven = Remembered[str, Caller](lambda name: Caller(name, False))


class Door:
    """Asks for a token, if any are in use, and passes the request on.

    Args:
        tokens: returns those in force, or None where none are in use.
        inner_at_once: what `at_once` passes a request on to.
    """

    def __init__(
        self,
        inner: Callable[[IncomingRequest], Awaitable[OutgoingResponse]],
        tokens: Callable[[], Tokens | None],
        clock: Clock,
        refused: Callable[[Code], None],
        inner_at_once: Callable[[IncomingRequest], AtOnce | None] = lambda request: None,
    ) -> None:
        self._inner = inner
        self._inner_at_once = inner_at_once
        self._tokens = tokens
        self._clock = clock
        self._refused = refused

    def __call__(self, request: IncomingRequest) -> Awaitable[OutgoingResponse]:
        """Answer one request."""
        tokens = self._tokens()
        return self._inner(request) if tokens is None else self._admitted(request, tokens)

    def at_once(self, request: IncomingRequest) -> AtOnce | None:
        """Return what answers requests with this very head, as long as the token in it is good; None where nothing does, or
        it has none that is."""
        tokens = self._tokens()
        if tokens is None:
            inner = self._inner_at_once(request)
            return None if inner is None else lambda body: inner(body) if self._tokens() is None else None
        entry = self._entry(tokens, presented(request.headers))
        if entry is None:
            return None
        request.token = entry
        request.replace_headers(without_token(request.headers))
        return self._as_long_as_good(entry, self._inner_at_once(request))

    def _as_long_as_good(self, entry: Entry, inner: AtOnce | None) -> AtOnce | None:
        if inner is None:
            return None

        def answer(body: bytes | None) -> Problem | None:
            tokens = self._tokens()
            return inner(body) if tokens is not None and tokens.is_good(entry, self._clock.at()) else None

        return answer

    def _entry(self, tokens: Tokens, text: str | None) -> Entry | None:
        entry = tokens.holder(text, self._clock.at())
        return None if entry is None or entry.scope is not Scope.AGENT else entry

    async def _admitted(self, request: IncomingRequest, tokens: Tokens) -> OutgoingResponse:
        text = presented(request.headers)
        entry = self._entry(tokens, text)
        if entry is None:
            self._refused(Code.UNAUTHENTICATED)
            return _refusal(request, text is not None)
        request.token = entry
        if request.wants_websocket:
            request.is_welcome = lambda: self._is_still_good(text)
        request.replace_headers(without_token(request.headers))
        return await self._inner(request)

    def _is_still_good(self, text: str | None) -> bool:
        tokens = self._tokens()
        return tokens is not None and tokens.holder(text, self._clock.at()) is not None


def _refusal(request: IncomingRequest, has_token: bool) -> OutgoingResponse:
    """401, or 407 towards a client that takes us for its proxy (RFC 9110 sections 11.6.1, 11.7.1, 15.5.8)."""
    what = "The token is unknown, expired, revoked, or not an agent's" if has_token else "There is no token"
    detail = (
        f"{what}; nothing was sent. Send Seawall-Agent-Token with every call; the operator issues one with "
        "`seawall token issue NAME`."
    )
    is_proxied = request.method == "CONNECT" or not request.target.startswith((b"/", b"*"))
    told = problem(Refusal(code=Code.UNAUTHENTICATED, detail=detail), status=407 if is_proxied else 401)
    asked = (
        (b"Proxy-Authenticate", b'Basic realm="seawall", charset="UTF-8"')
        if is_proxied
        else (b"WWW-Authenticate", b'Seawall-Agent-Token realm="seawall"')
    )
    return OutgoingResponse(status=told.status, headers=(*told.headers, asked), body=BytesBody(told.body))
