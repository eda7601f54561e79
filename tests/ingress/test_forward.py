"""What a proxy's client means, and that hosts outside the manifest cost no memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gateway.core.authority import Authority
from gateway.core.codes import Code
from gateway.core.hosts import Found
from gateway.core.outcome import Refusal
from gateway.core.reach import Reach
from gateway.core.server import ForwardSettings, UnknownHosts
from gateway.core.tool import Upstream
from gateway.ingress.caller import Caller, caller_of
from gateway.ingress.forward import STRANGER, Forward, _Outer
from tests.builders import catalog_of, tool_of

CATALOG = catalog_of(tool_of("pay", upstream=Upstream("https", "api.pay.example", 443, "/v1")))
READS = ForwardSettings(unknown_hosts=UnknownHosts.READ)


def forward(settings: ForwardSettings = ForwardSettings()) -> Forward:  # noqa: B008 - frozen
    return Forward(settings, lambda: CATALOG, None)


def test_a_tool_is_found_by_its_host() -> None:
    found = forward().find("POST", b"http://api.pay.example/v1/x?y")
    assert isinstance(found, Found)
    assert (found.tool.name, found.rest) == ("pay", b"/x?y")


def test_a_changed_manifest_is_seen() -> None:
    catalogs = [CATALOG, catalog_of(tool_of("new", upstream=Upstream("http", "new.example", 80)))]
    one = Forward(ForwardSettings(), lambda: catalogs[0], None)
    assert isinstance(one.find("GET", b"http://new.example/"), Refusal)
    catalogs.reverse()
    assert isinstance(one.find("GET", b"http://new.example/"), Found)
    assert isinstance(one.find("GET", b"http://api.pay.example/v1/x"), Refusal)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_stranger_is_read_at_public_addresses_as_one_tool_with_all_its_like(method: str) -> None:
    found = forward(READS).find(method, b"https://any.example:8443/a?b")
    assert isinstance(found, Found)
    tool = found.tool
    assert (tool.name, tool.domain.name, tool.reach) == (STRANGER, STRANGER, Reach.PUBLIC)
    assert (tool.upstream.origin, found.rest) == ("https://any.example:8443", b"/a?b")
    assert tool.match(method, "/a").operation.is_read
    assert tool.credential is None


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PROPFIND"])
def test_a_stranger_is_never_written_to(method: str) -> None:
    refused = forward(READS).find(method, b"https://any.example/a")
    assert isinstance(refused, Refusal)
    assert refused.code is Code.UNKNOWN_TOOL


def test_strangers_are_bounded() -> None:
    one = forward(READS)
    seen = {
        id(tool.tool)
        for number in range(3_000)
        if isinstance(tool := one.find("GET", b"http://h%d.example/" % number), Found)
    }
    assert len(one._strangers) == 256
    assert len(seen) > 256
    keys = {one.find("GET", b"http://h%d.example/" % number).tool.breaker_key for number in range(3_000)}  # type: ignore[union-attr]
    assert len(keys) == 64


def test_the_gateways_own_url_is_a_plain_path() -> None:
    class Asked:
        target = b"http://localhost:8080/pay/x"

    one = forward()
    one.own = frozenset({Authority("localhost", 8080)})
    asked = Asked()
    one.localise(asked)  # type: ignore[arg-type]
    assert asked.target == b"/pay/x"
    asked.target = b"http://localhost:8081/pay/x"
    one.localise(asked)  # type: ignore[arg-type]
    assert asked.target == b"http://localhost:8081/pay/x"


@pytest.mark.parametrize(
    ("peer", "agent"), [("127.0.0.1", "127.0.0.1"), ("::1", "ip-::1"), ("fe80::1%eth0", "ip-fe80::1")]
)
def test_what_connect_says_holds_inside_and_what_is_said_inside_wins(peer: str, agent: str) -> None:
    class Asked:
        headers = ((b"Seawall-Trajectory", b"r1"), (b"Proxy-Authorization", b"x"), (b"User-Agent", b"curl"))

    asked = Asked()
    asked.peer = peer  # type: ignore[attr-defined]
    outer = _Outer.of(asked, Authority("api.pay.example", 443))  # type: ignore[arg-type]
    inside = dict(outer.beneath(((b"X", b"1"), (b"seawall-trajectory", b"r2"))))
    assert inside == {
        b"X": b"1", b"seawall-trajectory": b"r2", b"Proxy-Authorization": b"x", b"Seawall-Agent": agent.encode(),
    }  # fmt: skip
    told = SimpleNamespace(
        peer="", proven_agent=None, field=lambda name: {k.lower(): v for k, v in inside.items()}.get(name)
    )
    assert caller_of(told) == Caller(agent, is_proven=False)  # type: ignore[arg-type]
