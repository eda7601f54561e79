"""Reading how long something is good from a tool's answer."""

from __future__ import annotations

import pytest

from gateway.core.expression import Environment, ExpressionError
from gateway.core.manifest import Tier
from gateway.core.tool import Lease
from gateway.stages.lease import lease_of
from tests.builders import call_of, operation_of, tool_of


class Says:
    source = "says"

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, env: Environment) -> object:
        if isinstance(self.value, ExpressionError):
            raise self.value
        return self.value


def read(lease: Lease | None) -> tuple[str | None, int | None]:
    operation = operation_of("lock", Tier.REVERSIBLE, lease=lease)
    return lease_of(call_of(tool_of("pay", operation), operation, step=3), {}, 5_000)


@pytest.mark.parametrize(
    ("value", "until"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 0),
        ("soon", 0),
        (1_700_000_000, 1_700_000_000_000),
        (1_700_000_000_123, 1_700_000_000_123),
        (1_700_000_000.5, 1_700_000_000_500),
        (True, 0),
        (-1, 0),
        (None, 0),
        (ExpressionError("missing"), 0),
    ],
)
def test_an_end_that_cannot_be_read_for_certain_is_unknown(value: object, until: int) -> None:
    assert read(Lease(until=Says(value))) == ("pay.lock:3", until)


def test_a_fixed_time_runs_from_the_answer_and_a_name_lets_a_later_step_renew_it() -> None:
    assert read(Lease(ttl_s=2.0)) == ("pay.lock:3", 7_000)
    assert read(Lease(ttl_s=2.0, name=Says("db"))) == ("pay:db", 7_000)
    assert read(Lease(ttl_s=2.0, name=Says(ExpressionError("x")))) == ("pay.lock:3", 0)
    assert read(None) == (None, None)
