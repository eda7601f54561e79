"""Which era a message is of, and what its headers must say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.mcp import HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION, Message, parse
from gateway.core.mcp_era import (
    CAPABILITIES,
    LEGACY,
    SERVER_INFO,
    VERSION,
    check_envelope,
    decoded_value,
    encoded_value,
    for_legacy,
    for_modern,
    http_status,
    is_modern,
    named,
    negotiated,
    request_headers,
)
from gateway.core.message import Headers

META = {VERSION: "2026-07-28", CAPABILITIES: {}}


def call(name: object = "hold", meta: object = None) -> Message:
    params = {"name": name, "arguments": {}, "_meta": META if meta is None else meta}
    return parse(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))


def headers(version: str = "2026-07-28", method: str = "tools/call", name: str = "hold") -> Headers:
    pairs = (("mcp-protocol-version", version), ("MCP-METHOD", method), ("Mcp-Name", name))
    return tuple((key.encode(), value.encode()) for key, value in pairs)


def test_headers_that_agree_pass() -> None:
    """Also a name that had to be wrapped."""
    assert check_envelope(headers(), call()) is None
    assert check_envelope(headers(name=encoded_value("größe ")), call("größe ")) is None


@pytest.mark.parametrize(
    ("fields", "message", "code"),
    [
        (headers(version="2025-11-25"), call(), HEADER_MISMATCH),
        (headers(method="tools/list"), call(), HEADER_MISMATCH),
        (headers(name="other"), call(), HEADER_MISMATCH),
        (headers()[:2], call(), HEADER_MISMATCH),
        ((*headers(), (b"mcp-name", b"hold")), call(), HEADER_MISMATCH),
        (headers(name="=?base64?!?="), call("=?base64?!?="), HEADER_MISMATCH),
        (headers(), call(meta={}), INVALID_PARAMS),
        (headers(), call(meta={VERSION: "2026-07-28", CAPABILITIES: 1}), INVALID_PARAMS),
        (headers(), call(meta={VERSION: 7, CAPABILITIES: {}}), INVALID_PARAMS),
        (headers(version="2099-01-01"), call(meta={VERSION: "2099-01-01", CAPABILITIES: {}}), UNSUPPORTED_VERSION),
    ],
)
def test_what_does_not_agree_is_refused(fields: Headers, message: Message, code: int) -> None:
    """Before anything is looked up."""
    objection = check_envelope(fields, message)
    assert objection is not None
    assert objection.code == code


def test_the_era_is_what_the_message_says() -> None:
    """`initialize` belongs to the handshake, whatever header a client keeps sending."""
    plain = parse('{"jsonrpc":"2.0","id":1,"method":"ping"}')
    greeting = parse('{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}')
    newest: Headers = ((b"MCP-Protocol-Version", b"2026-07-28"),)
    assert is_modern((), call())
    assert is_modern(newest, plain)
    assert not is_modern(newest, greeting)
    assert not is_modern((), plain)
    assert not is_modern(((b"MCP-Protocol-Version", b"2025-06-18"),), plain)
    assert is_modern(((b"MCP-Protocol-Version", b"2099-01-01"),), plain)


def test_versions_are_negotiated() -> None:
    """The client's, if we speak it, else our newest."""
    assert [negotiated(asked) for asked in ("2025-06-18", "1999", None)] == ["2025-06-18", LEGACY[0], LEGACY[0]]


@given(st.text())
def test_any_text_survives_a_header(text: str) -> None:
    """Bare or wrapped, it comes back as it was, and no line break gets in."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    wrapped = encoded_value(text)
    assert decoded_value(wrapped) == text
    assert wrapped.isascii()
    assert wrapped.isprintable()


def test_a_request_of_ours_names_its_target() -> None:
    """What a router of the stateless era reads."""
    assert request_headers("resources/read", {"uri": "a://b"}, "2026-07-28")[-1] == (b"Mcp-Name", b"a://b")
    assert len(request_headers("tools/list", {}, "2026-07-28")) == 2


def test_arguments_go_into_headers_where_the_schema_asks() -> None:
    """`x-mcp-header`, nested too; nothing for what is absent."""
    schema = {
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"properties": {"dry": {"type": "boolean", "x-mcp-header": "Dry"}}},
            "bad": {"type": "string", "x-mcp-header": "no token"},
        }
    }
    found = named(schema, {"region": "eu", "deep": {"dry": True}, "bad": "x"})
    assert found == ((b"Mcp-Param-Region", b"eu"), (b"Mcp-Param-Dry", b"true"))
    assert named(schema, {}) == ()


def test_results_cross_between_eras() -> None:
    """What the other side requires is there, what it does not know is not; what was there stays."""
    modern = json.loads(for_modern('{"tools":[]}', "tools/list", {"name": "s"}))
    assert modern == {
        "tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": {SERVER_INFO: {"name": "s"}},
    }  # fmt: skip
    kept = '{"resultType":"input_required","requestState":"x"}'
    assert for_modern(kept, "tools/call") == kept
    assert for_legacy('{"resultType":"complete","ttlMs":1,"tools":[]}') == '{"tools":[]}'
    assert for_legacy('{"a": 1}') == '{"a": 1}'


def test_errors_have_their_status() -> None:
    """Of the stateless era only."""
    assert [http_status(code) for code in (-32601, -32020, -32603)] == [404, 400, 200]
