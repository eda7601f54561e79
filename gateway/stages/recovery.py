"""Says, and where the manifest wants it sees to, what a failure should lead to: retry, repair, go back, or a person.

The decision is `core/recovery.py`'s; here is what it rests on: how long operations and their compensators take (measured),
what became of repairs before (remembered over restarts), and how often this step was repaired already. A repair is the same
operation tried again in the same run with other arguments after the tool said no.

The agent reads the decision as `directive` and `explain` in a refusal, and as the header `Seawall-Directive` beside a tool's
own answer, which stays untouched. What it rests on is in `Seawall-Explain` then, and in `_meta` of an MCP result.

Content that a tool's filter has blocked (by a CEL rule of the manifest) is never sent again in the run as it is; reworded it
may be, six times in a row at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import orjson

from gateway.clock import Clock
from gateway.core.antispin import AntiSpin, Spin
from gateway.core.call import FORWARD, Call, Handler, Passable
from gateway.core.codes import Code, Directive
from gateway.core.coding import decoded
from gateway.core.economics import Chance, Costs
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.records import ContentBlocked
from gateway.core.recovery import (
    AT_ONCE,
    Decision,
    Headroom,
    RecoveryMode,
    Situation,
    Trouble,
    decide_recovery,
    trouble_by_rules,
    trouble_of,
)
from gateway.core.saga import Abort, Freeze
from gateway.core.signature import error_signature
from gateway.core.tool import Catalog
from gateway.journal import Conflict, JournalUnavailable
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.budget import meter_of
from gateway.stages.environment import call_env
from gateway.telemetry import Telemetry

__all__ = ["REPAIRS", "RecoveryStage"]

REPAIRS = "repairs/"
"""Under this prefix the journal remembers what became of repairs."""

_DECIDED = frozenset({Code.WATCHDOG_INTERRUPT, Code.SEMANTIC_DEADLOCK})
"""Refusals that say already what the run should do next, and have seen to it."""

# Looked up once (docs/adr/0092): what every refusal by the queue or the breaker leads to.
_ENFORCE: Final = RecoveryMode.ENFORCE
_TRANSIENT: Final = Trouble.TRANSIENT
_WAIT: Final = (AT_ONCE[_TRANSIENT].directive, AT_ONCE[_TRANSIENT].explain())
_STEPS_KEPT = 4096
_TEXT_LIMIT = 4096
_SMOOTHING = 0.2
"""Weight of the newest duration in the average: about the last ten count."""


class RecoveryStage(Passable):
    """Looks at every outcome of a forward call."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        telemetry: Telemetry,
        remember: Callable[[str, bytes], None],
        catalog: Callable[[], Catalog] = lambda: Catalog({}, {}),
    ) -> None:
        self._catalog = catalog
        self._trajectories = trajectories
        self._clock = clock
        self._telemetry = telemetry
        self._remember = remember
        self._spins: OrderedDict[tuple[str, str], AntiSpin] = OrderedDict()
        self._trouble: dict[tuple[str, str], str] = {}
        self._seconds: dict[str, float] = {}
        self._chances: dict[str, Chance] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Pass the call on; decide what its failure leads to."""
        if call.lane is FORWARD and call.step is None and (refusal := self._blocked(call)) is not None:
            return Rejected(refusal)
        began = self._clock.now()
        outcome = await proceed(call)
        if isinstance(outcome, Success):
            self.took(call, self._clock.now() - began)
        if call.lane is not FORWARD or call.operation.is_read or isinstance(outcome, Success):
            return outcome
        return await self.advise(call, outcome)

    async def advise(self, call: Call, outcome: Failed | Rejected | InDoubt) -> Outcome:
        """Decide what the failure of a write leads to; return the outcome with what the agent is told of that."""
        trouble = await self._trouble_of(call, outcome)
        if trouble is None or (isinstance(outcome, Rejected) and outcome.refusal.code in _DECIDED):
            return outcome
        return _told(outcome, self._decided(call, outcome, trouble))

    def lets_pass(self, call: Call) -> bool:
        """Whether the call's content was never blocked."""
        return self._blocked(call) is None

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Say what it should lead to."""
        trouble = trouble_of(outcome)
        if trouble is _TRANSIENT and call.tool.recovery.mode is not _ENFORCE:
            return Rejected(outcome.refusal.advised(*_WAIT))
        if trouble is None or outcome.refusal.code in _DECIDED:
            return outcome
        return _advised(outcome, self._decided(call, outcome, trouble))

    def _decided(self, call: Call, outcome: Outcome, trouble: Trouble) -> Decision:
        """Decide what a failure leads to, and see to it where that is wanted."""
        decision = AT_ONCE.get(trouble)
        if decision is None:
            name = f"{call.tool.name}.{call.operation.name}"
            decision = decide_recovery(self._situation(call, name, outcome, trouble))
        if call.tool.recovery.mode is _ENFORCE:
            self._enforce(call, decision)
        return decision

    async def _trouble_of(self, call: Call, outcome: Outcome) -> Trouble | None:
        """What kind of trouble it is: by the manifest's rules where a tool has answered, else by the table."""
        rules = call.tool.troubles
        if not rules or not isinstance(outcome, Failed) or outcome.reply is None:
            return trouble_of(outcome)
        reply = outcome.reply
        data = reply.body.data if isinstance(reply.body, BytesBody) else b""
        env = await call_env(call)
        env["response"] = response_env(reply.status, reply.headers, decoded(reply.headers, data, EVALUATED_LIMIT))
        trouble = trouble_by_rules(rules, env) or trouble_of(outcome)
        if trouble is Trouble.CONTENT_BLOCK:
            await self._note_blocked(call)
        return trouble

    # --- blocked content

    def _blocked(self, call: Call) -> Refusal | None:
        """Return why a call is not sent whose content was blocked, or whose step was reworded too often; else None."""
        run = self._trajectories.at_hand(call)
        if run is None or not run.state.blocked:
            return None
        blocked = run.state.blocked.get((call.tool.name, call.operation.name))
        if blocked is None:
            return None
        left = call.tool.recovery.rewordings + 1 - blocked.attempts
        is_same = call.action.hex() in blocked.actions
        if left > 0 and not is_same:
            return None
        name = f"{call.tool.name}.{call.operation.name}"
        what = f"Reword it; {left} of {call.tool.recovery.rewordings} attempts are left."
        if left <= 0:
            what = "It was reworded as often as it may be: the step is blocked. Leave it out, or ask a person."
        return Refusal(
            code=Code.CONTENT_BLOCKED,
            dependency=call.tool.name,
            detail=f"{name} was not sent: {call.tool.name} has blocked this content before. {what}",
            extra={"rewordings_left": max(0, left)},
        )

    async def _note_blocked(self, call: Call) -> None:
        """Remember it before the agent hears of it, so that no crash lets the same content through again."""
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost:
            return
        record = ContentBlocked(tool=call.tool.name, operation=call.operation.name, action=call.action.hex())
        try:
            await asyncio.shield(self._trajectories.record(run, [record]))
        except (JournalUnavailable, Conflict) as error:
            self._telemetry.background_failed("noting blocked content", error)

    def restore(self, recalled: Mapping[str, bytes]) -> None:
        """Take up what was remembered of repairs; what cannot be read counts as never seen."""
        for key, value in recalled.items():
            worked, _, failed = value.decode("ascii", "replace").partition(",")
            if worked.isdigit() and failed.isdigit():
                self._chances[key.removeprefix(REPAIRS)] = Chance(int(worked), int(failed))

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return what is known of repairs, by operation and kind of trouble."""
        return {
            key: {"worked": chance.worked, "failed": chance.failed, "chance": round(chance.mean, 4)}
            for key, chance in self._chances.items()
        }

    # --- what the decision rests on

    def _situation(self, call: Call, name: str, outcome: Outcome, trouble: Trouble) -> Situation:
        run = self._trajectories.get(call.trajectory)
        state = None if run is None else run.state
        spin, chance = Spin.MAY_REPAIR, Chance()
        if trouble in (Trouble.SEMANTIC, Trouble.CONTENT_BLOCK) and not isinstance(outcome, Rejected):
            kind = "content_block" if trouble is Trouble.CONTENT_BLOCK else _kind(outcome)
            chance = self._chances.get(f"{name}/{kind}", Chance())
            spin = self._failed(call, name, kind, outcome)
            if trouble is Trouble.CONTENT_BLOCK:
                # The filter says the same each time; what counts is how often the content was reworded.
                blocked = None if state is None else state.blocked.get((call.tool.name, call.operation.name))
                is_spent = blocked is not None and blocked.attempts > call.tool.recovery.rewordings
                spin = Spin.EXHAUSTED if is_spent else Spin.MAY_REPAIR
        return Situation(
            trouble=trouble,
            is_past_pivot=state is not None and state.pivot is not None,
            to_undo=0 if state is None else state.to_undo().total(),
            spin=spin,
            costs={} if run is None else self._costs(call, run),
            chance=chance,
            headroom=() if run is None or not run.state.budget else self._headroom(call, run),
        )

    def _headroom(self, call: Call, run: Run) -> tuple[Headroom, ...]:
        """What is left of each budget of the run that a repair takes from."""
        meter, at, settings = meter_of(run), self._clock.at(), call.tool.recovery
        expected = {
            "tokens": settings.repair_tokens, "usd": settings.repair_usd, "seconds": settings.repair_cost,
            "calls": 1.0, "steps": 1.0, "retries": 1.0,
        }  # fmt: skip
        return tuple(
            Headroom(name=name, left=meter.left(name, at), repair=expected[name], reserve=settings.reserve * cap)
            for name, cap in meter.caps.items()
            if name in expected
        )

    def _costs(self, call: Call, run: Run) -> dict[str, Costs]:
        """What going back and a repair cost, in seconds and, where any was spent, in USD.

        Each operation and compensator takes as long as declared, else as measured here lately, else a second. Done again, a
        run costs what it has cost so far.
        """
        unwind = rerun = price = 0.0
        tools = self._catalog().tools
        for (tool, operation), count in run.state.to_undo().items():
            spec = tools.get(tool)
            declared = None if spec is None else spec.operations.get(operation)
            undo = None if declared is None else declared.compensator
            forward = None if declared is None else declared.duration_s
            if forward is None:
                forward = self._seconds.get(f"{tool}.{operation}", 1.0)
            backward = None if undo is None else undo.duration_s
            if backward is None:
                backward = self._seconds.get(f"{tool}.undo {operation}", forward)
            rerun += count * forward
            unwind += count * backward
            price += 0.0 if undo is None else count * undo.price
        settings = call.tool.recovery
        costs = {"s": Costs(unwind=unwind, rerun=rerun, repair=settings.repair_cost)}
        spent = run.state.usage.get("usd", 0.0)
        if price or spent:
            costs["usd"] = Costs(unwind=price, rerun=spent, repair=settings.repair_usd)
        return costs

    def _failed(self, call: Call, name: str, kind: str, outcome: Outcome) -> Spin:
        key = (call.trajectory, name)
        spin = self._spins.get(key)
        if spin is None:
            spin = self._spins[key] = AntiSpin(limit=call.tool.recovery.repairs)
            if len(self._spins) > _STEPS_KEPT:
                oldest, _ = self._spins.popitem(last=False)
                self._trouble.pop(oldest, None)
        self._spins.move_to_end(key)
        before = self._trouble.get(key)
        if before is not None:
            self._learn(f"{name}/{before}", worked=False)
        self._trouble[key] = kind
        return spin.failed(error_signature(kind, name, _text(outcome)))

    def took(self, call: Call, seconds: float) -> None:
        """Note that an operation worked, and how long it took; on the forward lane, what became of its repairs, too."""
        name = f"{call.tool.name}.{call.operation.name}"
        known = self._seconds.get(name)
        self._seconds[name] = seconds if known is None else known + _SMOOTHING * (seconds - known)
        if (self._trouble or self._spins) and call.lane is FORWARD and not call.operation.is_read:
            self._worked(call, name)

    def _worked(self, call: Call, name: str) -> None:
        key = (call.trajectory, name)
        before = self._trouble.pop(key, None)
        if before is not None:
            self._learn(f"{name}/{before}", worked=True)
        spin = self._spins.pop(key, None)
        if spin is not None:
            spin.succeeded()

    def _learn(self, key: str, *, worked: bool) -> None:
        chance = self._chances[key] = self._chances.get(key, Chance()).after(worked=worked)
        self._remember(REPAIRS + key, f"{chance.worked},{chance.failed}".encode("ascii"))

    # --- what becomes of it

    def _enforce(self, call: Call, decision: Decision) -> None:
        """Abort or freeze a named run. One that nobody named is left alone: its steps belong together by chance."""
        if not call.is_run_named:
            return
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost or not run.state.version:
            return
        if decision.directive is Directive.BACKWARD_ROLLBACK:
            self._trajectories.decide(run, Abort(reason=decision.why, by="recovery"))
        elif decision.directive is Directive.OPERATOR_ESCALATE and run.state.pivot is not None:
            self._trajectories.decide(run, Freeze(incident="POST_PIVOT_STALLED", detail=decision.why))


def _kind(outcome: Outcome) -> str:
    if isinstance(outcome, Failed) and outcome.reply is not None:
        return str(outcome.reply.status)
    return "postcondition" if isinstance(outcome, Rejected) else "failure"


def _text(outcome: Outcome) -> str:
    if isinstance(outcome, Failed) and outcome.reply is not None and isinstance(outcome.reply.body, BytesBody):
        return outcome.reply.body.data[:_TEXT_LIMIT].decode("utf-8", "replace")
    refusal = None if isinstance(outcome, Success) else outcome.refusal
    return "" if refusal is None else refusal.detail


def _advised(outcome: Rejected, decision: Decision) -> Rejected:
    return Rejected(outcome.refusal.advised(decision.directive, decision.explain()))


def _told(outcome: Outcome, decision: Decision) -> Outcome:
    match outcome:
        case Rejected():
            return _advised(outcome, decision)
        case InDoubt(refusal=refusal) | Failed(refusal=refusal) if refusal is not None:
            return replace(outcome, refusal=refusal.advised(decision.directive, decision.explain()))
        case Failed(reply=reply) if reply is not None:
            directive, explained = decision.directive.value, orjson.dumps(decision.explain())
            reply.headers = (
                *reply.headers, (b"Seawall-Directive", directive.encode("ascii")), (b"Seawall-Explain", explained)
            )  # fmt: skip
            return outcome
        case _:
            return outcome
