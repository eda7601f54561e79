"""Telling people: at least once to each sink, none waiting for another, and everything still to tell after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.incident import close, freeze
from gateway.core.manifest import SinkKind, SinkSettings
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.tool import Sink, ToolSpec, Upstream
from gateway.egress import Timings
from gateway.workers.notifier import Notifier
from tests.stages.gate_rig import GateRig

HOOK = SinkSettings(kind=SinkKind.WEBHOOK, url="http://h/")


def sink(name: str) -> Sink:
    return Sink(name=name, settings=HOOK, upstream=Upstream("http", name, 80), target="/", secret="s")


class Wire:
    """Answers by sink; everything is fine unless said otherwise."""

    def __init__(self) -> None:
        self.answers: dict[str, list[int | Broken]] = {}
        self.told: list[tuple[str, str]] = []

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        assert isinstance(request.body, BytesBody)
        self.told.append((tool.name, json.loads(request.body.data)["event"]))
        answers = self.answers.get(tool.name, [])
        answer = answers.pop(0) if answers else 204
        return answer if isinstance(answer, Broken) else Reply(answer, b"", (), BytesBody())

    async def close(self) -> None: ...


def notifier(rig: GateRig, wire: Wire, *names: str) -> Notifier:
    sinks: Mapping[str, Sink] = {name: sink(name) for name in names}
    return Notifier(rig.trajectories, wire, lambda: sinks, rig.clock, rig.telemetry)


async def frozen() -> GateRig:
    rig = GateRig()
    await rig.call()
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.recorded(run, freeze(run.state, "OPERATOR_FREEZE", "look", "ann"))
    return rig


async def test_each_sink_is_told_once_and_then_nothing_is_left() -> None:
    rig, wire = await frozen(), Wire()
    telling = notifier(rig, wire, "a", "b")
    assert await telling.run_once(rig.clock.now()) == 2
    assert sorted(wire.told) == [("incidents.a", "incident.opened"), ("incidents.b", "incident.opened")]
    assert await telling.run_once(rig.clock.now()) == 0
    assert not rig.state().has_notices


async def test_a_sink_that_fails_is_tried_again_later_and_no_other_waits_for_it() -> None:
    rig, wire = await frozen(), Wire()
    wire.answers["incidents.a"] = [503, Broken(Fault.CONNECT, Dispatched.NO, "refused")]
    telling = notifier(rig, wire, "a", "b")
    assert await telling.run_once(rig.clock.now()) == 1
    assert await telling.run_once(rig.clock.now()) == 0, "not at once"
    for _ in range(2):
        rig.clock.turn(120.0)
        await telling.run_once(rig.clock.now())
    assert [name for name, _ in wire.told].count("incidents.a") == 3
    assert [name for name, _ in wire.told].count("incidents.b") == 1
    assert not rig.state().has_notices


async def test_what_is_left_to_tell_of_a_closed_run_is_told_after_a_restart_in_order() -> None:
    rig, wire = await frozen(), Wire()
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.recorded(run, close(run.state, "ann", "enough"))
    rig.restart()
    await rig.trajectories.recover()
    await notifier(rig, wire, "a").run_once(rig.clock.now())
    assert [event for _, event in wire.told] == ["incident.opened", "incident.resolved"]
    rig.restart()
    await rig.trajectories.recover()
    assert len(rig.trajectories) == 0, "told of its end, the run is history"


async def test_without_a_sink_the_log_says_so_and_nothing_piles_up() -> None:
    rig, wire = await frozen(), Wire()
    await notifier(rig, wire).run_once(rig.clock.now())
    assert wire.told == []
    assert not rig.state().has_notices


async def test_it_is_woken_by_an_incident_and_survives_a_journal_that_fails() -> None:
    rig, wire = GateRig(), Wire()
    telling = notifier(rig, wire, "a")
    rig.trajectories.on_notice = telling.wake
    task = asyncio.ensure_future(telling.run())
    await rig.clock.settle()
    await rig.call()
    run = await rig.trajectories.find("r1")
    assert run is not None
    await rig.trajectories.recorded(run, freeze(run.state, "OPERATOR_FREEZE", "look", "ann"))
    await rig.clock.settle()
    assert len(wire.told) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
