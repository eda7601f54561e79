from asyncio import CancelledError

import pytest

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Refusal
from gateway.telemetry.verdict import ATTEMPT_FAULTS, OUTCOMES, judge
from tests.telemetry.example import answered, rejected

REFUSAL = Refusal(code=Code.OUTCOME_UNKNOWN, detail="Sent, effect unknown.")


@pytest.mark.parametrize(
    ("outcome", "name", "fault", "status", "error_type"),
    [
        (answered(201), "success", "none", 201, None),
        (answered(200, is_replay=True), "replayed", "none", 200, None),
        (rejected(), "rejected", "refused", None, "ERR_CIRCUIT_OPEN"),
        (Failed(Fault.CONNECT), "failed", "connect", None, "connect"),
        (
            Failed(Fault.CLIENT_ERROR, reply=Reply(404, b"", (), BytesBody())),
            "failed",
            "client_error",
            404,
            "client_error",
        ),
        (InDoubt(Fault.RESET, REFUSAL), "in_doubt", "reset", None, "ERR_OUTCOME_UNKNOWN"),
        (CancelledError(), "cancelled", "cancelled", None, "cancelled"),
        (KeyError("x"), "error", "error", None, "KeyError"),
    ],
)
def test_each_outcome_has_one_reading(outcome, name, fault, status, error_type):
    """Metrics, spans, logs and events use the same words, or nobody can put them side by side."""
    verdict = judge(outcome)
    assert (verdict.outcome, verdict.fault, verdict.status, verdict.error_type) == (name, fault, status, error_type)
    assert verdict.outcome in OUTCOMES
    assert verdict.fault in ATTEMPT_FAULTS
