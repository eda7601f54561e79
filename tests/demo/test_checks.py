"""Each promise has a check, and each check fails when its promise is broken: an ideal run is spoilt in one way at a time."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gateway.demo.checks import Act, as_ordered, failing_checks, succeeding_checks
from gateway.demo.relay import Sight
from gateway.demo.snapshot import Snapshot

BEFORE = Snapshot(
    volumes={"fs-0": "neighbour-volume"},
    names=frozenset({"neighbour"}),
    files={"neighbour/config.json": "{}"},
    clusters=frozenset({"production"}),
    holds={},
    taken={},
)
UNDONE = dataclasses.replace(BEFORE, released=frozenset({"pi_1"}))
MADE = dataclasses.replace(
    BEFORE,
    volumes=dict(BEFORE.volumes) | {"fs-1": "acme-workspace-volume"},
    names=BEFORE.names | {"acme-workspace"},
    files=dict(BEFORE.files) | {"acme-workspace/config.json": '{"volume": "fs-1"}'},
    clusters=BEFORE.clusters | {"acme"},
    taken={"pi_2": 4200},
)


def answer(step: str, status: int, **facts: object) -> dict[str, Any]:
    return {"event": "answer", "step": step, "status": status} | facts


def request(tool: str, method: str, path: str, key: str | None = None) -> Sight:
    return Sight(tool=tool, what="request", method=method, path=path, key=key)


def failed() -> Act:
    return Act(
        run="demo-fails",
        records=[
            answer("check the card", 200),
            answer("hold the money", 502, code="ERR_UPSTREAM_CONNECT"),
            answer("hold the money", 503, code="ERR_CIRCUIT_OPEN", dispatched="no", retry_after_ms=1800),
            answer("hold the money", 200),
            answer("start the cluster", 409),
        ],
        sights=[
            Sight(tool="payments", what="cut", method="GET", path="/v1/payment_methods/pm_1"),
            request("payments", "GET", "/v1/payment_methods/pm_1"),
            request("payments", "POST", "/v1/payment_intents", "key-1"),
        ],
        undone=[
            request("payments", "POST", "/v1/payment_intents/pi_1/cancel", "key-2"),
            request("storage", "DELETE", "/acme-workspace/config.json"),
            request("storage", "DELETE", "/acme-workspace"),
            request("volumes", "DELETE", "/2015-02-01/file-systems/fs-1"),
        ],
        exit_code=1,
        state="aborted_clean",
        steps=[{"step": 4, "key": "key-1"}],
    )


def succeeded() -> Act:
    return Act(
        run="demo-succeeds",
        records=[answer(f"step {number}", 200) for number in range(8)],
        sights=[
            request("payments", "POST", "/v1/payment_intents", "key-1"),
            request("payments", "POST", "/v1/payment_intents/pi_2/capture", "key-2"),
        ],
        exit_code=0,
        state="succeeded",
        steps=[{"step": 5, "key": "key-1"}, {"step": 7, "key": "key-2"}],
    )


def test_the_table_of_the_second_act_shows_marks_only_for_what_was_ordered() -> None:
    """Its ✓ compares with this, row by row."""
    assert as_ordered(BEFORE).rows() == MADE.rows()


def broken_claims(checks: list[Any]) -> list[str]:
    return [check.claim for check in checks if not check.holds]


def test_an_ideal_failing_run_passes_every_check() -> None:
    assert broken_claims(failing_checks(failed(), BEFORE, UNDONE)) == []


def test_an_ideal_succeeding_run_passes_every_check() -> None:
    assert broken_claims(succeeding_checks(succeeded(), BEFORE, MADE)) == []


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (lambda act: act.sights.pop(0), "a cut connection was repeated"),
        (lambda act: act.records.__setitem__(0, answer("check the card", 502)), "a cut connection was repeated"),
        (lambda act: act.records.pop(2), "the breaker opened and refused"),
        (lambda act: act.records[2].update(dispatched="maybe"), "the breaker opened and refused"),
        (lambda act: act.records[2].update(retry_after_ms=0), "the breaker opened and refused"),
        (lambda act: act.sights.append(act.sights[-1]), "the tool healed, and the money was held exactly once"),
        (lambda act: act.records.pop(3), "the tool healed, and the money was held exactly once"),
        (lambda act: act.steps.clear(), "each payment in the failed run carried the idempotency key"),
        (lambda act: act.records.__setitem__(4, answer("start the cluster", 503)), "the run failed at its cluster"),
        (lambda act: setattr(act, "state", "frozen"), "the run ended cleanly aborted"),
        (lambda act: act.undone.reverse(), "its effects were undone in reverse order"),
        (lambda act: act.undone.append(act.undone[0]), "its effects were undone in reverse order"),
        (lambda act: act.undone.pop(), "its effects were undone in reverse order"),
    ],
)
def test_a_failing_run_that_went_otherwise_is_told_apart(spoil: Callable[[Act], object], claim: str) -> None:
    act = copy.deepcopy(failed())
    spoil(act)
    assert any(broken.startswith(claim) for broken in broken_claims(failing_checks(act, BEFORE, UNDONE)))


@pytest.mark.parametrize(
    "leftover",
    [
        {"volumes": MADE.volumes},
        {"names": MADE.names},
        {"files": MADE.files},
        {"clusters": frozenset()},
        {"holds": {"pi_1": 4200}},
        {"taken": {"pi_1": 4200}},
        {"released": frozenset()},
    ],
)
def test_a_world_that_is_not_as_before_is_told_apart(leftover: dict[str, Any]) -> None:
    """Left behind, taken from the neighbour, or never released: each breaks the proof."""
    after = dataclasses.replace(UNDONE, **leftover)
    assert broken_claims(failing_checks(failed(), BEFORE, after)) == [
        "the tool servers say that the world is as before"
    ]


@pytest.mark.parametrize(
    ("spoil", "claim"),
    [
        (lambda act: act.records.pop(), "every step of the second run succeeded at once"),
        (lambda act: act.sights.append(act.sights[-1]), "the money was taken exactly once"),
        (lambda act: act.sights.append(act.sights[0]), "each payment in the second run carried"),
        (lambda act: setattr(act, "state", "preparing"), "the run is committed"),
    ],
)
def test_a_succeeding_run_that_went_otherwise_is_told_apart(spoil: Callable[[Act], object], claim: str) -> None:
    act = copy.deepcopy(succeeded())
    spoil(act)
    assert any(broken.startswith(claim) for broken in broken_claims(succeeding_checks(act, BEFORE, MADE)))


@pytest.mark.parametrize(
    "change",
    [
        {"volumes": BEFORE.volumes},
        {"volumes": dict(MADE.volumes) | {"fs-2": "acme-workspace-volume"}},
        {"names": BEFORE.names},
        {"files": dict(MADE.files) | {"acme-workspace/config.json": '{"volume": "fs-9"}'}},
        {"files": dict(MADE.files) | {"neighbour/config.json": "changed"}},
        {"clusters": MADE.clusters - {"production"}},
        {"holds": {"pi_3": 1}},
        {"taken": {"pi_2": 4200, "pi_3": 4200}},
    ],
)
def test_a_world_that_holds_too_little_too_much_or_other_things_is_told_apart(change: dict[str, Any]) -> None:
    """Twice is as wrong as never."""
    assert broken_claims(succeeding_checks(succeeded(), BEFORE, dataclasses.replace(MADE, **change)))
