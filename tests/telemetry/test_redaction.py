import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from gateway.telemetry.redaction import MARK, Redactor

SECRET = 'sk_live "42"/+ä\n'


@pytest.fixture
def redactor() -> Redactor:
    redactor = Redactor()
    redactor.add([SECRET])
    return redactor


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        SECRET.strip(),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        repr(SECRET)[1:-1],
        repr(SECRET.encode())[2:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        base64.b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_secret_is_found_in_each_of_its_spellings(redactor, spelling):
    """A secret reaches a log inside a URL, a repr or a JSON text more often than bare."""
    assert redactor.text(f"before {spelling} after") == f"before {MARK} after"


def test_the_lines_of_a_key_file_are_secrets_of_their_own():
    """A traceback indents them, so the whole is no longer found."""
    redactor = Redactor()
    redactor.add(["-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7cana\nry\n"])
    assert "MIIEpAIBAAKCAQEA7cana" not in redactor.text("    MIIEpAIBAAKCAQEA7cana\n")


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer canary.canary",
        "authorization: canary canary",
        "got (b'Authorization', b'Bearer canary')",
        "{'Proxy-Authorization': 'canary'}",
        '{"x-api-key": "canary"}',
        "Set-Cookie: session=canary; Path=/",
        "GET https://example.com/a?access_token=canary&b=1",
        "https://user:canary@example.com/",
        "password=canary",
        "said Bearer canary-canary to it",
    ],
)
def test_what_stands_behind_a_sensitive_name_is_taken_out(text):
    """Agents' own credentials are not in the manifest, so they can only be known by their place."""
    assert "canary" not in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    ["the breaker of payments is open", "tool=payments cause=failure_ratio", "POST /v1/tokens?limit=20", "12:30:01"],
)
def test_ordinary_text_stays_as_it_is(text):
    assert Redactor().text(text) == text


def test_values_are_redacted_at_any_depth_and_come_back_as_plain_json(redactor):
    value = {
        "headers": [("x", SECRET.encode())],
        "Authorization": ["anything"],
        "count": 3,
        "ok": True,
        "error": ValueError(SECRET),
        SECRET: None,
    }
    assert redactor.value(value) == {
        "headers": [["x", MARK]],
        "Authorization": MARK,
        "count": 3,
        "ok": True,
        "error": MARK,
        MARK: None,
    }


def test_values_within_themselves_end():
    """A log line may not recurse for ever because somebody logged a graph."""
    loop: list[object] = []
    loop.append(loop)
    json.dumps(Redactor().value(loop))


def test_an_empty_secret_redacts_nothing_and_none_is_shown():
    redactor = Redactor()
    redactor.add(["", " \n", "canary"])
    assert redactor.text("a b") == "a b"
    assert "canary" not in repr(redactor)
