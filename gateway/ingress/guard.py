"""The control plane's door: a bearer token with the scope that the request needs, where tokens are in use.

Reading takes a `viewer`, changing anything an `operator`. Health and metrics name no run and change nothing, and take none.

Source: RFC 6750 sections 2.1 and 3; OWASP API Security Top 10 2023, API5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.clock import Clock
from gateway.core.codes import Code
from gateway.core.outcome import Refusal
from gateway.core.problem import problem
from gateway.core.tokens import Entry, Scope, Tokens

__all__ = ["OPERATOR", "guard", "proven", "who"]


OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics"})
OPERATOR: Final = web.RequestKey("operator", Entry)


def who(request: web.Request) -> str:
    """Return who asks, for the journal: the token's name, or "operator" where no tokens are in use."""
    entry = request.get(OPERATOR)
    return "operator" if entry is None else f"operator:{entry.name}"


def proven(request: web.Request) -> str | None:
    """Return the name that the request's token proves, or None where no tokens are in use."""
    entry = request.get(OPERATOR)
    return None if entry is None else entry.name


def guard(tokens: Callable[[], Tokens | None], clock: Clock) -> Middleware:
    """Return the middleware. `tokens` returns those in force, or None where none are in use."""

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        known = tokens()
        if known is None or request.path in OPEN:
            return await handler(request)
        entry = known.holder(_bearer(request), clock.at())
        if entry is None or entry.scope is Scope.AGENT:
            return _refused(
                Refusal(
                    code=Code.UNAUTHENTICATED,
                    detail="No operator's or viewer's token was sent, or it is good no more. Send Authorization: Bearer "
                    "TOKEN (variable SEAWALL_TOKEN); `seawall token issue NAME --scope operator` makes one.",
                )
            )
        wanted = Scope.VIEWER if request.method in ("GET", "HEAD") else Scope.OPERATOR
        if not entry.scope.includes(wanted):
            return _refused(
                Refusal(
                    code=Code.POLICY_DENIED,
                    detail=f"The token of {entry.name} is a viewer's; this takes an operator's.",
                )
            )
        request[OPERATOR] = entry
        return await handler(request)

    return ask


def _bearer(request: web.Request) -> str | None:
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


def _refused(refusal: Refusal) -> web.Response:
    told = problem(refusal)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told.headers}
    if told.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="seawall"'
    return web.Response(status=told.status, body=told.body, headers=headers)
