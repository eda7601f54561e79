"""One call made again and again is each time as new as if it had been made anew."""

from __future__ import annotations

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.manifest import Tier
from gateway.core.outcome import Refusal, Rejected
from gateway.ingress.repeated import KEPT_BYTES, Repeated
from tests.builders import call_of, operation_of, tool_of
from tests.fakes import FakeClock

OPEN = Rejected(Refusal(code=Code.CIRCUIT_OPEN, detail="Open."))


class Bench:
    """A repeated call; what was digested, and how the stages found the call."""

    def __init__(self, *, is_read: bool = False, answers: bool = True) -> None:
        operation = operation_of("op", Tier.READ if is_read else Tier.REVERSIBLE)
        self.clock = FakeClock()
        self.call = call_of(tool_of("pay", operation), operation, traceparent=b"")
        self.digested: list[bytes] = []
        self.found: list[tuple[object, ...]] = []
        self.answers = answers
        named = None if is_read else self.named
        self.ask = Repeated(
            self.call,
            self.clock,
            named,
            self.refused,
            is_certain=False,
            is_overriding=lambda data: data == b"!",
            body_max=1 << 20,
        )

    def named(self, data: bytes) -> tuple[bytes, bool]:
        self.digested.append(data)
        return data[:4], data != b"?"

    def refused(self, call: Call) -> Rejected | None:
        self.found.append(
            (call.trajectory, call.started, call.deadline, call.attempt, call.action, call.traceparent, call.trace)
        )
        call.trajectory, call.attempt, call.traceparent, call.trace = "auto-1", 1, b"00-", object()
        return OPEN if self.answers else None


def test_nothing_of_the_call_before_is_left() -> None:
    bench = Bench()
    for number in range(3):
        bench.clock.turn(1.0)
        assert bench.ask(b"%d" % number) is OPEN
    now = bench.clock.now()
    assert bench.found[-1] == ("", now, now + bench.call.operation.timeouts.total, 0, b"2", b"", None)
    assert bench.found[0][1:3] == tuple(time - 2.0 for time in bench.found[-1][1:3])  # type: ignore[operator]


@pytest.mark.parametrize(("size", "times"), [(0, 1), (2, 1), (KEPT_BYTES, 1), (KEPT_BYTES + 1, 2)])
def test_the_very_same_body_is_digested_once_and_large_ones_are_not_kept(size: int, times: int) -> None:
    bench = Bench()
    for _ in range(2):
        assert bench.ask(b"x" * size) is OPEN
    assert bench.digested == [b"x" * size] * times
    assert bench.ask(b"other") is OPEN
    assert bench.found[-1][4] == b"othe"


@pytest.mark.parametrize("body", [None, b"x" * ((1 << 20) + 1), b"?", b"!"])
def test_what_takes_more_than_a_look_is_left_as_it_is(body: bytes | None) -> None:
    """A body in pieces, one that is larger than any call may have, one that the tool may read otherwise, and one that could
    replace the method."""
    bench = Bench()
    assert bench.ask(body) is None
    assert bench.found == []


def test_a_read_is_its_head() -> None:
    bench = Bench(is_read=True)
    assert bench.ask(None) is OPEN
    assert bench.ask(b"1") is OPEN
    assert bench.ask(b"!") is None
    assert bench.digested == []


def test_where_the_stages_know_no_refusal_there_is_none() -> None:
    assert Bench(answers=False).ask(b"1") is None
