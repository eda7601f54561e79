"""A run that was packed and read back is the run that it was, whatever it has been through."""

from __future__ import annotations

import random
from dataclasses import fields
from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from gateway.core.budget import Meter
from gateway.core.keys import derive_key
from gateway.core.manifest import Tier
from gateway.core.packing import Reader, Shared, Unpackable
from gateway.core.parked import FORMS, Parked, pack, unpack
from gateway.core.sparse import NONE, NOTHING
from gateway.core.tool import BoundRequest
from gateway.core.trajectory import Phase, Step, StepState, Trajectory, evolve
from tests.core.test_saga import RunMachine
from tests.simulation import process, schedule, world
from tests.simulation.plan import drawn

SALT = b"s" * 32
SHARED = Shared()


def again(parked: Parked, salt: bytes = SALT) -> Parked:
    """Pack a run and read it back, behind something else."""
    data = pack(parked, salt, SHARED, b"head")
    reader = Reader(data, SHARED, FORMS, 4)
    read = unpack(parked.state.id, reader, salt)
    assert reader.place == len(data)
    return read


def check(state: Trajectory, salt: bytes = SALT) -> Trajectory:
    read = again(Parked(state, None, None), salt).state
    assert read == state
    for one in fields(state):
        was, now = getattr(state, one.name), getattr(read, one.name)
        if one.name != "standing":
            assert type(was) is type(now), one.name
        if was is NOTHING or was is NONE:
            assert now is was, f"{one.name}: what all share is shared still"
    return read


class PackedRun(RunMachine):
    """Any order of legal commands, each decided on a run that was packed after the one before."""

    @invariant()
    def it_is_packed_and_read_back(self) -> None:
        self.state = check(self.state)


PackedRun.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPackedRun = PackedRun.TestCase


def test_runs_of_every_kind_are_read_back_after_each_record() -> None:
    """Gates, approvals, plans, staged steps, loops, budgets, quarantines: what a hundred simulated runs recorded."""
    kinds = set()
    for seed in range(100):
        worlds: list[world.World] = []
        rng = random.Random(seed)
        plan = drawn(rng)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schedule, "World", lambda *a, kept=worlds, **k: kept.append(world.World(*a, **k)) or kept[-1])
            schedule.play(plan, rng, [])
        for name in worlds[0].streams():
            state = Trajectory(id=name)
            for record, at in worlds[0].records(name):
                kinds.add(type(record).__name__)
                state = check(evolve(state, record, at), process.SALT)
    assert len(kinds) > 25, sorted(kinds)


def a_step(number: int, run: str = "r1") -> Step:
    action = blake2b(b"%d" % number, digest_size=16).hexdigest()
    key = derive_key(SALT, run, "pay", "hold", action, "1")
    step = Step(
        number, "pay", "hold", Tier.COMPENSABLE, action, action[::-1], 1, key, StepState.COMMITTED, 2 * number + 1
    )
    step.intended, step.method, step.target, step.is_delivered = 2 * number, "POST", "/v1/holds", True
    step.intended_at, step.committed_at = 1_000_000 + 40 * number, 1_000_020 + 40 * number
    step.compensator = BoundRequest("pay", "POST", f"/v1/holds/{number:012d}/cancel")
    return step


def a_run(steps: int) -> Trajectory:
    state = Trajectory(
        id="r1", agent="ann", opened_at=1_000_000, version=2 * steps + 1, changed_at=1_000_020 + 40 * steps
    )
    state.steps = {number: a_step(number) for number in range(1, steps + 1)}
    state.actions = {step.action: number for number, step in state.steps.items()}
    return state


def test_a_step_takes_its_two_digests_and_a_dozen_bytes() -> None:
    sizes = [len(pack(Parked(a_run(steps), None, None), SALT, SHARED)) for steps in (0, 5, 10)]
    assert sizes[2] - sizes[1] <= 5 * (32 + 12)
    assert sizes[1] <= 5 * (32 + 12) + 50


@pytest.mark.parametrize(
    "odd",
    [
        {"action": "aa", "fingerprint": "f"},
        {"key": "the agent's own"},
        {"occurrence": 3},
        {"order": 70, "intended": 30},
        {"intended_at": 5, "committed_at": 0},
        {
            "state": StepState.FAILED,
            "fault": "client_error",
            "status": 409,
            "answer": "0123456789abcdef",
            "detail": "no",
        },
        {"compensator": None, "unbound": "no answer"},
        {"compensator": BoundRequest("pay", "PUT", "/é", (("If-Match", "7"), ("x", "y")), '{"a": 1}')},
        {"compensator": BoundRequest("pay", "PUT", "/x", (("Content-Type", "application/json"),), "{}")},
        {"lease": "pay:lock", "lease_until": 2_000_000, "leak": ("box", 1.5, 3600.0, "usd"), "caller": "ab" * 16},
        {"target": "\udc80/" + "x" * 300},
    ],
)
def test_a_step_that_is_not_as_expected_is_written_as_it_is(odd: dict[str, object]) -> None:
    state = a_run(4)
    for name, value in odd.items():
        setattr(state.steps[2], name, value)
    check(state)
    check(Trajectory(id="r1", agent="ann", steps=state.steps, callers={"x": 2}, phase=Phase.FROZEN))


def test_a_meter_is_read_back_with_the_caps_of_its_run_and_with_others() -> None:
    state = a_run(2)
    state.budget = {"usd": 0.5}
    meter = Meter(state.budget, {"usd": 0.30000000000000004, "calls": 3}, state.opened_at)
    read = again(Parked(state, meter, None))
    assert read.meter is not None
    assert (read.meter.used, read.meter.opened_at) == (meter.used, meter.opened_at)
    assert read.meter.caps is read.state.budget, "a cap that is lowered later on is lowered for it"
    meter.caps = {"usd": 9.0}
    read = again(Parked(state, meter, None))
    assert read.meter is not None
    assert read.meter.caps == {"usd": 9.0}


def test_a_run_that_holds_what_is_not_known_is_refused() -> None:
    state = a_run(1)
    state.task = {"x": object()}
    with pytest.raises(Unpackable):
        pack(Parked(state, None, None), SALT, SHARED)
