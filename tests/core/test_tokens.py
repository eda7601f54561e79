"""Tokens: only their holder can use them, and what is kept of them is of no use to a thief."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tokens import (
    BadTokens,
    Entry,
    Scope,
    Tokens,
    decode_tokens,
    encode_tokens,
    mint,
    presented,
    without_token,
)


def issued(
    name: str = "a", scope: Scope = Scope.AGENT, seed: int = 1, expires_at: int | None = None
) -> tuple[str, Entry]:
    random = hashlib.sha512(bytes([seed])).digest()[:39]
    return mint(random, scope=scope, name=name, at=1_000, expires_at=expires_at)


def test_the_holder_of_a_token_is_known_by_it() -> None:
    text, entry = issued("billing")
    tokens = Tokens([issued(seed=2)[1], entry])
    assert tokens.holder(text, 2_000) == entry
    assert entry.name == "billing"


@pytest.mark.parametrize("wrong", [None, "", "swt_", "x" * 67])
def test_what_is_no_token_is_nobody(wrong: str | None) -> None:
    assert Tokens([issued()[1]]).holder(wrong, 2_000) is None


def test_a_wrong_secret_an_unknown_id_and_another_entrys_secret_are_nobody() -> None:
    (one, entry), (other, _) = issued(seed=1), issued(seed=2)
    tokens = Tokens([entry])
    assert tokens.holder(one[:-1] + ("a" if one[-1] != "a" else "b"), 2_000) is None
    assert tokens.holder(other, 2_000) is None
    assert tokens.holder(one[:15] + other[15:], 2_000) is None


def test_a_token_is_good_until_it_expires_or_is_revoked() -> None:
    text, entry = issued(expires_at=5_000)
    tokens = Tokens([entry])
    assert tokens.holder(text, 4_999) is not None
    assert tokens.holder(text, 5_000) is None
    left, revoked = tokens.without(entry.id, 3_000)
    assert [one.id for one in revoked] == [entry.id]
    assert left.holder(text, 3_001) is None
    assert left.without(entry.id, 4_000)[1] == (), "it is revoked once"


def test_all_tokens_of_a_name_are_revoked_together_and_no_other() -> None:
    first, second, other = issued("a", seed=1), issued("a", seed=2), issued("b", seed=3)
    left, revoked = Tokens([first[1], second[1], other[1]]).without("a", 9)
    assert len(revoked) == 2
    assert [left.holder(text, 10) is not None for text, _ in (first, second, other)] == [False, False, True]


def test_the_file_holds_no_secret() -> None:
    text, entry = issued()
    data = encode_tokens(Tokens([entry]))
    assert text[15:].encode() not in data
    assert text[15:] not in repr(entry)
    assert entry.digest == hashlib.sha256(b"seawall token 1\0" + text.encode()).hexdigest()


def test_an_operator_may_do_what_a_viewer_may_and_an_agent_neither() -> None:
    assert Scope.OPERATOR.includes(Scope.VIEWER)
    assert not Scope.VIEWER.includes(Scope.OPERATOR)
    assert not Scope.AGENT.includes(Scope.VIEWER)
    assert not Scope.OPERATOR.includes(Scope.AGENT)


@pytest.mark.parametrize("name", ["", "-a", "a b", "ü", "a" * 129, "a/b", "a\nb"])
def test_a_name_that_no_run_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        issued(name)


def test_too_little_randomness_is_refused() -> None:
    with pytest.raises(ValueError):
        mint(b"x" * 38, scope=Scope.AGENT, name="a", at=0)


entries = st.builds(
    lambda seed, scope, name, expires_at, revoked_at: (
        mint(seed, scope=scope, name=name, at=7, expires_at=expires_at)[1],
        revoked_at,
    ),
    st.binary(min_size=39, max_size=39),
    st.sampled_from(Scope),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True),
    st.none() | st.integers(0, 2**53),
    st.none() | st.integers(0, 2**53),
)


@given(st.lists(entries, max_size=5, unique_by=lambda one: one[0].id))
def test_what_is_written_is_read_again(pairs: list[tuple[Entry, int | None]]) -> None:
    tokens = Tokens(entry for entry, _ in pairs)
    for entry, revoked_at in pairs:
        if revoked_at is not None:
            tokens, _ = tokens.without(entry.id, revoked_at)
    assert decode_tokens(encode_tokens(tokens)).entries == tokens.entries


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"[]", "version 1"),
        (b'{"version": 2, "tokens": []}', "version 1"),
        (b'{"version": 1}', "not a list"),
        (b'{"version": 1, "tokens": [1]}', "token 1 is not an object"),
        (b'{"version": 1, "tokens": [{"token": "x"}]}', "token 1 is not an object"),
        (b'{"version": 1, "tokens": [{"id": "x"}]}', "`id`"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(data: bytes, why: str) -> None:
    with pytest.raises(BadTokens, match=why):
        decode_tokens(data)


def test_a_wrong_field_and_a_doubled_id_are_named_and_no_digest_is_shown() -> None:
    good = encode_tokens(Tokens([issued()[1]]))
    digest = issued()[1].digest.encode()
    for wrong, what in (
        (good.replace(b'"agent"', b'"root"'), "scope"),
        (good.replace(digest, digest[:-1]), "digest"),
        (good.replace(b"1000", b'"1000"'), "issued_at"),
    ):
        with pytest.raises(BadTokens, match=what) as refused:
            decode_tokens(wrong)
        assert digest[:16].decode() not in str(refused.value)
    with pytest.raises(BadTokens, match="same id"):
        decode_tokens(encode_tokens(Tokens([issued()[1], issued()[1]])))


def basic(text: str, user: str = "agent") -> bytes:
    return b"Basic " + b64encode(f"{user}:{text}".encode())


def test_a_token_is_found_where_a_client_can_put_it() -> None:
    text = issued()[0]
    value = text.encode()
    for headers in (
        ((b"seawall-agent-token", value),),
        ((b"Authorization", b"Bearer tools-own"), (b"Seawall-Agent-Token", b" %b " % value)),
        ((b"Proxy-Authorization", basic(text)), (b"Authorization", b"Bearer tools-own")),
        ((b"authorization", basic(text)),),
        ((b"Authorization", b"bearer " + value),),
    ):
        assert presented(headers) == text, headers


@pytest.mark.parametrize("value", [b"Bearer sk_live_1", b"Basic !!", b"Basic eDp5", b"Basic eA==", b"Digest x", b""])
def test_a_tools_own_credential_is_not_taken_for_a_token_and_stays(value: bytes) -> None:
    headers = ((b"Authorization", value),)
    assert presented(headers) is None
    assert without_token(headers) == headers


def test_no_authorization_with_a_token_goes_on() -> None:
    text = issued()[0]
    headers = ((b"Authorization", basic(text)), (b"X", b"1"), (b"Authorization", b"Bearer " + text.encode()))
    assert without_token(headers) == ((b"X", b"1"),)
