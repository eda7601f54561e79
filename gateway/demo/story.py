"""The demo's plot, and the list of what must have been true for it to count.

First act: a link cuts one connection, the gateway repeats; the payments tool goes away, the breaker opens, refuses, and
heals; then a step fails for good, the run is aborted, and the tool servers themselves say that the world is as before.
Second act: the same run with a name that is free goes through, takes the money, and is committed.

Every check rests on what the agent was answered, what arrived at the tools' doors, the gateway's runs API, and the tool
servers' own state. The gateway's log is for the viewer only.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.demo.events import Event, from_agent, from_log, from_sight
from gateway.demo.relay import Relay, Sight
from gateway.demo.script import AgentProcess
from gateway.demo.sidecar import Sidecar
from gateway.demo.world import TOOLS, Snapshot, World, differences

__all__ = ["Act", "Check", "Story"]

WORKSPACE = "acme-workspace"
TAKEN_CLUSTER, FREE_CLUSTER = "production", "acme"
AMOUNT_CENTS = 4200
UNDONE_IN_ORDER = (
    ("payments", r"POST /v1/payment_intents/[^/]+/cancel"),
    ("storage", rf"DELETE /{WORKSPACE}/config\.json"),
    ("storage", rf"DELETE /{WORKSPACE}"),
    ("volumes", r"DELETE /2015-02-01/file-systems/[^/]+"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, whether it was kept, and what was found where that helps."""

    claim: str
    holds: bool
    found: str = ""


@dataclass(slots=True, kw_only=True)
class Act:
    """What was seen during one run: the agent's records, what arrived at the tools, and how it ended."""

    run: str
    records: list[Mapping[str, Any]] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)
    undone: list[Sight] = field(default_factory=list)
    exit_code: int = -1
    state: str = ""
    steps: list[Mapping[str, Any]] = field(default_factory=list)

    def answers(self, step: str) -> list[Mapping[str, Any]]:
        """Return the answers that the agent got to a step, in order."""
        return [record for record in self.records if record.get("event") == "answer" and record.get("step") == step]

    def arrived(self, method: str, path: str) -> list[Sight]:
        """Return the requests with this method and path that reached a tool."""
        return [s for s in self.sights if s.what == "request" and s.method == method and re.fullmatch(path, s.path)]


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


def failing_checks(act: Act, before: Snapshot, after: Snapshot) -> list[Check]:
    """Judge the run that failed and was undone."""
    card, holds, cluster = (act.answers(step) for step in ("check the card", "hold the money", "start the cluster"))
    cuts = [sight for sight in act.sights if sight.what == "cut"]
    refusals = [answer for answer in holds if answer.get("code") == "ERR_CIRCUIT_OPEN"]
    undone = [(sight.tool, f"{sight.method} {sight.path}") for sight in act.undone if sight.what == "request"]
    left = differences(before, after)
    return [
        Check(
            claim="a cut connection was repeated by the gateway, and the agent never knew",
            holds=len(cuts) == 1 and _statuses(card) == [200],
            found=f"{len(cuts)} cuts, answers {_statuses(card)}",
        ),
        Check(
            claim="the breaker opened and refused at once, saying when to come back",
            holds=any(a.get("dispatched") == "no" and _is_positive(a.get("retry_after_ms")) for a in refusals),
            found=f"answers {[(a.get('status'), a.get('code')) for a in holds]}",
        ),
        Check(
            claim="the tool healed, and the money was held exactly once",
            holds=_statuses(holds)[-1:] == [200] and len(act.arrived("POST", "/v1/payment_intents")) == 1,
            found=f"answers {_statuses(holds)}, arrived {len(act.arrived('POST', '/v1/payment_intents'))} times",
        ),
        _keys_check("in the failed run", act),
        Check(
            claim="the run failed at its cluster, for good",
            holds=_statuses(cluster) == [409] and act.exit_code == 1,
            found=f"answers {_statuses(cluster)}, exit code {act.exit_code}",
        ),
        Check(claim="the run ended cleanly aborted", holds=act.state == "aborted_clean", found=act.state),
        Check(
            claim="its effects were undone in reverse order, each once",
            holds=_is_in_order(undone),
            found="; ".join(f"{tool} {line}" for tool, line in undone) or "nothing was undone",
        ),
        Check(
            claim="the tool servers say that the world is as before",
            holds=not left and len(after.released) == len(before.released) + 1,
            found="; ".join(left) or f"{len(after.released) - len(before.released)} holds released",
        ),
    ]


def succeeding_checks(act: Act, before: Snapshot, after: Snapshot) -> list[Check]:
    """Judge the run that succeeded and was committed."""
    statuses = [record.get("status") for record in act.records if record.get("event") == "answer"]
    captures = act.arrived("POST", r"/v1/payment_intents/[^/]+/capture")
    found = differences(before, after)
    return [
        Check(
            claim="every step of the second run succeeded at once",
            holds=len(statuses) == 8 and all(isinstance(s, int) and s < 300 for s in statuses) and act.exit_code == 0,
            found=f"answers {statuses}, exit code {act.exit_code}",
        ),
        _keys_check("in the second run", act),
        Check(claim="the run is committed", holds=act.state == "succeeded", found=act.state),
        Check(
            claim="the money was taken exactly once, by a call sent once",
            holds=list(_added(before.taken, after.taken).values()) == [AMOUNT_CENTS] and len(captures) == 1,
            found=f"taken {_added(before.taken, after.taken)}, sent {len(captures)} times",
        ),
        Check(
            claim="the tool servers hold what the run made, and nothing else has changed",
            holds=_is_as_ordered(before, after),
            found="; ".join(found) or "nothing is new",
        ),
    ]


def as_ordered(before: Snapshot) -> Snapshot:
    """Return the world as the second run should leave it; ids that the tools choose are made up."""
    return replace(
        before,
        volumes={**before.volumes, "(new)": f"{WORKSPACE}-volume"},
        names=before.names | {WORKSPACE},
        files={**before.files, f"{WORKSPACE}/config.json": "(new)"},
        clusters=before.clusters | {FREE_CLUSTER},
        taken={**before.taken, "(new)": AMOUNT_CENTS},
    )


def _keys_check(when: str, act: Act) -> Check:
    """Every write to payments carried a key, none twice, and each is the key of a step in the gateway's own record."""
    writes = [s for s in act.sights if s.what == "request" and s.tool == "payments" and s.method == "POST"]
    keys = [sight.key for sight in writes]
    recorded = {step.get("key") for step in act.steps}
    return Check(
        claim=f"each payment {when} carried the idempotency key of its step",
        holds=bool(keys) and None not in keys and len(set(keys)) == len(keys) and set(keys) <= recorded,
        found=f"keys seen {keys}, keys recorded {sorted(map(str, recorded))}",
    )


def _is_in_order(undone: list[tuple[str, str]]) -> bool:
    return len(undone) == len(UNDONE_IN_ORDER) and all(
        tool == expected_tool and re.fullmatch(pattern, line) is not None
        for (tool, line), (expected_tool, pattern) in zip(undone, UNDONE_IN_ORDER, strict=True)
    )


def _is_as_ordered(before: Snapshot, after: Snapshot) -> bool:
    new_volumes = _added(before.volumes, after.volumes)
    new_files = _added(before.files, after.files)
    return (
        list(new_volumes.values()) == [f"{WORKSPACE}-volume"]
        and after.names - before.names == {WORKSPACE}
        and list(new_files) == [f"{WORKSPACE}/config.json"]
        and all(volume in content for volume in new_volumes for content in new_files.values())
        and after.clusters - before.clusters == {FREE_CLUSTER}
        and after.holds == before.holds
        and not [line for line in differences(before, after) if line.endswith(("gone", "changed"))]
    )


def _added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in after.items() if name not in before}


def _statuses(answers: list[Mapping[str, Any]]) -> list[Any]:
    return [answer.get("status") for answer in answers]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
