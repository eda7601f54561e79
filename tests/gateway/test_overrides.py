"""A call brings no second word about its method or path to a tool, unless the manifest names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.server import ForwardSettings
from tests.gateway.harness import Answered, Serving, serving
from tests.origin import Answer, Origin

MANIFEST = """
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    operations:
      search: {match: POST /search, tier: read}
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: POST /undo, headers: {X-HTTP-Method-Override: DELETE}, form: {_method: DELETE}}
      update: {match: POST /things, tier: pivot, overrides: [x-http-method, _method]}
      patch: {match: 'POST /things?_method=PATCH', tier: reversible}
  dead:
    upstream: http://127.0.0.1:1
    breaker: {consecutive: 1, cooldown: 1h, max_cooldown: 1h}
    retry: {attempts: 1}
    operations: {search: {match: POST /search, tier: read}, hold: {match: POST /holds, tier: reversible}}
  plain: {upstream: 'http://127.0.0.1:PORT'}
  narrow: {upstream: 'http://127.0.0.1:PORT', headers: {allow: [accept]}}
  wide: {upstream: 'http://127.0.0.1:PORT', headers: {allow: ['*', x-original-url]}, overrides: [_method]}
  chained: {upstream: 'http://127.0.0.1:PORT', forwarded: append}
"""
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
MULTIPART = b'--b\r\nContent-Disposition: form-data; name="_method"\r\n\r\nDELETE\r\n--b--\r\n'


async def refused(running: Serving, origin: Origin, answer: Answered, named: str) -> None:
    """It is refused by name before anything is sent or recorded."""
    assert (answer.status, answer.code) == (422, "ERR_INVALID_ARGUMENTS")
    assert named in answer.json["detail"]
    assert "leave it out" in answer.json["detail"]
    assert answer.json["dispatched"] == "no"
    assert origin.requests == []
    run = await running.agent.send("GET", "/seawall/v1/trajectories/r")
    assert run.status == 404 or run.json["steps"] == []


@pytest.mark.parametrize("tool", ["pay", "plain", "chained"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize(
    "field",
    ["X-HTTP-Method-Override", "x_http_method", "X-METHOD-Override", "X-Original-URL", "X-Rewrite-URL", "SCRIPT_NAME"],
)
async def test_a_header_field_cannot_replace_method_or_path(tmp_path: Path, tool: str, method: str, field: str) -> None:
    """Yii and CakePHP take it with any method, so a read would be a DELETE that nobody has recorded."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await running.agent.send(method, f"/{tool}/x", headers=[(field, "DELETE")], run="r")
        if method == "HEAD":
            assert (answer.status, origin.requests) == (422, [])
        else:
            await refused(running, origin, answer, f"the header field `{field}`")


async def test_a_query_cannot_replace_the_method(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        for target in ("/plain/x?_method=DELETE", "/pay/x?a=1&%5fmethod=DELETE", "/pay/things?_HttpMethod=PATCH"):
            for method in ("GET", "POST"):
                answer = await running.agent.send(method, target, run="r")
                await refused(running, origin, answer, "the query parameter `_")


@pytest.mark.parametrize("path", ["/pay/search", "/pay/holds", "/pay/x", "/plain/x"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"a=1&_method=DELETE"),
        (JSON, b'{"a": 1, "_method": "DELETE"}'),
        (JSON, b'{"a": 1.5, "\\u005fmethod": "DELETE"}'),
        (JSON, b'{"_METHOD":"DELETE"}'),
        (JSON, b'{"_Method":"DELETE","a":1}'),
        ("multipart/form-data; boundary=b", MULTIPART),
        (FORM, b"a=" + b"x" * 400_000 + b"&_method=DELETE"),
    ],
)
async def test_a_body_cannot_replace_the_method(tmp_path: Path, path: str, kind: str, body: bytes) -> None:
    """Reads by POST included; the large one is on disk by then, or has been broken off."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        answer = await running.agent.send("POST", path, body, headers=[("Content-Type", kind)], run="r")
        if path == "/pay/search" and len(body) > 100_000:
            assert (answer.status, answer.json["dispatched"]) == (422, "maybe")
            assert "broken off before its end: the body's field `_method` could have pay" in answer.json["detail"]
            assert not any(b"_method" in one.body or one.is_complete for one in origin.requests)
        else:
            await refused(running, origin, answer, "the body's field `_method`")


@pytest.mark.parametrize("path", ["/pay/search", "/pay/holds"])
async def test_nor_can_one_behind_a_head_that_has_come_before(tmp_path: Path, path: str) -> None:
    """It is not parsed then (docs/adr/0170), and looked through all the same."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        for _ in range(4):
            answer = await running.agent.send(
                "POST", path, b"_method=DELETE", headers=[("Content-Type", FORM)], run="r"
            )
            await refused(running, origin, answer, "the body's field `_method`")
        assert len(running.gateway._front.heads) > 0


@pytest.mark.parametrize("path", ["/dead/search", "/dead/holds", "/dead/x"])
@pytest.mark.parametrize(("kind", "body"), [(FORM, b"_method=DELETE"), (JSON, b'{"_METHOD":"DELETE"}'), (JSON, b"{}")])
async def test_nor_while_the_tool_refuses_everybody(tmp_path: Path, path: str, kind: str, body: bytes) -> None:
    """What is refused at once is refused for the same reason as what is looked at whole."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        answers = [
            await running.agent.send("POST", path, sent, headers=[("Content-Type", kind)], run="r")
            for sent in (b"{}", body, b"{}", body, body)
        ]
    said = (422, "ERR_INVALID_ARGUMENTS") if body != b"{}" else (503, "ERR_CIRCUIT_OPEN")
    assert [(answer.status, answer.code) for answer in answers[1::2]] == [said, said]
    assert answers[4].code == said[1]
    assert answers[2].code == "ERR_CIRCUIT_OPEN"


async def test_what_the_manifest_names_passes(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        send = running.agent.send
        assert (await send("POST", "/pay/things", {"_method": "PUT"}, headers=[("X-HTTP-Method", "PUT")])).status == 200
        assert (await send("POST", "/pay/things?_method=PATCH", {})).status == 200
        assert (await send("GET", "/wide/x?_method=COUNT", headers=[("X-Original-URL", "/y")])).status == 200
        assert (await send("GET", "/narrow/x", headers=[("X-Original-URL", "/y")])).status == 200
        things, patch, wide, narrow = origin.requests
        assert things.values(b"x-http-method") == [b"PUT"]
        assert patch.head.startswith(b"POST /things?_method=PATCH ")
        assert wide.values(b"x-original-url") == [b"/y"]
        assert narrow.values(b"x-original-url") == []
        assert (await send("GET", "/wide/x", headers=[("X-Rewrite-URL", "/y")])).status == 422
        assert (await send("POST", "/pay/holds", {}, headers=[("X-HTTP-Method", "PUT")])).status == 422


async def test_what_the_manifest_itself_sends_may_say_so(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        await running.agent.send("POST", "/pay/holds", {}, run="r")
        await running.agent.send("POST", "/seawall/v1/trajectories/r/abort", {"reason": "test"})
        [undo] = [one for one in origin.requests if one.path == "/undo"]
        assert undo.values(b"x-http-method-override") == [b"DELETE"]
        assert undo.body == b"_method=DELETE"


async def test_a_proxys_clients_are_held_to_it_too(tmp_path: Path) -> None:
    alone = "tools: {plain: {upstream: 'http://127.0.0.1:PORT'}}"
    async with Origin() as origin, serving(tmp_path, origin.port, alone, forward=ForwardSettings()) as running:
        url = f"http://127.0.0.1:{origin.port}/x"
        await refused(running, origin, await running.agent.send("GET", f"{url}?_method=DELETE"), "`_method`")
        answer = await running.agent.send("GET", url, headers=[("X-Original-URL", "/y")])
        await refused(running, origin, answer, "`X-Original-URL`")
        assert (await running.agent.send("GET", url)).status == 200


async def test_an_honest_upload_of_the_word_passes(tmp_path: Path) -> None:
    """A page with a form in it, a text about Rails."""
    async with Origin() as origin, serving(tmp_path, origin.port, MANIFEST) as running:
        origin.default = Answer(200, b"ok")
        head = b'--b\r\nContent-Disposition: form-data; name="f"; filename="a.html"\r\n\r\n'
        page = head + b'<input name="_method">\r\n--b--\r\n'
        sent = [
            ("multipart/form-data; boundary=b", page),
            (FORM, b"text=_method%3DDELETE"),
            (JSON, b'{"text": "\\"_method\\" of Rails, caf\\u00e9"}'),
        ]
        for kind, body in sent:
            for path in ("/pay/search", "/plain/x"):
                assert (await running.agent.send("POST", path, body, headers=[("Content-Type", kind)])).status == 200
        assert [one.body for one in origin.requests] == [body for _, body in sent for _ in range(2)]
