"""Who a request comes from: what a token proves wins over what the request says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson
import pytest

from gateway.core.codes import Code
from gateway.core.message import BytesBody, Headers, first_header
from gateway.core.outcome import Refusal
from gateway.core.problem import Problem
from gateway.core.tokens import Entry, Scope, Tokens, mint
from gateway.ingress.caller import Caller, Door, caller_of
from gateway.ingress.http import AtOnce, IncomingRequest, OutgoingResponse
from tests.fakes import FakeClock


@dataclass
class Asked:
    """As much of a request as a door looks at."""

    headers: Headers = ()
    method: str = "GET"
    target: bytes = b"/pay/x"
    peer: str = "127.0.0.1"
    token: Entry | None = None
    wants_websocket: bool = False
    seen: list[str] = field(default_factory=list)

    @property
    def proven_agent(self) -> str | None:
        return None if self.token is None else self.token.name

    def field(self, name: bytes) -> bytes | None:
        return first_header(self.headers, name)

    def replace_headers(self, headers: Headers) -> None:
        self.headers = headers

    @property
    def as_request(self) -> IncomingRequest:
        return cast(IncomingRequest, self)


def test_without_tokens_an_agent_is_what_it_says_else_its_address() -> None:
    assert caller_of(Asked().as_request) == Caller("127.0.0.1", is_proven=False)
    assert caller_of(Asked(peer="").as_request) == Caller("local", is_proven=False)
    assert caller_of(Asked(((b"SEAWALL-AGENT", b"ana"),)).as_request) == Caller("ana", is_proven=False)


def test_a_name_that_is_none_is_refused() -> None:
    refused = caller_of(Asked(((b"Seawall-Agent", b"a b"),)).as_request)
    assert isinstance(refused, Refusal)
    assert refused.code is Code.INVALID_ARGUMENTS


def test_a_proven_name_wins() -> None:
    asked = Asked(((b"Seawall-Agent", b"bob"),), token=issued()[1])
    assert caller_of(asked.as_request) == Caller("ana", is_proven=True)


def issued(scope: Scope = Scope.AGENT) -> tuple[bytes, Entry]:
    text, entry = mint(bytes(range(39)), scope=scope, name="ana", at=0)
    return text.encode(), entry


def door(tokens: Tokens | None, asked: Asked) -> tuple[Door, list[Code]]:
    refused: list[Code] = []

    async def inner(request: Any) -> OutgoingResponse:
        asked.seen.append(request.proven_agent or "somebody")
        return OutgoingResponse(status=204)

    return Door(inner, lambda: tokens, FakeClock(), refused.append), refused


async def test_without_tokens_everybody_goes_through() -> None:
    asked = Asked()
    opened, _ = door(None, asked)
    assert (await opened(asked.as_request)).status == 204
    assert asked.seen == ["somebody"]


async def test_a_good_token_names_the_agent_and_goes_no_further() -> None:
    text, entry = issued()
    asked = Asked(((b"Authorization", b"Bearer " + text), (b"X", b"1")))
    opened, _ = door(Tokens([entry]), asked)
    assert (await opened(asked.as_request)).status == 204
    assert asked.seen == ["ana"]
    assert asked.headers == ((b"X", b"1"),)


NO = Problem(503, (), b"no")


def quick(tokens: list[Tokens | None], asked: Asked, clock: FakeClock) -> AtOnce | None:
    """What a door knows of requests like `asked`; the last of `tokens` are in force."""

    def inner(request: IncomingRequest) -> AtOnce:
        asked.seen.append(request.proven_agent or "somebody")
        return lambda body: NO

    async def never(request: IncomingRequest) -> OutgoingResponse:
        raise AssertionError

    return Door(never, lambda: tokens[-1], clock, lambda code: None, inner).at_once(asked.as_request)


def test_at_once_a_token_is_asked_for_as_at_any_time() -> None:
    text, entry = issued()
    for headers in ((), ((b"Seawall-Agent-Token", text[:-1] + b"x"),)):
        asked = Asked(headers)
        assert quick([Tokens([entry])], asked, FakeClock()) is None
        assert asked.seen == []
    asked = Asked(((b"Authorization", b"Bearer " + text), (b"X", b"1")))
    assert quick([Tokens([entry])], asked, FakeClock()) is not None
    assert asked.seen == ["ana"]
    assert asked.headers == ((b"X", b"1"),)


def test_what_was_known_under_a_token_ends_with_it() -> None:
    """Revoked, expired, or there are tokens now and were none."""
    text, entry = issued()
    entry, clock = replace(entry, expires_at=FakeClock().at() + 1000), FakeClock()
    asked, tokens = Asked(((b"Seawall-Agent-Token", text),)), [Tokens([entry])]
    force: list[Tokens | None] = [*tokens]
    answer = quick(force, asked, clock)
    assert answer is not None
    assert answer(b"") == NO
    force.append(Tokens([replace(entry, revoked_at=1)]))
    assert answer(b"") is None
    force.append(None)
    assert answer(b"") is None
    force.append(Tokens([entry]))
    clock.turn(2.0)
    assert answer(b"") is None
    force = [None]
    answer = quick(force, Asked(), clock)
    assert answer is not None
    assert answer(b"") == NO
    force.append(Tokens([entry]))
    assert answer(b"") is None


@pytest.mark.parametrize(
    ("method", "target", "status", "asks"),
    [
        ("GET", b"/pay/x", 401, b"WWW-Authenticate"),
        ("GET", b"http://api.example/x", 407, b"Proxy-Authenticate"),
        ("CONNECT", b"api.example:443", 407, b"Proxy-Authenticate"),
    ],
)
async def test_others_are_asked_for_one_in_the_way_their_client_understands(
    method: str, target: bytes, status: int, asks: bytes
) -> None:
    text, entry = issued(Scope.OPERATOR)
    for headers in ((), ((b"Seawall-Agent-Token", text),)):
        asked = Asked(headers, method, target)
        opened, refused = door(Tokens([entry]), asked)
        answer = await opened(asked.as_request)
        assert answer.status == status
        assert asks in dict(answer.headers)
        assert asked.seen == []
        assert refused == [Code.UNAUTHENTICATED]
        assert isinstance(answer.body, BytesBody)
        assert orjson.loads(answer.body.data)["status"] == status
        assert text not in answer.body.data
