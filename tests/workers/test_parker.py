"""Idle runs are parked, a few in each pass, and those that are used stay awake."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gateway.core.records import RecordedReply, StepCommitted
from gateway.core.saga import Begin, Open
from gateway.core.trajectory import Phase
from gateway.journal.memory import MemoryJournal
from gateway.journal.trajectories import Run, Trajectories
from gateway.telemetry import Telemetry
from gateway.workers.janitor import Janitor
from gateway.workers.parker import _LOOKED_AT_TOGETHER, _PACKED, _PACKED_TOGETHER, Parker
from tests.builders import operation_of
from tests.fakes import FakeClock
from tests.workers.test_turns import Passes


class Desk:
    def __init__(self, *, awake_kept: int = 0) -> None:
        self.clock = FakeClock()
        self.runs = Trajectories(MemoryJournal(), self.clock, Telemetry(), salt=b"s" * 32)
        self.parker = Parker(self.runs, self.clock, awake_kept=awake_kept)

    async def open(self, *names: str, **settings: object) -> None:
        opening = Open(agent="ann", **settings)  # type: ignore[arg-type]
        for name in names:
            run = await self.runs.named(name, opening)
            assert isinstance(run, Run)
            self.runs.decide(run, opening)
        await self.runs.journal.flush()
        await asyncio.sleep(0)

    async def park(self) -> int:
        return await self.parker.run_once(self.clock.now())


async def test_a_run_is_parked_once_nobody_has_used_it_for_a_while() -> None:
    desk = Desk()
    await desk.open("r1", "r2")
    await desk.clock.advance(59.9)
    assert await desk.park() == 0
    run = desk.runs.get("r2")
    assert run is not None
    run.touched_s = desk.clock.now()
    del run
    await desk.clock.advance(0.1)
    assert (await desk.park(), desk.runs.awake_names()) == (1, ["r2"])


async def test_a_run_that_somebody_asked_for_stays_awake_for_as_long_again() -> None:
    """Or what polls it would have it packed and read back each time."""
    desk = Desk()
    await desk.open("r1")
    await desk.clock.advance(60.0)
    assert await desk.park() == 1
    await desk.clock.advance(100.0)
    assert desk.runs.get("r1") is not None
    await desk.clock.advance(59.9)
    assert await desk.park() == 0
    await desk.clock.advance(0.1)
    assert await desk.park() == 1


async def test_few_runs_are_left_awake() -> None:
    desk = Desk(awake_kept=3)
    await desk.open(*(f"r{number}" for number in range(5)))
    await desk.clock.advance(100.0)
    assert await desk.park() == 2
    assert await desk.park() == 0
    assert desk.runs.awake == 3


async def test_one_that_cannot_be_parked_keeps_no_other_awake() -> None:
    desk = Desk()
    await desk.open("r1", "held", "r2")
    held = desk.runs.get("held")
    await desk.clock.advance(100.0)
    assert await desk.park() == 2
    assert desk.runs.awake_names() == ["held"]
    del held
    assert await desk.park() == 1


async def test_no_pass_of_the_loop_packs_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed (docs/adr/0155, 0181)."""
    desk, passes = Desk(), Passes()
    names = [f"r{number}" for number in range(_PACKED + 30)]
    await desk.open(*names)
    await desk.clock.advance(100.0)
    park, is_idle, looked = desk.runs.park, desk.runs.is_idle, Passes()

    def counting(name: str) -> bool:
        passes.note()
        return park(name)

    def looking(name: str, since: float) -> bool:
        looked.note()
        return is_idle(name, since)

    monkeypatch.setattr(desk.runs, "park", counting)
    monkeypatch.setattr(desk.runs, "is_idle", looking)
    async with passes.counted(), looked.counted():
        assert await desk.park() == _PACKED
    assert max(passes.counts) <= _PACKED_TOGETHER
    assert await desk.park() == 30, "the rest is not forgotten"
    await desk.open(*(f"busy{number}" for number in range(2 * _LOOKED_AT_TOGETHER)))
    async with looked.counted():
        assert await desk.park() == 0
    assert max(looked.counts) <= _LOOKED_AT_TOGETHER


async def test_the_tables_of_those_who_were_awake_are_given_back() -> None:
    desk = Desk()
    await desk.open(*(f"r{number}" for number in range(500)))
    await desk.clock.advance(100.0)
    assert await desk.park() == 500
    assert sys.getsizeof(desk.runs._runs) < 300
    assert sys.getsizeof(desk.runs._phases[Phase.PREPARING]) < 300


@pytest.mark.parametrize(
    ("on_abandon", "phase"),
    [("escalate", Phase.FROZEN), ("unwind", Phase.COMPENSATING), ("commit", Phase.SUCCEEDED)],
)
async def test_an_abandoned_run_ends_at_its_time_though_it_is_parked(on_abandon: str, phase: Phase) -> None:
    desk = Desk()
    janitor = Janitor(desk.runs, desk.clock, Telemetry())
    await desk.open("r1", ttl_s=300.0, on_abandon=on_abandon)
    await desk.open("r2")
    await desk.clock.advance(100.0)
    assert await desk.park() == 2
    assert await janitor.run_once(desk.clock.now() + 199.9) == 0
    assert desk.runs.awake == 0, "looking at it does not wake it"
    assert await janitor.run_once(desk.clock.now() + 200.0) == 1
    run = desk.runs.known("r1")
    assert run is not None
    assert run.state.phase is phase
    assert desk.runs.awake_names() == ([] if phase is Phase.SUCCEEDED else ["r1"])


async def test_it_goes_on_until_it_is_cancelled() -> None:
    desk = Desk()
    await desk.open("r1")
    task = asyncio.ensure_future(desk.parker.run())
    for _ in range(61):
        await desk.clock.advance(1.0)
    assert desk.runs.awake == 0
    task.cancel()
    await asyncio.wait((task,))


async def _commit(desk: Desk, number: int, lease_until: int | None) -> None:
    run = desk.runs.get("r1")
    assert run is not None
    operation = operation_of("lock")
    begin = Begin(
        tool="pay", operation=operation, action=f"a{number}", fingerprint="f", method="POST", target="/", salt=b"s"
    )
    assert await desk.runs.decided(run, begin) is None
    reply = RecordedReply(status=200)
    committed = StepCommitted(step=number, reply=reply, lease=f"pay:{number}", lease_until=lease_until)
    await desk.runs.record(run, [committed])


@pytest.mark.parametrize("left_s", [30.0, 60.0, 90.0, None])
async def test_a_lease_is_told_of_once_whether_it_is_over_before_or_after_its_run_is_parked(
    left_s: float | None,
) -> None:
    """The janitor may come by a minute and more after the end of a lease, and find the run parked by then."""
    desk, telemetry = Desk(), Telemetry()
    janitor = Janitor(desk.runs, desk.clock, telemetry)
    await desk.open("r1")
    await _commit(desk, 1, None if left_s is None else desk.clock.at() + round(left_s * 1000))
    await desk.clock.advance(60.0)
    assert await desk.park() == 1
    await desk.clock.advance(40.0)
    for _ in range(3):
        await janitor.run_once(desk.clock.now())
    assert b"gateway_leases_over_total 1.0" in telemetry.render()
    await desk.clock.advance(60.0)
    assert await desk.park() == 1
    await janitor.run_once(desk.clock.now())
    assert desk.runs.awake == 0, "what was told of wakes it no more"
    assert b"gateway_leases_over_total 1.0" in telemetry.render()
