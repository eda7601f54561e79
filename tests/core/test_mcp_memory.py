"""What outlives the gateway of its sessions with servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.mcp_memory import (
    GREETING_MAX,
    RUNS_MAX,
    SETTINGS_MAX,
    SUBSCRIPTIONS_MAX,
    Entry,
    SessionTable,
)
from gateway.core.mcp_session import LIMIT_BYTES, Client


def client(nonce: str) -> Client:
    return Client(
        nonce=nonce, scope="pay", agent="a", version="2025-11-25", capabilities={"sampling": {}}, info={"name": "n"}
    )


def test_what_was_kept_comes_back() -> None:
    """With the session, what was set in it, and the runs that have steps there."""
    entry = SessionTable().opened("pay", client("n"))
    entry.opened("http://a/mcp", "s1", '{"capabilities":{}}')
    entry.set("logging/setLevel", '{"level":"debug"}', {"level": "debug"})
    entry.set("resources/subscribe", '{"uri":"a:b"}', {"uri": "a:b"})
    entry.run("trip")
    again = Entry.loaded(entry.slot, entry.dumped())
    assert again.dumped() == entry.dumped()
    assert again.client == client("n")
    assert list(again.settings()) == [
        ("logging/setLevel", '{"level":"debug"}'),
        ("resources/subscribe", '{"uri":"a:b"}'),
    ]


def test_only_what_changes_something_is_worth_keeping() -> None:
    """A repeat costs the disk nothing."""
    entry = SessionTable().opened("pay", client("n"))
    level = '{"level":"info"}'
    assert entry.set("logging/setLevel", level, {"level": "info"})
    assert not entry.set("logging/setLevel", level, {"level": "info"})
    assert entry.set("resources/subscribe", "{}", {"uri": "a:b"})
    assert not entry.set("resources/subscribe", "{}", {"uri": "a:b"})
    assert entry.set("resources/unsubscribe", "{}", {"uri": "a:b"})
    assert not entry.set("resources/unsubscribe", "{}", {"uri": "a:b"})
    assert entry.run("trip")
    assert not entry.run("trip")


def test_a_session_that_is_over_leaves_what_was_set() -> None:
    entry = SessionTable().opened("pay", client("n"))
    entry.opened("http://a/mcp", "s1", "{}")
    entry.set("resources/subscribe", "{}", {"uri": "a:b"})
    entry.closed()
    assert (entry.is_open, entry.id, len(entry.subscriptions)) == (False, None, 1)


def test_everything_is_bounded() -> None:
    """Slots, subscriptions, runs and greetings; the entry not used for longest gives way."""
    table = SessionTable(slots=2)
    first, second = table.opened("pay", client("1")), table.opened("pay", client("2"))
    assert table.of("pay", "1") is first
    third = table.opened("pay", client("3"))
    assert third.slot == second.slot
    assert table.of("pay", "2") is None
    for number in range(max(SUBSCRIPTIONS_MAX, RUNS_MAX) + 5):
        first.set("resources/subscribe", "{}", {"uri": f"a:{number}"})
        first.run(f"r{number}")
    assert (len(first.subscriptions), len(first.runs)) == (SUBSCRIPTIONS_MAX, RUNS_MAX)
    first.opened("http://a/mcp", "s1", "x" * (GREETING_MAX + 1))
    assert not first.is_open


def test_what_a_client_says_at_length_is_not_kept() -> None:
    """Nobody fills memory and disk with an address, a level or a description of a megabyte each."""
    long = "x" * SETTINGS_MAX
    talkative = replace(client("n"), capabilities={"sampling": {}, long: {}}, info={"name": long})
    entry = SessionTable().opened("pay", talkative)
    assert not entry.set("logging/setLevel", f'{{"level":"{long}"}}', {"level": long})
    assert not entry.set("resources/subscribe", f'{{"uri":"{long}"}}', {"uri": long})
    assert len(entry.dumped()) < LIMIT_BYTES
    assert entry.client.can("sampling")
    half = f'{{"uri":"{long[: SETTINGS_MAX // 2]}"}}'
    assert entry.set("resources/subscribe", half, {"uri": "a"})
    assert not entry.set("resources/subscribe", half, {"uri": "b"})
    assert entry.set("resources/unsubscribe", half, {"uri": "a"})


def test_slots_are_used_again_after_a_restart() -> None:
    """None is given twice, and none is lost."""
    table = SessionTable(slots=4)
    for nonce in "abc":
        table.opened("pay", client(nonce))
    table.drop("pay", "b")
    later = SessionTable(slots=4)
    later.load({entry.slot: entry for entry in table})
    slots = [later.opened("pay", client(nonce)).slot for nonce in "xy"]
    assert sorted([*slots, *(entry.slot for entry in table)]) == [0, 1, 2, 3]


@pytest.mark.parametrize("data", [b"[]", b"{}", b"no", b'{"server":1}'])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Entry.loaded(0, data)
