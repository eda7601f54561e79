"""One kind of event from four kinds of witness; the log reader takes what it finds and never stumbles."""

import json

import pytest

from gateway.demo.events import from_agent, from_log, from_sight, shortened
from gateway.demo.relay import Sight


def test_an_agents_step_and_answer_read_as_sentences() -> None:
    step = from_agent({"event": "step", "step": "hold the money", "method": "POST", "path": "/payments/v1/x"})
    assert (step.actor, step.kind, step.text) == ("agent", "step", "hold the money: POST /payments/v1/x")
    refused = {
        "event": "answer",
        "step": "s",
        "status": 503,
        "code": "ERR_CIRCUIT_OPEN",
        "detail": "open",
        "wait_s": 2.0,
    }
    answer = from_agent(refused)
    assert answer.text == "503 ERR_CIRCUIT_OPEN: open (asks again in 2.0 s)"
    assert answer.data["code"] == "ERR_CIRCUIT_OPEN"


def test_a_request_at_the_tools_door_shows_the_beginning_of_its_key_and_keeps_the_whole() -> None:
    key = "0123456789abcdef0123456789abcdef"
    sight = Sight(tool="payments", what="request", method="POST", path="/v1/x", key=key)
    event = from_sight(sight, is_undo=False)
    assert (event.actor, event.kind, event.text) == ("payments", "received", "POST /v1/x  key 0123456789ab…")
    assert event.data["key"] == key


def test_while_a_run_is_unwound_writes_are_shown_as_undone_and_reads_are_not() -> None:
    sent = Sight(tool="t", what="request", method="DELETE", path="/x")
    undone = Sight(tool="t", what="answer", method="DELETE", path="/x", status=204, key="key-1")
    read = Sight(tool="t", what="answer", method="GET", path="/x", status=200)
    assert from_sight(sent, is_undo=True).kind == "undo_received"
    assert from_sight(undone, is_undo=True).kind == "undo"
    assert from_sight(undone, is_undo=True).text == "DELETE /x  key key-1  204"
    assert from_sight(read, is_undo=True).kind == "answered"


@pytest.mark.parametrize(("what", "kind"), [("cut", "link_cut"), ("down", "link_down"), ("up", "link_up")])
def test_what_happens_to_a_link_is_told_by_the_link(what: str, kind: str) -> None:
    event = from_sight(Sight(tool="payments", what=what), is_undo=False)
    assert (event.actor, event.kind) == ("link", kind)


@pytest.mark.parametrize(
    ("record", "kind", "text"),
    [
        (
            {"event": "retry scheduled", "tool": "payments", "operation": "hold", "attempt": 1}
            | {"fault": "connect", "delay_s": 0.1374},
            "retry",
            "payments.hold: attempt 2 in 137 ms, full jitter (last failure: connect)",
        ),
        ({"message": "retry", "delay_ms": 20}, "retry", "the call: again in 20 ms, full jitter"),
        (
            {"event": "breaker open", "tool": "payments", "state": "open", "cause": "consecutive", "cooldown_s": 2.0},
            "breaker",
            "breaker of payments is open: consecutive; refuses for 2.0 s",
        ),
        ({"event": "breaker half_open", "tool": "p", "state": "half_open"}, "breaker", "breaker of p is half-open"),
        (
            {"event": "trajectory aborted_clean", "trajectory": "demo-1", "state": "aborted_clean", "detail": ""},
            "run",
            "run demo-1 is aborted_clean",
        ),
        (
            {"event": "step committed", "step": 2, "operation": "hold", "state": "committed"},
            "step_state",
            "step 2 hold committed",
        ),
        ({"event": "boom", "level": "error"}, "error", "boom"),
    ],
)  # fmt: skip
def test_a_line_of_the_log_becomes_a_row(record: dict[str, object], kind: str, text: str) -> None:
    event = from_log(json.dumps(record))
    assert event is not None
    assert (event.actor, event.kind, event.text) == ("gateway", kind, text)


@pytest.mark.parametrize(
    "line", ["", "plain words", "[1, 2]", "null", '{"event": null}', '{"event": "call finished"}', '{"event": 7}', "{"]
)
def test_a_line_that_says_nothing_to_the_viewer_is_passed_over(line: str) -> None:
    """Start-up chatter, other libraries' lines and broken JSON are no reason to stop."""
    assert from_log(line) is None


def test_a_short_key_is_not_shortened() -> None:
    assert shortened("key-1") == "key-1"
    assert shortened(None) == ""
