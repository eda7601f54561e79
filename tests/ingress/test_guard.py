"""The control plane asks who it is, where tokens are in use, and only then."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.core.tokens import Scope, Tokens, mint
from gateway.ingress.control import principal_of
from gateway.ingress.guard import guard, who
from tests.fakes import FakeClock


def issued(scope: Scope, seed: int) -> tuple[str, Tokens]:
    text, entry = mint(bytes([seed]) * 39, scope=scope, name=scope.value, at=0)
    return text, Tokens([entry])


def app_with(tokens: Tokens | None) -> web.Application:
    async def tell(request: web.Request) -> web.Response:
        return web.Response(text=who(request))

    app = web.Application(middlewares=[guard(lambda: tokens, FakeClock())])
    for path in ("/api/v1/x", "/healthz", "/readyz", "/metrics"):
        app.router.add_route("*", path, tell)
    return app


@pytest.mark.parametrize(
    ("scope", "look", "act"), [(Scope.OPERATOR, 200, 200), (Scope.VIEWER, 200, 403), (Scope.AGENT, 401, 401)]
)
async def test_a_scope_opens_what_it_is_for(scope: Scope, look: int, act: int) -> None:
    text, tokens = issued(scope, 1)
    async with TestClient(TestServer(app_with(tokens))) as client:
        fields = {"Authorization": f"Bearer {text}"}
        assert (await client.get("/api/v1/x", headers=fields)).status == look
        assert (await client.post("/api/v1/x", headers=fields)).status == act


async def test_who_has_none_is_told_what_to_send() -> None:
    _, tokens = issued(Scope.OPERATOR, 1)
    async with TestClient(TestServer(app_with(tokens))) as client:
        for fields in ({}, {"Authorization": "Bearer swt_x"}, {"Authorization": "Basic eDp5"}):
            answer = await client.get("/api/v1/x", headers=fields)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="seawall"'
            assert (await answer.json())["code"] == "ERR_UNAUTHENTICATED"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_health_and_metrics_take_no_token(path: str) -> None:
    async with TestClient(TestServer(app_with(Tokens()))) as client:
        assert (await client.get(path)).status == 200


async def test_nobody_decides_under_another_name_than_their_tokens() -> None:
    """Two of three must approve: one person with two names would be enough."""

    async def tell(request: web.Request) -> web.Response:
        return web.Response(text=principal_of(request, {"principal": "somebody else"}))

    text, tokens = issued(Scope.OPERATOR, 3)
    for known, name in ((tokens, "operator"), (None, "somebody else")):
        app = web.Application(middlewares=[guard(lambda known=known: known, FakeClock())])  # type: ignore[misc]
        app.router.add_post("/", tell)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post("/", headers={"Authorization": f"Bearer {text}"})
            assert await answer.text() == name


async def test_what_is_done_is_done_in_the_name_of_the_token() -> None:
    text, tokens = issued(Scope.OPERATOR, 2)
    async with TestClient(TestServer(app_with(tokens))) as client:
        answer = await client.post("/api/v1/x", headers={"Authorization": f"Bearer {text}"})
        assert await answer.text() == "operator:operator"
    async with TestClient(TestServer(app_with(None))) as client:
        assert await (await client.post("/api/v1/x")).text() == "operator"
