"""Messages are read strictly, and what is passed on keeps its bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.mcp import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Kind,
    Malformed,
    error_message,
    members,
    notification,
    parse,
    parse_batch,
    replaced,
    request,
    result_message,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_a_request_keeps_the_text_of_its_params() -> None:
    """Digits that a float would lose, and order, are the sender's."""
    text = '{"z": 1.10, "a": 123456789012345678901234567890}'
    message = parse(f'{{"jsonrpc":"2.0","id":"7","method":"x","params":{text}}}')
    assert (message.kind, message.id, message.method, message.params) == (Kind.REQUEST, '"7"', "x", text)
    assert parse(request(message.id, message.method, message.params)) == message


def test_kinds_are_told_apart() -> None:
    """By what is there, not by what is likely."""
    assert parse(notification("n", None)).kind is Kind.NOTIFICATION
    assert parse(result_message("1", '{"a":1}')).result == '{"a":1}'
    answer = parse(error_message("", -1, "no", {"x": 1}).replace(b"null", b"3"))
    assert (answer.kind, answer.value["data"]) == (Kind.RESPONSE, {"x": 1})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", PARSE_ERROR),
        ("{", PARSE_ERROR),
        ("nonsense", PARSE_ERROR),
        (b"\xff", PARSE_ERROR),
        ("{}", INVALID_REQUEST),
        ("[]", INVALID_REQUEST),
        ('{"jsonrpc":"1.0","id":1,"method":"x"}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":null,"method":"x"}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1.5,"method":"x"}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":true,"method":"x"}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"method":7}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"result":7}', INVALID_REQUEST),
        ('{"jsonrpc":"2.0","id":1,"method":"x"} x', PARSE_ERROR),
        ('{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":NaN}}', PARSE_ERROR),
        ('[{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":-Infinity}}]', PARSE_ERROR),
    ],
)
def test_what_is_no_message_is_named(text: str | bytes, code: int) -> None:
    """With the code that JSON-RPC has for it."""
    with pytest.raises(Malformed) as caught:
        parse_batch(text)
    assert caught.value.code == code


def test_deep_nesting_is_refused_and_not_followed() -> None:
    """A message must not end the process."""
    with pytest.raises(Malformed):
        parse('{"jsonrpc":"2.0","id":1,"method":"x","params":' + '{"a":' * 100_000 + "1" + "}" * 100_001)


def test_a_batch_is_bounded() -> None:
    """One request, one unit of work."""
    one = '{"jsonrpc":"2.0","method":"x"}'
    batch = parse_batch(f" [ {one} , {one} ] ")
    assert isinstance(batch, list)
    assert len(batch) == 2
    with pytest.raises(Malformed):
        parse_batch("[" + ",".join([one] * 65) + "]")


@given(st.dictionaries(st.text(), JSON), st.text(), JSON)
def test_replacing_a_member_changes_nothing_else(value: dict[str, object], key: str, new: object) -> None:
    """The rest keeps its text; the result is JSON."""
    text = json.dumps(value)
    changed = replaced(text, {key: json.dumps(new)})
    assert json.loads(changed) == {**value, key: new}
    before, after = members(text), members(changed)
    assert all(after[name] == before[name] for name in before if name != key)
    assert key not in members(replaced(changed, {key: None}))
