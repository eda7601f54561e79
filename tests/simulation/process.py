"""One life of the gateway's process: everything real is built anew from the disk, and an agent that calls it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import traceback
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from gateway.config.source import ManifestSource
from gateway.core.approval import Approval, Verdict
from gateway.core.call import Call, Handler
from gateway.core.codes import Code
from gateway.core.containment import Trigger
from gateway.core.manifest import Tier
from gateway.core.message import BytesBody, Request
from gateway.core.outcome import Failed, Outcome, Refusal, Rejected, Success, is_result
from gateway.core.saga import Abort, Commit, Open, Rewind, Savepoint
from gateway.core.tool import Catalog
from gateway.core.trajectory import Phase, Step, StepState
from gateway.ingress.desk import Desk
from gateway.journal import Conflict, JournalError, JournalUnavailable
from gateway.journal.containment import ContainmentLog
from gateway.journal.trajectories import Run, Trajectories
from gateway.pipeline import Stages
from gateway.probes.http import HttpProbe
from gateway.probes.verifier import HttpVerifier
from gateway.stages.admission import AdmissionStage
from gateway.stages.approval import ApprovalStage
from gateway.stages.breaker import REMEMBERED, BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.flights import Flights
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.outbox import OutboxStage
from gateway.stages.quarantine import QuarantineStage
from gateway.stages.recovery import RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.settle import Settle
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage
from gateway.telemetry import Telemetry
from gateway.workers.escalator import Escalator
from gateway.workers.finalizer import Finalizer
from gateway.workers.quarantine import Quarantiner
from gateway.workers.settler import Settler
from gateway.workers.unwinder import Unwinder
from tests.simulation.disk import SimJournal
from tests.simulation.plan import Action, Person, Plan
from tests.simulation.world import EPOCH_MS, SimEgress, Violation, World, digest

__all__ = ["Process", "catalog"]

RUN = "r"
START_S = 1_000.0
SALT = b"s" * 32
MENDED_MOST = 3


_MOOT = (Code.TRAJECTORY_FROZEN, Code.QUARANTINED, Code.TRAJECTORY_CLOSED, Code.PIVOT_ORDER)
"""Refusals that no repeat changes; the agent goes on and will learn where its run stands."""

_OVER = (Code.TRAJECTORY_FROZEN, Code.QUARANTINED, Code.TRAJECTORY_CLOSED)


@cache
def catalog() -> Catalog:
    """The manifest of the simulated tools, compiled once."""
    return ManifestSource(Path(__file__).with_name("manifest.yaml"), environ={}).load()


class SimClock:
    """The loop's time, which goes on over restarts, and chance from the seed."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def at(self) -> int:
        return EPOCH_MS + round(self.now() * 1000)

    def draw(self) -> float:
        return self._rng.random()

    def token(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s))


class SimTelemetry(Telemetry):
    """Collects bugs instead of logging them."""

    world: World

    def background_failed(self, where: str, error: BaseException) -> None:
        if self.world.journal is None or self.world.journal.is_dead:
            return
        self.world.note(f"FAILED {where}: {type(error).__name__}: {error}")
        self.world.causes.extend(traceback.format_exception(error))
        if not isinstance(error, JournalError):
            self.world.bugs.append(f"{where}: {type(error).__name__}: {error}")


@cache
def _telemetry() -> SimTelemetry:
    """One for all processes: its registry of metrics is dear to make."""
    return SimTelemetry()


class _PassOn:
    """Stands for a stage that the simulated manifest asks nothing of."""

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        return await proceed(call)


def _stages(**real: Any) -> Stages:
    others = {each.name: _PassOn() for each in fields(Stages) if each.name not in real}
    return Stages(**real, **others)


class Process:
    """Build it inside a running loop, `start` it, and let the agent `act`."""

    def __init__(self, world: World, rng: random.Random, plan: Plan) -> None:
        self.world, self.plan = world, plan
        clock = self.clock = SimClock(world, rng)
        telemetry = _telemetry()
        telemetry.world, telemetry._clock = world, clock
        journal = self.journal = world.journal = SimJournal(world)
        self.trajectories = Trajectories(journal, clock, telemetry, salt=SALT)
        self.containment = ContainmentLog(journal, clock, telemetry)
        flights = Flights(self.containment.state)
        self.quarantiner = Quarantiner(self.containment, self.trajectories, flights, clock, telemetry)
        breaker = BreakerStage(clock, telemetry, journal.remember)
        self._breaker = breaker
        probers = {"http": HttpProbe(catalog, clock)}
        stages = _stages(
            telemetry=TelemetryStage(clock, telemetry),
            recovery=RecoveryStage(self.trajectories, clock, telemetry, journal.remember),
            budget=BudgetStage(self.trajectories, clock),
            watchdog=WatchdogStage(
                self.trajectories, catalog, clock, telemetry, probers["http"], lambda: self.pipeline
            ),
            idempotency=IdempotencyStage(self.trajectories, journal, clock),
            quarantine=QuarantineStage(self.containment, self.trajectories),
            saga=SagaStage(self.trajectories, journal, telemetry),
            approval=ApprovalStage(
                self.trajectories, HttpVerifier(lambda: self.pipeline, catalog, clock), clock, telemetry
            ),
            outbox=OutboxStage(self.trajectories, clock, telemetry),
            deadline=DeadlineStage(clock, telemetry),
            retry=RetryStage(clock, telemetry, Settle(probers, clock)),
            admission=AdmissionStage(clock, telemetry, breaker.peek),
            breaker=breaker,
            journal=JournalStage(self.trajectories, clock, telemetry),
            dispatch=Dispatch(SimEgress(world), clock, telemetry, (), flights),
        )
        for stage in (stages.retry, stages.admission, stages.breaker):
            stage.reconfigure(catalog())
        self.pipeline = stages.pipeline()
        self.settler = Settler(self.trajectories, self.pipeline, catalog, clock, telemetry)
        self.unwinder = Unwinder(self.trajectories, self.pipeline, catalog, clock, telemetry, self.settler, probers)
        self.finalizer = Finalizer(self.trajectories, self.pipeline, catalog, clock, telemetry)
        self.escalator = Escalator(self.trajectories, clock, telemetry, interval_s=5.0, resume=self._resume)
        self.desk = Desk(self.trajectories, clock)

    def _resume(self) -> None:
        self.unwinder.run_once()
        self.finalizer.run_once()

    async def main(self) -> None:
        """The whole life: recover, go on, and end when the run is over and the agent knows it.

        Raises:
            JournalError: it cannot start, as the disk does not answer.
        """
        world = self.world
        world.boots += 1
        world.note(f"BOOT {world.boots}")
        await self.containment.load()
        if RUN not in self.containment.state.runs:
            world.contained_at = None  # the process ended before its record was on the disk
        before = {name: world.durable(name).phase for name in world.streams()}
        world.resume()
        self._breaker.restore(await self.journal.recall(REMEMBERED))
        for run in await self.trajectories.recover():
            was = before.get(run.state.id)
            if was is not run.state.phase and was is not Phase.COMPENSATING:
                raise Violation(f"restart changed run {run.state.id} from {was} to {run.state.phase}")
        self.quarantiner.enforce()
        self.trajectories.on_read = self.quarantiner.enforce_on
        self.trajectories.on_finalizing = lambda name: asyncio.get_running_loop().call_soon(self.finalizer.wake, name)
        self.trajectories.on_unwinding = lambda name: asyncio.get_running_loop().call_soon(self.unwinder.wake, name)
        self._resume()
        others = [self.settler.run(), self.escalator.run(), self._cut(), self._people(), self._peer(), self._mend()]
        tasks = [asyncio.ensure_future(each) for each in others]
        await self._act()
        await self._wait_over()
        for task in tasks:
            task.cancel()

    def contain(self) -> None:
        """Somebody quarantines the run, in the middle of whatever happens."""
        run = self.trajectories.get(RUN)
        if run is None or not run.state.version:
            return
        self.world.note(f"CONTAIN in {run.state.phase}")
        self.world.contained_at = self.clock.now()
        self.quarantiner.contain(run=RUN, trigger=Trigger.OPERATOR, by="test", reason="found out")

    async def _peer(self) -> None:
        """Another agent that keeps looking at what this one makes."""
        tool = catalog().tools["shelf"]
        while self.plan.has_peer:
            for action in [one for one in self.plan.actions if one.tool == "shelf"]:
                await self.clock.sleep(0.2)
                target = f"/look/{action.item}"
                match = tool.match("GET", target)
                now = self.clock.now()
                call = Call(
                    tool=tool,
                    operation=match.operation,
                    request=Request("GET", target.encode(), (), None, has_side_effects=False, capture_answer=False),
                    agent="peer",
                    started=now,
                    deadline=now + 40.0,
                    trajectory="p",
                    is_run_named=True,
                    params=match.params,
                    action=digest(target),
                )
                outcome = await self.pipeline(call)
                self.world.looks.append((now, action.item, _said(outcome)))

    async def _cut(self) -> None:
        """An operator who aborts the run in the middle of things."""
        if self.plan.cut_after_s is not None:
            await self.clock.sleep(START_S + self.plan.cut_after_s - self.clock.now())
            while (refusal := await self._decided(await self._run(), Abort(reason="cut", by="operator"))) is not None:
                if refusal.code is not Code.JOURNAL_UNAVAILABLE:
                    break
                await self.clock.sleep(1.0)

    async def _people(self) -> None:
        """Whoever is asked to approve something, and says so as often as it takes to be heard."""
        if not self.plan.people:
            return
        while True:
            await self.clock.sleep(2.0)
            run = self.trajectories.get(RUN)
            for approval in () if run is None else list(run.state.approvals.values()):
                asked_s = (self.clock.at() - approval.requested_at) / 1000
                item = approval.asked.target.split("/")[2]
                for person in self.plan.people:
                    is_due = asked_s >= person.after_s and (approval.id, person.name) not in self.world.clicked
                    if is_due and item in self.plan.approved:
                        await self._decide(approval, person)

    async def _decide(self, approval: Approval, person: Person) -> None:
        self.world.said.setdefault(approval.asked.target, set()).add((person.name, person.verdict))
        clicks = [
            self.desk.decide(approval.id, Verdict(person.verdict), person.name, "because") for _ in range(person.clicks)
        ]
        answers = await asyncio.gather(*clicks, return_exceptions=True)
        for answer in answers:
            self.world.note(f"{person.name} {person.verdict} {approval.id} <- {getattr(answer, 'code', answer)!s:.60}")
            if isinstance(answer, BaseException) and not isinstance(answer, JournalError):
                raise answer
        if not any(isinstance(answer, JournalError) for answer in answers):
            self.world.clicked.add((approval.id, person.name))

    async def _mend(self) -> None:
        """Whoever looks after a frozen run: nothing is under way any more when they look."""
        while self._is_mended:
            await self.clock.sleep(5.0)
            run = self.trajectories.get(RUN)
            if run is None or run.state.phase is not Phase.FROZEN or run.state.in_flight:
                continue
            await self.clock.sleep(20.0)
            with contextlib.suppress(JournalError):
                for step in list(run.state.steps.values()):
                    verdict = self._found(step)
                    if verdict is not None:
                        told = await self.desk.resolve_step(RUN, step.number, verdict, "seen", "ann")
                        self.world.note(f"ann finds step {step.number} {verdict} <- {getattr(told, 'code', 'noted')}")
                told = await self.desk.release(RUN, None, "ann", "mended")
                self.world.note(f"ann releases <- {getattr(told, 'code', 'noted')}")
                self.world.mended += 1

    def _found(self, step: Step) -> str | None:
        """What a person finds out about a step, having seen to it by hand where a tool refused for good."""
        world, item = self.world, step.target.split("/")[2]
        done = [e for e in world.ledger if e.item == item and e.kind != "undone"]
        match step.state:
            case StepState.IN_DOUBT:
                if done:
                    world.seen_to.add(item)
                return "landed" if done else "not_landed"
            case StepState.COMPENSATION_FAILED:
                if len(world.effects(item, "undone")) < len(done):
                    world.enter("undone", item)
                return "not_landed"
            case StepState.DEFERRED if item in world.refused_tell:
                if not done:
                    world.enter("told", item)
                return "landed"
        return None

    # --- the agent: lives outside, so what it knows is in the world

    async def _act(self) -> None:
        for number, group in enumerate(self.plan.groups):
            results = await asyncio.gather(
                *(
                    self._do(action)
                    for action in group
                    if action.item not in (*self.world.acked, *self.world.rewound, *self.world.repaired)
                )
            )
            if not all(results):
                return await self._abort("a step failed")
            if self.plan.rewind is not None and not self.world.rewound:
                await self._rewind(number, *self.plan.rewind)
            if self.plan.abort_after is not None and group is self.plan.groups[self.plan.abort_after]:
                return await self._abort("changed its mind")
        await self._commit()
        return None

    async def _do(self, action: Action) -> bool:
        """Call until it is done, or is given up. Returns whether the run may go on."""
        if action.item == self.plan.stubborn:
            return await self._insist(action)
        if action.item in self.world.tried:
            return await self._repair(action)
        if action.bait and action.bait not in self.world.baited:
            self.world.baited.add(action.bait)
            await self._call(replace(action, item=action.bait, bait="", wait_s=0.0))
            await self.clock.sleep(self.clock.draw() * 20.0)
        await self.clock.sleep(action.after_s)
        attempt = held = 0
        while attempt < 6 and held < 60:
            self.world.first_sent.setdefault(action.item, self.clock.now())
            outcome = await self._call(action)
            self.world.note(f"AGENT {action.item} <- {_said(outcome)}")
            if isinstance(outcome, Success):
                self._check_release(action)
                self.world.acked.setdefault(action.item, self.clock.now())
                return True
            refusal = None if isinstance(outcome, Success) else outcome.refusal
            if refusal is not None and refusal.code is Code.INTERNAL:
                raise Violation(f"{action.item} met a bug of ours: {refusal.detail}")
            if refusal is not None and refusal.code in _MOOT:
                return True
            if refusal is not None and refusal.code is Code.HELD_FOR_APPROVAL:
                held += 1
                await self.clock.sleep(action.rest_s or 1.0 + 5.0 * self.clock.draw())
                continue
            if refusal is not None and refusal.code is Code.OUTCOME_UNKNOWN and self.plan.is_reckless:
                return True
            is_no = isinstance(outcome, Failed) and outcome.reply is not None and outcome.reply.status == 422
            if is_no or (refusal is not None and refusal.code is Code.WATCHDOG_INTERRUPT):
                self.world.tried.add(action.item)
                return await self._repair(action)
            await self.clock.sleep(1.0 + attempt * 5.0 * self.clock.draw())
            attempt += 1
        return False

    async def _insist(self, action: Action) -> bool:
        """Send the same over and over, whatever is said of it, with something else in between while there is any."""
        fixes = [fix for fix in self.plan.fixes if fix.item not in self.world.tried]
        for _ in range(16):
            outcome = await self._call(action)
            self.world.note(f"AGENT insists on {action.item} <- {_said(outcome)}")
            refusal = None if isinstance(outcome, Success) else outcome.refusal
            if refusal is not None and refusal.code in (*_MOOT, Code.SEMANTIC_DEADLOCK, Code.TRAJECTORY_CLOSED):
                return False
            if refusal is not None and refusal.code is Code.WATCHDOG_INTERRUPT:
                self.world.interrupts += 1
                self._note_taken_away(action, refusal)
            elif fixes:
                fix = fixes.pop(0)
                self.world.tried.add(fix.item)
                self.world.first_sent.setdefault(fix.item, self.clock.now())
                if isinstance(await self._call(fix), Success):
                    self.world.acked.setdefault(fix.item, self.clock.now())
            await self.clock.sleep(1.0)
        return False

    def _note_taken_away(self, action: Action, refusal: Refusal) -> None:
        """Remember which action the agent was told to be masked: for good, or as long as this process lives."""
        done = refusal.extra["watchdog"]["done"]
        if done != "interrupt":
            self.world.taken_away[action.target] = 0 if done == "rewind" else self.world.boots

    async def _repair(self, action: Action) -> bool:
        """Correct what was refused, as far as there is anything left to try."""
        for corrected in self.plan.repairs.get(action.item, ()):
            for _ in range(0 if corrected.item in self.world.tried else 4):
                self.world.first_sent.setdefault(corrected.item, self.clock.now())
                outcome = await self._call(corrected)
                self.world.note(f"AGENT repairs {corrected.item} <- {_said(outcome)}")
                if isinstance(outcome, Success):
                    self._check_release(corrected)
                    self.world.acked.setdefault(corrected.item, self.clock.now())
                    self.world.repaired.add(action.item)
                    return True
                refusal = outcome.refusal
                is_no = isinstance(outcome, Failed) and outcome.reply is not None and outcome.reply.status == 422
                if is_no or (refusal is not None and refusal.code is Code.WATCHDOG_INTERRUPT):
                    self.world.tried.add(corrected.item)
                    break
                await self.clock.sleep(1.0)
        return False

    async def _call(self, action: Action) -> Outcome:
        tool = catalog().tools[action.tool]
        match = tool.match(action.method, action.target)
        now = self.clock.now()
        call = Call(
            tool=tool,
            operation=match.operation,
            request=Request(action.method, action.target.encode(), (), BytesBody(action.body)),
            agent="agent",
            started=now,
            deadline=now + match.operation.timeouts.total,
            trajectory=RUN,
            is_run_named=True,
            params=match.params,
            budget=self.plan.caps or None,
            action=digest(f"{action.tool} {action.target}"),
            fingerprint=digest(action.target),
            caller_key=action.key,
            wait_s=action.wait_s,
        )
        task = asyncio.ensure_future(self.pipeline(call))
        if action.patience_s is not None:
            await asyncio.wait((task,), timeout=action.patience_s)
            if not task.done() and not call.is_committed_to_send:
                task.cancel()
                await asyncio.wait((task,))
            if task.cancelled() or not task.done():
                refusal = Refusal(code=Code.DEADLINE, detail="the agent left")
                return Rejected(refusal)
        outcome = await task
        if call.step is not None and is_result(outcome):
            self.trajectories.delivered(call.trajectory, call.step)
        return outcome

    def _check_release(self, action: Action) -> None:
        """The compensator is durable before the result reaches the agent (invariant 3), and so is the outcome (RPO 0)."""
        state = self.world.durable(RUN)
        steps = [s for s in state.steps.values() if s.action == digest(f"{action.tool} {action.target}").hex()]
        if action.verb == "tell" and steps:
            return
        done = [s for s in steps if s.state.value in ("committed", "compensating", "compensated", "skipped")]
        if not done:
            raise Violation(f"the agent has the result of {action.item}, and the disk does not")
        # What a person found has no answer to bind it from; what is past its pivot needs none.
        is_bound = done[-1].compensator is not None or done[-1].resolved is not None
        if done[-1].tier is Tier.COMPENSABLE and not is_bound and not state.is_past_pivot | state.is_over:
            raise Violation(f"the agent has the result of {action.item}, and its compensator is not on the disk")

    async def _abort(self, reason: str) -> None:
        for _ in range(20):
            refusal = await self._decided(await self._run(), Abort(reason=reason))
            self.world.note(f"AGENT abort <- {None if refusal is None else refusal.code}")
            if refusal is None or refusal.code in _OVER:
                if refusal is not None and self._may_go_on(refusal):
                    await self.clock.sleep(30.0)
                    continue
                return None
            if refusal.code is Code.PIVOT_ORDER:
                return await self._commit()
            await self.clock.sleep(5.0)
        return None

    async def _rewind(self, number: int, savepoint: int, last: int) -> None:
        """Take the savepoint after its group; go back to it after the last one, and do without what is undone."""
        run = await self._run()
        if number not in (savepoint, last):
            return
        if number == savepoint and "here" not in run.state.savepoints:
            await self._decided(run, Savepoint(name="here"))
        if number != last or "here" not in run.state.savepoints:
            return
        since = run.state.savepoints["here"]
        names = {digest(f"{a.tool} {a.target}").hex(): a.item for a in self.plan.actions}
        later = [names[s.action] for s in run.state.steps.values() if s.intended > since]
        while (refusal := await self._decided(run, Rewind(savepoint="here", reason="a dead end"))) is not None:
            if refusal.code is not Code.JOURNAL_UNAVAILABLE:
                break
            await self.clock.sleep(5.0)
            run = await self._run()
        if refusal is None:
            while (phase := await self._shown()) is Phase.COMPENSATING or (phase is Phase.FROZEN and self._is_mended):
                await self.clock.sleep(5.0)
            if (await self._shown()) is Phase.PREPARING:
                self.world.note(f"AGENT rewound past {later}")
                self.world.rewound = [*later, "done"]

    async def _commit(self) -> None:
        for _ in range(200):
            refusal = await self._decided(await self._run(), Commit())
            if refusal is None or (refusal.code in _OVER and not self._may_go_on(refusal)):
                return
            await self.clock.sleep(30.0)

    def _may_go_on(self, refusal: Refusal) -> bool:
        """Whether somebody may yet let the frozen run go on."""
        return self._is_mended and refusal.code is Code.TRAJECTORY_FROZEN

    @property
    def _is_mended(self) -> bool:
        plan = self.plan  # what a loop or a budget stopped is not for this person
        is_theirs = plan.is_mended and not (plan.stubborn or plan.repairs or plan.caps)
        return is_theirs and self.world.mended < MENDED_MOST

    async def _run(self) -> Run:
        """The run, made if it is new, once the disk lets us know."""
        while True:
            try:
                found = await self.trajectories.named(
                    RUN, Open(agent="agent", on_stuck=self.plan.on_stuck, budget=dict(self.plan.caps))
                )
            except JournalUnavailable:
                await self.clock.sleep(1.0)
            else:
                assert isinstance(found, Run)
                return found

    async def _shown(self) -> Phase:
        """Where the run stands, as the runs API tells it: nobody is told what a crash could take back."""
        while True:
            with contextlib.suppress(JournalUnavailable):
                return (await self.trajectories.durable(await self._run())).state.phase
            await self.clock.sleep(1.0)

    async def _decided(self, run: Run, command: Abort | Commit | Savepoint | Rewind) -> Refusal | None:
        try:
            return await self.trajectories.decided(run, command)
        except (JournalUnavailable, Conflict):
            return Refusal(code=Code.JOURNAL_UNAVAILABLE, detail="")

    async def _wait_over(self) -> None:
        """The run is over when it is closed or frozen on the disk, too, and the messages under way have arrived."""
        ends = (Phase.SUCCEEDED, Phase.ABORTED_CLEAN, *(() if self._is_mended else (Phase.FROZEN,)))
        for _ in range(2000):
            run = await self._run()
            if not run.state.version or (run.state.phase in ends and await self._shown() in ends):
                break
            await self.clock.sleep(10.0)
        await self.clock.sleep(30.0)
        await self._shown()
        while True:
            with contextlib.suppress(JournalError):
                return await self.journal.flush()


def _said(outcome: Outcome) -> str:
    if isinstance(outcome, Success):
        return f"success {outcome.reply.status}{' replayed' if outcome.is_replay else ''}"
    refusal = outcome.refusal
    return f"{type(outcome).__name__} {refusal.code if refusal else outcome.reply.status if outcome.reply else ''}"  # type: ignore[union-attr]
