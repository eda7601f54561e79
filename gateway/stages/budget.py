"""Keeps runs within their caps: asks before a call, meters it afterwards, and says so in time.

What fits, `core/budget.py` decides. Caps come with the run's opening, with a header, or with a task packet; a run without
any passes, unless its operation declares what it spends, which is then metered all the same. From four fifths of a cap on
each answer says so; at the cap calls are refused with `ERR_BUDGET_EXHAUSTED`, and the recovery policy decides what becomes
of the run.

Compensators, probes and finalizations are never refused for want of budget: undoing is what is left to do then. Neither is a
repeat that only collects or settles what was sent already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from gateway.clock import Clock
from gateway.core.budget import Meter, Spent, shown, tightened
from gateway.core.call import FORWARD, Call, Handler, Passable
from gateway.core.codes import Code
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, response_env
from gateway.core.expression import ExpressionError
from gateway.core.message import BytesBody
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.policy import Effect
from gateway.core.records import BudgetTightened, ChildSettled, UsageReported
from gateway.core.saga import Open
from gateway.core.sparse import own
from gateway.core.tool import Usage
from gateway.core.trajectory import UNSENT_FAULT, StepState, Trajectory
from gateway.journal import JournalUnavailable, tellable
from gateway.journal.trajectories import Flight, Run, Trajectories

__all__ = ["BudgetStage", "meter_of", "spend"]


def meter_of(run: Run) -> Meter:
    """Return the meter of a run, made from its records, what is on its way, and its children, where it has none yet."""
    if run.meter is None:
        state = run.state
        caps = state.budget if run.opening is None or state.version else run.opening.budget
        run.meter = Meter(caps, _recorded(state), state.opened_at)
        for call, flight in run.flying.items():
            run.meter.spend(_untold(state, call, flight.taken))
        for child in run.children():
            run.meter.spend(meter_of(child).used)
    elif run.meter.caps is not run.state.budget and run.state.version:
        # The run's first record has been written since: its caps and its beginning are known for good.
        run.meter.caps, run.meter.opened_at = run.state.budget, run.state.opened_at
    return run.meter


def spend(run: Run, amounts: Mapping[str, float], sign: float = 1.0) -> None:
    """Add to what a run has spent, and with it those that it is a part of; `sign` -1 gives it back."""
    meters = [meter_of(one) for one in run.lineage()]  # all of them first: one that is made counts its children
    for meter in meters:
        meter.spend(amounts, sign)


def _recorded(state: Trajectory) -> dict[str, float]:
    """Return what a run has spent as its records tell."""
    sent = len(state.steps) - state.unsent
    used = dict(state.usage)
    used["steps"] = used.get("steps", 0.0) + sent
    used["calls"] = used.get("calls", 0.0) + sent + state.reads
    return used


def _untold(state: Trajectory, call: Call, taken: Mapping[str, float]) -> Mapping[str, float]:
    """Return what a call on its way has taken and no record tells of: its intent tells of the call and the step."""
    step = None if call.step is None else state.steps.get(call.step)
    if step is None or step.key != call.key:
        return taken
    return {name: amount for name, amount in taken.items() if name not in ("calls", "steps")}


class BudgetStage(Passable):
    """Meters calls."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        in_shadow: Callable[[Call, str, Effect], None] | None = None,
    ) -> None:
        """`in_shadow`: nothing is refused or cut, and it is told what would have been."""
        self._in_shadow = in_shadow
        self._trajectories = trajectories
        self._clock = clock

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Outcome]:
        """Refuse what the run cannot afford; take what it costs. A call that nobody budgets is handed on as it is."""
        if call.lane is not FORWARD or call.step is not None or self.lets_pass(call):
            return proceed(call)
        return self._metered(call, proceed)

    def lets_pass(self, call: Call) -> bool:
        """Whether nobody budgets the call."""
        if not call.trajectory:
            return True
        return not (self._trajectories.has_budgets or call.budget is not None or call.operation.usage is not None)

    async def _metered(self, call: Call, proceed: Handler) -> Outcome:
        run = self._trajectories.get(call.trajectory)
        if run is not None and run.is_lost and (run.state.budget or call.budget is not None):
            try:
                run = await self._trajectories.find(call.trajectory)
            except JournalUnavailable as error:
                return Rejected(_unknown(call, error))
        usage = call.operation.usage
        is_capped = run is not None and (run.state.budget or len(run.lineage()) > 1)
        if usage is None and call.budget is None and not is_capped:
            return await proceed(call)
        if usage is not None and usage.amounts and call.operation.is_read:
            call.request.capture_answer = True
        if run is None and call.budget is not None:
            try:
                run = await self._made(call)
            except JournalUnavailable as error:
                return Rejected(_unknown(call, error))
        if run is None:
            return await self._opening(call, proceed)
        if run.meter is None:
            self._trajectories.record(run, [], lazy=True)  # reads that wait are told of by no record yet
        refusal = self._admit(run, call)
        if refusal is not None:
            return Rejected(refusal)
        taken = _known(call, run)
        spend(run, taken)
        run.flying = flying = own(run.flying)
        flight = Flight(dict(taken))
        flying[call] = flight
        outcome: Outcome | None = None
        try:
            outcome = await proceed(call)
        finally:
            # The run may have been lost on the way, and read anew; what is under way has gone over to it.
            run = self._trajectories.get(call.trajectory) or run
            if outcome is None and not call.is_committed_to_send:
                spend(run, taken, -1.0)
            elif outcome is not None:
                outcome = self._meter(run, call, outcome, taken, flight.answer)
            del flying[call]
        return outcome

    async def _opening(self, call: Call, proceed: Handler) -> Outcome:
        """Pass a call on that may open its run, and meter it there."""
        outcome = await proceed(call)
        run = self._trajectories.get(call.trajectory)
        return outcome if run is None else self._meter(run, call, outcome, {})

    # --- children

    def settle(self, name: str) -> None:
        """Write down with its parent what a task has spent that is over, so that its own run need not be asked any more."""
        run = self._trajectories.known(name)
        line = [] if run is None else run.lineage()
        if run is not None and len(line) > 1:
            self._settled(line[1], run)

    async def settle_children(self) -> None:
        """Do so for tasks that ended, or were never opened, when the process before did, and tell the others whose they are.

        Raises:
            JournalUnavailable: they cannot be read.
        """
        for parent in self._trajectories.live():
            for name in list(parent.state.children):
                found = await self._trajectories.find(name)
                if found is not None:
                    found.parent = parent.state.id
                if found is None:
                    self._trajectories.record(parent, [ChildSettled(child=name)], lazy=True)
                elif found.state.is_over:
                    self._settled(parent, found)

    def _settled(self, parent: Run, child: Run) -> None:
        heirs = child.children()
        theirs = [meter_of(heir).used for heir in heirs]
        used = {
            name: amount - sum(one.get(name, 0.0) for one in theirs) for name, amount in meter_of(child).used.items()
        }
        settled = ChildSettled(
            child=child.state.id,
            values={name: amount for name, amount in used.items() if amount > 0},
            heirs=[heir.state.id for heir in heirs],
        )
        self._trajectories.record(parent, [settled], lazy=True)
        for heir in heirs:
            heir.parent = parent.state.id

    # --- before

    async def _made(self, call: Call) -> Run | None:
        """The run that a call with a budget opens, at once, so that calls which leave together count together.

        None where it may not be used; the stages below say why.

        Raises:
            JournalUnavailable: nobody knows what it has spent.
        """
        opening = Open(agent=call.agent, is_implicit=not call.is_run_named, budget=dict(call.budget or {}))
        run = await self._trajectories.named(call.trajectory, opening)
        return run if isinstance(run, Run) and (not call.is_agent_proven or run.state.agent == call.agent) else None

    def _admit(self, run: Run, call: Call) -> Refusal | None:
        meter, at, now = meter_of(run), self._clock.at(), self._clock.now()
        if call.budget is not None and (lower := tightened(meter.caps, call.budget)) and run.state.version:
            self._trajectories.has_budgets = True
            self._trajectories.record(run, [BudgetTightened(caps=lower)])
        is_step = not call.operation.is_read
        if is_step and run.state.collects(call.action.hex()):
            return None
        is_retry = _is_retry(run, call)
        for one in run.lineage():
            meter = meter_of(one)
            spent = meter.spent(at, is_step=is_step, is_retry=is_retry)
            if spent is not None and self._in_shadow is not None:
                self._in_shadow(call, "(budget)", Effect.DENY)
                return None
            if spent is not None:
                return _exhausted(call, one.state.id, spent, meter.view(at))
            if self._in_shadow is None:
                _bound(call, meter, at, now)
        return None

    # --- after

    def _meter(
        self, run: Run, call: Call, outcome: Outcome, taken: Mapping[str, float], answer: Outcome | None = None
    ) -> Outcome:
        """Take what the call cost. `answer` is what the tool answered, where the agent may be given something else."""
        meter, at = meter_of(run), self._clock.at()
        if taken and isinstance(answer or outcome, Rejected) and _is_unsent(run, call):
            spend(run, taken, -1.0)
            taken = {}
        told = self._told(call, answer or outcome, taken)
        if told:
            extra = {name: amount - taken.get(name, 0.0) for name, amount in told.items()}
            spend(run, {name: amount for name, amount in extra.items() if amount > 0})
            spend(run, {name: -amount for name, amount in extra.items() if amount < 0}, -1.0)
            spent = {name: amount for name, amount in told.items() if amount}
            if spent:
                self._trajectories.record(run, [UsageReported(values=spent, source="gateway")], lazy=True)
        warnings = meter.warnings(at)
        if not warnings:
            return outcome
        call.notice = shown(warnings)
        return _with_budget(outcome, meter.view(at))

    def _told(self, call: Call, outcome: Outcome, taken: Mapping[str, float]) -> dict[str, float]:
        """Return what the call spent of what no other record tells: money, tokens, repeats."""
        if isinstance(outcome, Success) and outcome.is_replay:
            return {name: 0.0 for name in ("usd", "retries") if name in taken}
        told = {"retries": taken.get("retries", 0.0) + max(0, call.attempt - 1)}
        usage = call.operation.usage
        if usage is not None and isinstance(outcome, Success):
            told["usd"] = usage.price
            for name, amount in _read(usage, outcome).items():
                told[name] = told.get(name, 0.0) + amount
        elif usage is not None and isinstance(outcome, InDoubt):
            told["usd"] = usage.price
        elif "usd" in taken:
            told["usd"] = 0.0
        return {name: amount for name, amount in told.items() if amount or name in taken}


def _known(call: Call, run: Run) -> dict[str, float]:
    """Return what a call is known to cost when it leaves.

    The call that opens a run is counted by the run's records, from which its meter is made.
    """
    known = {"calls": 1.0}
    if not call.operation.is_read:
        if run.state.collects(call.action.hex()):
            return {}
        known["steps"] = 1.0
        if _is_retry(run, call):
            known["retries"] = 1.0
    if call.operation.usage is not None and call.operation.usage.price:
        known["usd"] = call.operation.usage.price
    return known


def _is_retry(run: Run, call: Call) -> bool:
    number = run.state.actions.get(call.action.hex())
    step = None if number is None else run.state.steps[number]
    return step is not None and step.state is StepState.FAILED and step.fault != UNSENT_FAULT


def _is_unsent(run: Run, call: Call) -> bool:
    """Whether a call that was refused never left."""
    step = None if call.step is None else run.state.steps.get(call.step)
    if step is None or step.key != call.key:
        return True  # the run was read anew, and lacks its intent
    return step.state is StepState.FAILED and step.fault == UNSENT_FAULT


def _read(usage: Usage, outcome: Success) -> dict[str, float]:
    reply = outcome.reply
    if not usage.amounts or not isinstance(reply.body, BytesBody):
        return {}
    data = decoded(reply.headers, reply.body.data, EVALUATED_LIMIT)
    env: dict[str, object] = {"response": response_env(reply.status, reply.headers, data)}
    amounts: dict[str, float] = {}
    for name, expression in usage.amounts:
        try:
            value = expression(env)
        except ExpressionError:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            amounts[name] = float(value)
    return amounts


def _unknown(call: Call, error: Exception) -> Refusal:
    return Refusal(
        code=Code.JOURNAL_UNAVAILABLE,
        dependency=call.tool.name,
        detail=f"What run {call.trajectory} has spent cannot be read ({tellable(error)}), so nothing was sent to "
        f"{call.tool.name}. Try again later.",
        retry_after_ms=1000,
    )


def _bound(call: Call, meter: Meter, at: int, now: float) -> None:
    """Let a call take no longer, and be tried no more often, than its run can afford."""
    if "seconds" in meter.caps:
        call.deadline = min(call.deadline, now + meter.left("seconds", at))
    if "retries" in meter.caps:
        most = 1 + int(meter.left("retries", at))
        call.attempts_most = most if call.attempts_most is None else min(most, call.attempts_most)


def _exhausted(call: Call, run: str, spent: Spent, view: dict[str, object]) -> Refusal:
    return Refusal(
        code=Code.BUDGET_EXHAUSTED,
        dependency=call.tool.name,
        detail=f"{call.tool.name}.{call.operation.name} was not sent: run {run} has spent {spent.used:g} of "
        f"{spent.cap:g} {spent.name}. Finish the run with what there is, or abort it; a new run needs a budget of its own.",
        extra={"budget": {"spent": spent.name, "trajectory": run, **view}},
    )


def _with_budget(outcome: Outcome, view: dict[str, object]) -> Outcome:
    """Say in a refusal, too, how the budget stands."""
    match outcome:
        case Rejected(refusal):
            return Rejected(replace(refusal, extra={"budget": view, **refusal.extra}))
        case InDoubt(refusal=refusal) | Failed(refusal=refusal) if refusal is not None:
            return replace(outcome, refusal=replace(refusal, extra={"budget": view, **refusal.extra}))
        case _:
            return outcome
