"""A session's id is the session."""

from dataclasses import replace

import pytest

from gateway.core.mcp_session import (
    ANONYMOUS,
    Client,
    apart,
    sealed,
    sealed_places,
    unsealed,
    unsealed_places,
    with_credentials,
)

KEY = b"k" * 32
CLIENT = Client(
    nonce="n",
    scope="pay",
    agent="a",
    version="2025-11-25",
    capabilities={"sampling": {}},
    info={"name": "x", "version": "1"},
)


def test_what_was_sealed_comes_back() -> None:
    """By any gateway that has the key."""
    assert unsealed(sealed(CLIENT, KEY), KEY) == CLIENT


def test_an_id_is_fit_for_a_header() -> None:
    """Visible ASCII, and bounded however much a client tells of itself."""
    chatty = Client(
        nonce="n", version="2025-11-25", capabilities={"elicitation": {}, "experimental": {"x": "y" * 99_999}}
    )
    id = sealed(chatty, KEY)
    assert len(id) < 9_000
    assert id.isascii()
    assert id.isprintable()
    again = unsealed(id, KEY)
    assert again is not None
    assert again.can("elicitation")
    assert not again.can("sampling")


@pytest.mark.parametrize("text", ["", "x", "ü", "A" * 50, "A" * 50_000, sealed(CLIENT, b"other key")])
def test_nobody_makes_one_up(text: str) -> None:
    """A forged id would be another client."""
    assert unsealed(text, KEY) is None
    genuine = sealed(CLIENT, KEY)
    for place in range(0, len(genuine), 7):
        other = "A" if genuine[place] != "A" else "B"
        assert unsealed(genuine[:place] + other + genuine[place + 1 :], KEY) != CLIENT or place == len(genuine) - 1


def test_a_place_is_its_clients_alone() -> None:
    """And a session id is no place."""
    id = sealed_places("n", {"pay": "17"}, KEY)
    assert id is not None
    assert unsealed_places(id, "n", KEY) == {"pay": "17"}
    for text, nonce, key in ((id, "m", KEY), (id, "n", b"x" * 32), ("17", "n", KEY), (sealed(CLIENT, KEY), "n", KEY)):
        assert unsealed_places(text, nonce, key) == {}
    assert sealed_places("n", {"pay": "x" * 9_999}, KEY) is None


def test_no_two_credentials_share_a_session() -> None:
    """Where a client has no session of its own, its credential decides; where it has one, that does."""
    nobody = Client(version="x")
    ana, bob = (with_credentials(nobody, ((b"Authorization", value),), KEY) for value in (b"ana", b"bob"))
    assert apart(ana).nonce != apart(bob).nonce
    assert apart(ana) == apart(ana)
    assert "ana" not in apart(ana).nonce
    elsewhere = with_credentials(nobody, ana.credentials, b"x" * 32)
    assert apart(elsewhere).nonce != apart(ana).nonce, "what is kept of a credential must not be open to guessing"
    assert apart(nobody).nonce == ""
    assert with_credentials(ana, (), KEY) == nobody
    own = replace(ana, nonce="n")
    assert apart(own) is own
    nameless = [replace(one, nonce=f"{ANONYMOUS}agent") for one in (ana, bob)]
    assert len({apart(one).nonce for one in (*nameless, ana, bob)}) == 4
    assert all(apart(apart(one)) == apart(one) for one in (*nameless, ana, bob))
