"""The demo's plot.

First act: a link cuts one connection, the gateway repeats; the payments tool goes away, the breaker opens, refuses, and
heals; then a step fails for good, the run is aborted, and the tool servers themselves say that the world is as before.
Second act: the same run with a name that is free goes through, takes the money, and is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from gateway.demo.checks import (
    AMOUNT_CENTS,
    FREE_CLUSTER,
    TAKEN_CLUSTER,
    WORKSPACE,
    Act,
    Check,
    as_ordered,
    failing_checks,
    succeeding_checks,
)
from gateway.demo.events import Event, from_agent, from_log, from_sight
from gateway.demo.relay import Relay, Sight
from gateway.demo.script import AgentProcess
from gateway.demo.sidecar import Sidecar
from gateway.demo.snapshot import Snapshot
from gateway.demo.world import TOOLS, World

__all__ = ["Story"]


class Story:
    """Tells the story once, against a world and a gateway that are running."""

    def __init__(self, folder: Path, show: Callable[[float, Event], None], *, pace_s: float) -> None:
        self._folder, self._show, self._pace_s = folder, show, pace_s
        self._started = time.monotonic()
        self._act: Act | None = None
        self._is_unwinding = False
        self._checks: list[Check] = []
        self.world = World(folder)
        self.relays = {tool: Relay(tool, self.world.port(tool), self._saw) for tool in TOOLS}
        self.sidecar: Sidecar | None = None

    async def tell(self) -> list[Check]:
        """Run everything from set-up to the last read-back and return the checks. Once only; `close` ends it.

        Raises:
            DemoError: something could not be started or asked.
        """
        await self._set_up()
        assert self.sidecar is not None
        card = await self.world.furnish()
        before = await self.world.look()
        self._scene("The world before: a neighbour's things, a customer's card")
        for what, there in before.rows().items():
            self._note(f"{what}: {there}")
        await self._failing_act(self.sidecar, card, before)
        await self._succeeding_act(self.sidecar, card)
        self._checks.append(Check(claim="the gateway drained and went when asked to", holds=await self.sidecar.stop()))
        return self._checks

    async def close(self) -> None:
        """End every process and link. May be called again, at any point of the story."""
        if self.sidecar is not None:
            await self.sidecar.stop()
        for relay in self.relays.values():
            await relay.close()
        await self.world.stop()

    def kill(self) -> None:
        """End every server process at once, if it still runs."""
        for child in (*self.world.children, *([self.sidecar.child] if self.sidecar else [])):
            child.kill()

    async def _set_up(self) -> None:
        self._scene("Starting a payments server, a cloud, and the gateway in front of them")
        await self.world.start()
        for relay in self.relays.values():
            await relay.start()
        self.sidecar = Sidecar(self._folder, {tool: relay.port for tool, relay in self.relays.items()}, self._log_line)
        await self.sidecar.start()
        self._note(f"the agent's base URL is {self.sidecar.base_url}")

    async def _failing_act(self, sidecar: Sidecar, card: str, before: Snapshot) -> None:
        act = self._begin("demo-fails", "A run that fails half-way")
        self.relays["payments"].cut_next()
        await self._perform(act, sidecar, card, TAKEN_CLUSTER, is_outage_due=True)
        self._scene("The run is aborted: undone in reverse order")
        self._is_unwinding = True
        act.state = await sidecar.abort(act.run, "the agent gave up")
        self._is_unwinding = False
        act.steps = (await sidecar.run(act.run)).get("steps", [])
        after = await self.world.look()
        self._prove("Asked directly, the tool servers say", before, after, expected=before)
        self._checks += failing_checks(act, before, after)

    async def _succeeding_act(self, sidecar: Sidecar, card: str) -> None:
        before = await self.world.look()
        act = self._begin("demo-succeeds", "The same run with a name that is free")
        await self._perform(act, sidecar, card, FREE_CLUSTER, is_outage_due=False)
        act.state = await sidecar.commit(act.run)
        act.steps = (await sidecar.run(act.run)).get("steps", [])
        after = await self.world.look()
        self._prove("Asked directly, the tool servers say", before, after, expected=as_ordered(before))
        self._checks += succeeding_checks(act, before, after)

    def _begin(self, run: str, title: str) -> Act:
        self._scene(title)
        self._act = Act(run=run)
        return self._act

    async def _perform(self, act: Act, sidecar: Sidecar, card: str, cluster: str, *, is_outage_due: bool) -> None:
        """Run the agent, and break and mend the link to payments around its hold if an outage is due."""
        task = {"card": card, "workspace": WORKSPACE, "cluster": cluster, "amount": str(AMOUNT_CENTS)}
        headers = {"Seawall-Trajectory": act.run}
        agent = AgentProcess(sidecar.base_url, headers, task, self._folder / "agent.log")
        payments = self.relays["payments"]
        try:
            async for record in agent.records():
                act.records.append(record)
                self._tell(from_agent(record))
                if record.get("event") == "step":
                    if is_outage_due and record.get("step") == "write the configuration":
                        await payments.down()
                    await asyncio.sleep(self._pace_s)
                    agent.go()
                elif record.get("code") == "ERR_CIRCUIT_OPEN" and not payments.is_up:
                    await payments.up()
            act.exit_code = await agent.end()
        finally:
            await agent.close()
            await payments.start()

    def _prove(self, title: str, before: Snapshot, after: Snapshot, expected: Snapshot) -> None:
        old, new, hoped = before.rows(), after.rows(), expected.rows()
        rows = [
            {"what": what, "before": old[what], "after": new[what], "holds": new[what] == hoped[what]} for what in old
        ]
        self._tell(Event(actor="tools", kind="proof", text=title, data={"rows": rows}))

    def _saw(self, sight: Sight) -> None:
        if self._act is not None:
            (self._act.undone if self._is_unwinding else self._act.sights).append(sight)
        self._tell(from_sight(sight, is_undo=self._is_unwinding))

    def _log_line(self, line: str) -> None:
        event = from_log(line)
        if event is not None:
            self._tell(event)

    def _scene(self, text: str) -> None:
        self._tell(Event(actor="demo", kind="scene", text=text))

    def _note(self, text: str) -> None:
        self._tell(Event(actor="demo", kind="note", text=text))

    def _tell(self, event: Event) -> None:
        self._show(self.elapsed_s, event)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story was set up."""
        return time.monotonic() - self._started
