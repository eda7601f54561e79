"""Which header fields cross the gateway, by the manifest's word, through the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.server import ForwardSettings
from tests.gateway.harness import serving
from tests.origin import Answer, Origin, Received

MANIFEST = """
tools:
  plain: {upstream: 'http://127.0.0.1:PORT'}
  narrow:
    upstream: http://127.0.0.1:PORT
    headers: {allow: [accept, x-a*], deny: [x-ab]}
    credentials: {header: X-Key, value: sesame}
    operations:
      hold: {match: POST /holds, tier: compensable, compensator: {request: POST /undo, headers: {X-Undo: '1'}}}
  replace: {upstream: 'http://127.0.0.1:PORT', forwarded: replace}
  append: {upstream: 'http://127.0.0.1:PORT', forwarded: append}
  passing: {upstream: 'http://127.0.0.1:PORT', forwarded: pass}
"""
SENT = [("Accept", "a"), ("X-A", "1"), ("X-AB", "2"), ("Cookie", "c=1"), ("X-B", "3"), ("Content-Type", "text/plain")]
LIE = [("Forwarded", "for=10.0.0.1"), ("X-Forwarded-For", "10.0.0.1"), ("X-Real-IP", "10.0.0.1")]


def reached(request: Received) -> set[str]:
    return {name.decode().lower() for name, _ in request.headers}


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_tools_list_holds_for_every_method(tmp_path: Path, method: str) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        await running.agent.send(method, "/narrow/x", b"x", headers=SENT)
        names = reached(origin.requests[0])
        assert names >= {"host", "accept", "x-a", "content-type", "x-key", "via"}
        assert not names & {"x-ab", "cookie", "x-b"}


async def test_an_agents_field_does_not_stand_beside_ours_in_another_spelling(tmp_path: Path) -> None:
    """A WSGI tool would take whichever comes last for the credential, or for the key by which it knows a repeat."""
    text = MANIFEST.replace("headers: {allow: [accept, x-a*], deny: [x-ab]}", "idempotency: {header: Idempotency-Key}")
    lie = [
        ("X_Key", "mine"),
        ("Idempotency_Key", "mine"),
        ("X_Forwarded_For", "10.0.0.1"),
        ("Seawall_Step", "1"),
        ("X_Y", "1"),
    ]
    async with Origin() as origin, serving(tmp_path, origin.port, text) as running:
        await running.agent.send("POST", "/narrow/holds", {}, headers=lie)
        names = reached(origin.requests[0])
        assert names >= {"x-key", "idempotency-key", "x_y"}
        assert not names & {"x_key", "idempotency_key", "x_forwarded_for", "seawall_step"}


async def test_what_the_manifest_itself_sends_is_on_no_list(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        await running.agent.send("POST", "/narrow/holds", {}, run="r")
        await running.agent.send("POST", "/seawall/v1/trajectories/r/abort", {"reason": "test"})
        [undo] = [one for one in origin.requests if one.path == "/undo"]
        assert undo.values(b"x-undo") == [b"1"]


async def test_an_agents_word_on_whom_it_speaks_for_reaches_no_tool_by_itself(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        for tool in ("plain", "replace", "append", "passing"):
            await running.agent.send("GET", f"/{tool}/x", headers=LIE)
        plain, replaced, appended, passed = origin.requests
        assert not reached(plain) & {"forwarded", "x-forwarded-for", "x-real-ip"}
        host = f"127.0.0.1:{running.agent.port}".encode()
        [element] = replaced.values(b"forwarded")
        assert element.startswith(b"for=127.0.0.1;by=_seawall-")
        assert element.endswith(b';proto=http;host="%b"' % host)
        assert replaced.values(b"x-forwarded-for") == [b"127.0.0.1"]
        assert "x-real-ip" not in reached(replaced)
        assert appended.values(b"forwarded") == [b"for=10.0.0.1", element]
        assert appended.values(b"x-forwarded-for") == [b"10.0.0.1", b"127.0.0.1"]
        assert passed.values(b"forwarded") == [b"for=10.0.0.1"]


async def test_host_names_the_tool_and_the_agents_own_does_not_arrive(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        await running.agent.send("GET", "/plain/x")
        assert origin.requests[0].values(b"host") == [f"127.0.0.1:{origin.port}".encode()]


async def test_options_goes_as_far_as_it_may(tmp_path: Path) -> None:
    """RFC 9110 section 7.6.2."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        last = await running.agent.send("OPTIONS", "/plain/x", headers=[("Max-Forwards", "0")])
        assert (last.status, last["Allow"]) == (204, "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE")
        assert (await running.agent.send("OPTIONS", "/plain/x", headers=[("Max-Forwards", "x")])).status == 400
        assert origin.requests == []
        await running.agent.send("OPTIONS", "/plain/x", headers=[("Max-Forwards", "5")])
        await running.agent.send("GET", "/plain/x", headers=[("Max-Forwards", "0")])
        assert [one.values(b"max-forwards") for one in origin.requests] == [[b"4"], [b"0"]]
        assert (await running.agent.send("TRACE", "/plain/x", headers=[("Max-Forwards", "5")])).status == 422
        assert len(origin.requests) == 2


async def test_via_is_added_to_every_request_and_to_a_proxys_answers(tmp_path: Path) -> None:
    """An HTTP gateway must mark requests; a proxy must mark answers, too (RFC 9110 section 7.6.3)."""
    async with (
        Origin() as origin,
        serving(
            tmp_path,
            origin.port,
            MANIFEST.replace("127.0.0.1:PORT", "127.0.0.1:PORT/sub", 1),
            forward=ForwardSettings(),
        ) as running,
    ):
        origin.default = Answer(200, b"ok", ((b"Via", b"1.1 tool"),))
        answer = await running.agent.send("GET", "/plain/x", headers=[("Via", "1.0 agent")])
        first, ours = origin.requests[0].values(b"via")
        assert first == b"1.0 agent"
        assert ours.startswith(b"1.1 seawall-")
        assert [value for name, value in answer.headers if name == "Via"] == ["1.1 tool"]
        answer = await running.agent.send("GET", f"http://127.0.0.1:{origin.port}/sub/x")
        assert [value for name, value in answer.headers if name == "Via"] == ["1.1 tool", ours.decode()]
