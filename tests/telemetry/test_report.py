import asyncio
import gc
import io
import json
import weakref

import pytest

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import Failed
from gateway.telemetry import Telemetry, TelemetrySettings
from tests.telemetry.example import SAMPLED, TRACE_ID, answered, make_call, rejected


@pytest.fixture
def stream(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    return io.StringIO()


def written(stream: io.StringIO) -> list[tuple[str, str]]:
    return [(line["level"], line["event"]) for line in map(json.loads, stream.getvalue().splitlines())]


def live_a_little(telemetry: Telemetry) -> None:
    call = make_call(((b"traceparent", SAMPLED),), step=1)
    handle = telemetry.call_started(call)
    attempt = telemetry.attempt_started(call)
    telemetry.attempt_finished(attempt, call, Failed(Fault.CONNECT), 0.1)
    telemetry.retry_scheduled(call, Fault.CONNECT, 0.1)
    telemetry.call_finished(handle, call, rejected(), 0.1)
    telemetry.refused("payments", Code.UNKNOWN_TOOL)
    telemetry.step_changed("run-1", 1, "hold", "committed")
    telemetry.step_changed("run-1", 1, "hold", "compensation_failed")
    telemetry.breaker_changed("payments", "open", "consecutive", 30.0)
    telemetry.breaker_changed("payments", "closed", "canary", 0.0)
    telemetry.trajectory_changed("run-1", "compensating")
    telemetry.trajectory_changed("run-1", "frozen", "COMPENSATION_CORRUPTED")
    telemetry.background_failed("sweeper", ValueError("x"))


def test_by_default_only_changes_of_state_are_written(stream):
    """A storm of refusals must not become a storm of lines."""
    telemetry = Telemetry.configured(TelemetrySettings(), stream=stream)
    live_a_little(telemetry)
    telemetry.shutdown()
    assert written(stream) == [
        ("warning", "step compensation_failed"),
        ("warning", "breaker open"),
        ("info", "breaker closed"),
        ("info", "trajectory compensating"),
        ("warning", "trajectory frozen"),
        ("error", "failure in the background"),
    ]


def test_debug_shows_calls_attempts_and_refusals_with_run_step_and_trace(stream):
    telemetry = Telemetry.configured(TelemetrySettings(log_level="debug"), stream=stream)
    live_a_little(telemetry)
    telemetry.shutdown()
    assert [event for level, event in written(stream) if level == "debug"] == [
        "attempt finished",
        "retry scheduled",
        "call finished",
        "refused",
        "step committed",
    ]
    finished = next(
        line for line in map(json.loads, stream.getvalue().splitlines()) if line["event"] == "call finished"
    )
    assert {name: finished[name] for name in ("trajectory", "step", "tool", "code", "trace_id")} == {
        "trajectory": "run-1",
        "step": 1,
        "tool": "payments",
        "code": "ERR_CIRCUIT_OPEN",
        "trace_id": TRACE_ID,
    }


def test_after_shutdown_nothing_is_written(stream):
    telemetry = Telemetry.configured(TelemetrySettings(), stream=stream)
    telemetry.shutdown()
    telemetry.trajectory_changed("run-1", "frozen")
    assert stream.getvalue() == ""


def test_a_registered_secret_is_in_no_line(stream):
    telemetry = Telemetry.configured(TelemetrySettings(log_level="debug"), stream=stream)
    telemetry.redact(["canary-secret"])
    telemetry.trajectory_changed("canary-secret", "frozen", "because of canary-secret")
    telemetry.background_failed("sweeper", ValueError("canary-secret"))
    telemetry.shutdown()
    assert len(written(stream)) == 2
    assert "canary" not in stream.getvalue()


@pytest.mark.parametrize("outcome", [answered(), rejected(), asyncio.CancelledError(), ValueError("x")])
def test_nothing_is_kept_of_a_call(outcome):
    """Bodies and connections hang on a call: a reference kept is a leak."""

    class Held:
        pass

    telemetry = Telemetry(keep_events=100)
    held = Held()
    gone = weakref.ref(held)
    call = make_call(compensation=held)
    handle = telemetry.call_started(call)
    attempt = telemetry.attempt_started(call)
    telemetry.attempt_finished(attempt, call, outcome, 0.1)
    telemetry.call_finished(handle, call, outcome, 0.1)
    del call, handle, attempt, held
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "report",
    [
        lambda telemetry: telemetry.call_started(None),
        lambda telemetry: telemetry.call_finished(object(), None, None, "x"),
        lambda telemetry: telemetry.attempt_started(None),
        lambda telemetry: telemetry.attempt_finished(None, None, None, None),
        lambda telemetry: telemetry.retry_scheduled(None, None, None),
        lambda telemetry: telemetry.queue_waited(None, None),
        lambda telemetry: telemetry.breaker_changed([], "open", "x", 1.0),
        lambda telemetry: telemetry.refused([], None),
        lambda telemetry: telemetry.step_changed("run-1", 1, "hold", []),
        lambda telemetry: telemetry.trajectory_changed("run-1", []),
        lambda telemetry: telemetry.journal_committed(1, None),
        lambda telemetry: telemetry.background_failed([], ValueError("x")),
    ],
)
def test_no_report_ever_raises(report):
    """A wrong report is our bug; the agent's call has nothing to do with it."""
    assert report(Telemetry()) is None


def test_a_failed_start_up_leaves_nothing_behind(monkeypatch):
    """Logging that stays configured after an error would write every later line twice."""
    import logging

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    before = list(logging.getLogger().handlers)
    with pytest.raises(Exception, match="zipkin"):
        Telemetry.configured(TelemetrySettings())
    assert logging.getLogger().handlers == before
