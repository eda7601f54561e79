import threading

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.telemetry import Event, Telemetry
from tests.telemetry.example import answered, make_call


class Turned:
    """A clock that shows what it is told."""

    at_ms = 1_700_000_000_000

    def at(self) -> int:
        return self.at_ms


def live_a_little(telemetry: Telemetry) -> None:
    call = make_call(key="key-1", step=1)
    handle = telemetry.call_started(call)
    telemetry.queue_waited(call, 0.02)
    attempt = telemetry.attempt_started(call)
    telemetry.attempt_finished(attempt, call, answered(), 0.1)
    telemetry.retry_scheduled(call, Fault.SERVER, 0.3)
    telemetry.call_finished(handle, call, answered(), 0.2)
    telemetry.breaker_changed("payments", "open", "failure_ratio", 30.0)
    telemetry.refused("payments", Code.CIRCUIT_OPEN)
    telemetry.step_changed("run-1", 1, "hold", "compensated")
    telemetry.trajectory_changed("run-1", "aborted_clean", "on request")
    telemetry.background_failed("sweeper", ValueError("x"))


def test_a_subscriber_sees_everything_in_order():
    """The demo's timeline and the console are drawn from these."""
    telemetry = Telemetry(Turned())
    seen: list[Event] = []
    subscription = telemetry.subscribe(seen.append)
    live_a_little(telemetry)
    subscription.close(timeout_s=30)
    assert [event.kind for event in seen] == [
        "call.started",
        "queue.waited",
        "attempt.started",
        "attempt.finished",
        "retry.scheduled",
        "call.finished",
        "breaker.changed",
        "refused",
        "step.changed",
        "trajectory.changed",
        "background.failed",
    ]
    fields = {event.kind: event.fields for event in seen}
    assert fields["attempt.started"]["key"] == "key-1"
    assert fields["attempt.started"]["key_header"] == "Idempotency-Key"
    assert fields["retry.scheduled"]["delay_s"] == 0.3
    assert fields["breaker.changed"] == {
        "tool": "payments",
        "state": "open",
        "cause": "failure_ratio",
        "cooldown_s": 30.0,
    }
    assert fields["call.finished"]["outcome"] == "success"
    assert {event.at for event in seen} == {Turned.at_ms}


def test_nothing_is_made_while_nobody_watches():
    telemetry = Telemetry()
    made: list[Event] = []
    telemetry.timeline.publish = made.append
    live_a_little(telemetry)
    assert made == []
    subscription = telemetry.subscribe(lambda event: None)
    subscription.close(timeout_s=30)
    live_a_little(telemetry)
    assert made == []


def test_the_last_events_are_kept_for_those_who_come_later():
    telemetry = Telemetry(keep_events=3)
    live_a_little(telemetry)
    assert [event.kind for event in telemetry.timeline.recent()] == [
        "step.changed",
        "trajectory.changed",
        "background.failed",
    ]


def test_a_slow_subscriber_loses_its_oldest_events_and_holds_nobody_up():
    telemetry = Telemetry()
    entered, released = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(event: Event) -> None:
        entered.set()
        released.wait(30)
        seen.append(event.fields["step"])

    subscription = telemetry.subscribe(slow, capacity=5)
    telemetry.step_changed("run-1", 0, "hold", "intended")
    assert entered.wait(30)
    for step in range(1, 101):
        telemetry.step_changed("run-1", step, "hold", "intended")
    released.set()
    subscription.close(timeout_s=30)
    assert seen == [0, 96, 97, 98, 99, 100]
    assert subscription.dropped == 95


def test_a_raising_subscriber_is_dropped_and_the_others_go_on():
    telemetry = Telemetry()
    raised = threading.Event()
    seen: list[Event] = []

    def raising(event: Event) -> None:
        raised.set()
        raise ValueError("a bug in the console")

    broken = telemetry.subscribe(raising)
    good = telemetry.subscribe(seen.append)
    telemetry.trajectory_changed("run-1", "preparing")
    assert raised.wait(30)
    broken.close(timeout_s=30)
    telemetry.trajectory_changed("run-1", "succeeded")
    good.close(timeout_s=30)
    assert [event.fields["state"] for event in seen] == ["preparing", "succeeded"]
    assert not telemetry.timeline.is_watched


def test_a_subscriber_may_leave_from_its_own_callback():
    telemetry = Telemetry()
    left = threading.Event()

    def once(event: Event) -> None:
        subscription.close()
        left.set()

    subscription = telemetry.subscribe(once)
    telemetry.trajectory_changed("run-1", "preparing")
    assert left.wait(30)
    assert not telemetry.timeline.is_watched


def test_shutdown_delivers_what_is_queued():
    telemetry = Telemetry()
    seen: list[Event] = []
    telemetry.subscribe(seen.append)
    telemetry.trajectory_changed("run-1", "preparing")
    telemetry.shutdown()
    telemetry.shutdown()
    assert len(seen) == 1
