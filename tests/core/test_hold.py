"""Which claims are believed, once, and what is held."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.claim import BadClaim, ClaimKey, Envelope, sign
from gateway.core.hold import ClaimAccepted, ClaimHeld, ClaimReleased, Claims, Trusted, believe, hold_view

KEY = ClaimKey.of("fleet", b"0123456789abcdef")
AT = 1_764_460_800_000
ENVELOPE = Envelope("r1#1.1", "", "", "tester@gw", 3, "deploy.release", AT)
TRUSTED = {"fleet": Trusted(KEY, ("tester@*",), 60_000)}


def judged(claims: Claims, envelope: Envelope = ENVELOPE, **fields: Any) -> ClaimAccepted | None:
    told: dict[str, Any] = {
        "text": sign(KEY, envelope, b"x"), "payload": b"x", "trusted": TRUSTED, "about": "r9|a", "producers": (),
        "destinations": ("deploy.release", "deploy"), "at": AT + 1000, **fields,
    }  # fmt: skip
    return believe(claims, **told)[1]


def reason(claims: Claims, envelope: Envelope = ENVELOPE, **fields: Any) -> str:
    with pytest.raises(BadClaim) as caught:
        judged(claims, envelope, **fields)
    return caught.value.reason


def test_a_good_claim_is_believed_once_and_its_repeat_is_no_replay() -> None:
    claims = Claims()
    accepted = judged(claims)
    assert accepted == ClaimAccepted(
        event="r1#1.1", producer="tester@gw", session_epoch=3, about="r9|a", until=AT + 60_000
    )
    claims.fold(accepted, AT)
    assert judged(claims) is None
    assert reason(claims, about="r9|other") == "replayed"


@pytest.mark.parametrize(
    ("change", "fields", "word"),
    [
        ({"issued_at": AT - 60_000}, {}, "expired"),
        ({"issued_at": AT + 40_000}, {}, "expired"),
        ({"destination": "deploy.other"}, {}, "wrong_destination"),
        ({"producer_id": "mallory@gw"}, {}, "wrong_producer"),
        ({}, {"producers": ("reviewer@*",)}, "wrong_producer"),
        ({"session_epoch": 1}, {}, "stale_epoch"),
        ({}, {"payload": b"y"}, "wrong_digest"),
        ({}, {"text": ""}, "missing"),
        ({}, {"trusted": {}}, "wrong_key"),
    ],
)
def test_what_is_held(change: dict[str, Any], fields: dict[str, Any], word: str) -> None:
    claims = Claims(epochs={"tester@gw": 2})
    assert reason(claims, replace(ENVELOPE, **change), **fields) == word


def test_a_hold_ends_by_proof_or_by_a_person_and_not_for_ever() -> None:
    claims = Claims()
    held = ClaimHeld(hold="h1", about="r9|a", run="r9", agent="b", destination="d", reason="missing", detail="x")
    claims.fold(held, AT)
    assert hold_view(claims.holds["h1"])["route_status"] == "held"
    assert not claims.is_released("r9|a", AT)
    claims.fold(ClaimReleased(hold="h1", principal="ann", reason="known", until=AT + 100), AT)
    assert (claims.is_released("r9|a", AT + 99), claims.is_released("r9|a", AT + 100)) == (True, False)
    claims.fold(replace(held, hold="h2", about="r9|b"), AT)
    claims.fold(ClaimAccepted(event="e", producer="p", session_epoch=1, about="r9|b", until=AT + 5), AT)
    assert hold_view(claims.holds["h2"])["route_status"] == "accepted"
    assert not claims.is_released("r9|b", AT)


def test_events_are_forgotten_once_they_would_be_too_old_anyway() -> None:
    claims = Claims()
    for number in range(100):
        claims.fold(
            ClaimAccepted(event=f"e{number}", producer="p", session_epoch=1, about="a", until=AT + number), AT + number
        )
    assert len(claims.events) <= 2


class Machine(RuleBasedStateMachine):
    """No event is ever believed for two things, however claims are made, repeated and delayed."""

    def __init__(self) -> None:
        super().__init__()
        self.claims, self.at = Claims(), AT
        self.believed: dict[str, set[str]] = {}
        self.made: list[Envelope] = []
        self.epoch = 1

    @rule()
    def make(self) -> None:
        self.made.append(replace(ENVELOPE, event_id=f"e{len(self.made)}", session_epoch=self.epoch, issued_at=self.at))

    @rule(data=st.data(), about=st.sampled_from(["a", "b"]))
    def show(self, data: st.DataObject, about: str) -> None:
        if not self.made:
            return
        envelope = data.draw(st.sampled_from(self.made))
        try:
            accepted = judged(self.claims, envelope, about=about, at=self.at)
        except BadClaim:
            return
        if accepted is not None:
            self.claims.fold(accepted, self.at)
        self.believed.setdefault(envelope.event_id, set()).add(about)
        assert self.at < envelope.issued_at + 60_000
        assert envelope.session_epoch >= max(self.claims.epochs.values())

    @rule(ms=st.integers(1, 40_000))
    def wait(self, ms: int) -> None:
        self.at += ms

    @rule()
    def restart_the_producer(self) -> None:
        self.epoch += 1

    @invariant()
    def once(self) -> None:
        assert all(len(about) == 1 for about in self.believed.values())


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, deadline=None)
