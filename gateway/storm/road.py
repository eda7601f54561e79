"""A gateway in virtual time without its coroutines: the rules that the stages hold, asked one after the other.

`Breaker`, `Admission` with its pool and meter, `RetryBudget`, `RecentFailures`, `decide_retry`, `conclude`, `classify` and
`verdict_of` are the gateway's own. What is said again here is only the order in which the stages ask them, so that a call
is two events and not five coroutines. `staged` is the same gateway made of the stages themselves, and
`tests/storm/test_road.py` holds the recordings of both to be equal, to the byte, for every scenario and policy.

Left to the stages: calls that a probe can settle, and pivots, which may not be canaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from heapq import heappush

from gateway.core.admission import AdmissionRefusal, Ticket, TicketState
from gateway.core.breaker import Breaker, BreakerRefusal, Permit, State, Transition, Verdict, verdict_of
from gateway.core.codes import Code
from gateway.core.fault import Broken
from gateway.core.manifest import Tier
from gateway.core.message import Reply
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.retry import RecentFailures, RetryAfter, RetryBudget, conclude, decide_retry
from gateway.core.settle import may_resend_until
from gateway.core.tool import Catalog, ToolSpec
from gateway.core.verdict import classify
from gateway.stages.admission import Pool
from gateway.stages.breaker import LEASE_SLACK_S
from gateway.stages.retry import WORKING
from gateway.storm.scenario import LoadSettings, Scenario
from gateway.storm.trip import Gateway, Lab, Station, Trip
from gateway.storm.world import STANDING

__all__ = ["Road"]

_GRANTED, _HALF_OPEN = TicketState.GRANTED, State.HALF_OPEN
_TROUBLED = (Failed, InDoubt)
_REFUSED = {code: Rejected(Refusal(code=code, detail="")) for code in Code}


class Road(Gateway):
    """One gateway: a breaker for each tool, a pool and a budget for each domain."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab, self.number = lab, number
        self.recent = RecentFailures()
        self._guards: dict[str, _Guard] = {}
        self._pools: dict[str, Pool] = {}
        self._budgets: dict[str, RetryBudget] = {}
        for _, tool in sorted(lab.catalog.tools.items()):
            self.guard(tool).tools.append(tool.name)

    @staticmethod
    def can_take(scenario: Scenario, catalog: Catalog) -> bool:
        """Return whether the road is the whole road for every call of a scenario."""
        for load in scenario.load:
            method, _, target = load.request.partition(" ")
            operation = catalog.tools[load.tool].match(method, target).operation
            if operation.tier is Tier.PIVOT or (operation.probe is not None and not operation.is_read):
                return False
        return True

    def station(self, load: LoadSettings) -> Station:
        """Return where the calls of a load begin."""
        return _Station(self, load)

    def guard(self, tool: ToolSpec) -> _Guard:
        """Return a tool's breaker, under the settings of the first by name of those that share it."""
        return self._guards.setdefault(tool.breaker_key or tool.name, _Guard(Breaker(tool.breaker)))

    def pool(self, tool: ToolSpec) -> Pool:
        """Return the pool of a tool's domain."""
        return self._pools.setdefault(tool.domain.name, Pool(self.lab.clock, tool.domain.admission))

    def budget(self, tool: ToolSpec) -> RetryBudget:
        """Return the budget of a tool's domain, with the floor of the first tool that is called."""
        known = self._budgets.get(tool.domain.name)
        if known is None:
            known = RetryBudget(tool.retry.budget_floor, self.lab.clock.now())
            self._budgets[tool.domain.name] = known
        return known

    def report(self, guard: _Guard, moves: tuple[Transition, ...]) -> None:
        """Note moves of a breaker, once for each tool that it stands for."""
        guard.is_half_open = moves[-1].after is _HALF_OPEN
        for move in moves:
            for tool in guard.tools:
                self.lab.recording.moves.add(
                    self.lab.loop.now, self.number, tool, move.after.value, move.cause.value, move.cooldown_s
                )


@dataclass(slots=True)
class _Guard:
    """A breaker and the tools that it stands for."""

    breaker: Breaker
    tools: list[str] = field(default_factory=list)
    is_half_open: bool = False


class _Station(Station):
    """What the gateway holds ready for the calls of one load."""

    def __init__(self, road: Road, load: LoadSettings) -> None:
        super().__init__(road.lab, load)
        self.kind = _Trip
        self.road, self.recent = road, road.recent
        self.guard = road.guard(self.tool)
        self.breaker = self.guard.breaker
        self.pool = road.pool(self.tool)
        self.admission = self.pool.admission
        self.has_rate = self.tool.domain.admission.rate is not None
        self.world = road.lab.world.tool(self.tool.name)
        self.arrived = road.lab.recording.attempts.add
        self.budget: RetryBudget | None = None
        self.retry, self.has_key = self.tool.retry, self.tool.idempotency is not None
        self.ratio = self.retry.budget_ratio
        self.is_smeared = self.world.is_smeared
        self.first_byte_s = self.operation.timeouts.first_byte
        self.trials = 0
        self.known = {id(exchange): self.judged(exchange) for exchange in STANDING}

    def first_budget(self) -> RetryBudget:
        """Return the budget that the calls draw on: there is one from the first call on."""
        self.budget = self.road.budget(self.tool)
        return self.budget

    def judged(self, exchange: Reply | Broken) -> tuple[Outcome, Verdict]:
        """Return what became of an attempt, and what that says about the tool."""
        outcome = classify(exchange, self.tool, self.operation, self.clock.at())
        return outcome, verdict_of(outcome, self.tool.breaker)


class _Trip(Trip):
    """A call on its way. `outcome` is what its attempts amount to so far."""

    __slots__ = (
        "attempt", "budget", "exchange", "first_sent", "is_charged", "is_prompt", "is_trial", "outcome", "permit", "sent",
        "ticket",
    )  # fmt: skip
    station: _Station
    budget: RetryBudget
    exchange: Reply | Broken
    outcome: Outcome | None
    permit: Permit
    ticket: Ticket

    def send(self, now: float) -> None:
        """Begin the first attempt, unless the agent repeats what failed and cannot afford it."""
        station = self.station
        self.budget = station.budget or station.first_budget()
        self.attempt, self.first_sent, self.outcome, self.is_charged = 1, now, None, False
        if station.insists and station.recent.is_repeat(self, now):
            if not self.budget.charge(now):
                self.end(_REFUSED[Code.RETRY_BUDGET], now)
                return
            self.is_charged = True
        self._queue(now)

    def _queue(self, now: float) -> None:
        """Ask the breaker, then for a slot; who is granted one at once goes on at once.

        Where no rate is metered a slot is asked of the admission itself, which is what the pool does first.
        """
        station = self.station
        refusal = station.breaker.peek(now)
        if refusal is not None:
            self._circuit_open(refusal, now)
            return
        if not station.has_rate:
            granted = station.admission.grant_at_once(self.known_as, is_ours=False, now=now, deadline=self.deadline)
            if granted is not None:
                self.ticket, self.is_prompt = granted, True
                self._dispatch(now)
                return
        self._wait(now)

    def _wait(self, now: float) -> None:
        """Ask the pool, and wait for the slot if there is hope."""
        station, self.is_prompt = self.station, False
        pool = station.pool
        ticket = pool.request(self.known_as, self.deadline, is_ours=False)
        if type(ticket) is AdmissionRefusal:
            self._conclude(_REFUSED[ticket.code], now)
            return
        assert type(ticket) is Ticket
        self.ticket = ticket
        if ticket.state is _GRANTED:
            pool.use(ticket)
            self._dispatch(now)
            return
        pool.on_grant(ticket, partial(station.loop.soon.append, self._granted))
        station.loop.wake(now + (self.deadline - now), partial(self._late, ticket))

    def _granted(self) -> None:
        self.station.pool.use(self.ticket)
        self._dispatch(self.station.loop.now)

    def _late(self, ticket: Ticket) -> None:
        if ticket.state is TicketState.WAITING or ticket.state is TicketState.EXPIRED:
            pool, now = self.station.pool, self.station.loop.now
            pool.leave(ticket)
            pool.give_back(ticket)
            self._conclude(_REFUSED[Code.QUEUE_DEADLINE], now)

    def _dispatch(self, now: float) -> None:
        """Take a permit and be sent."""
        station, guard = self.station, self.station.guard
        left_s = self.deadline - now
        answer = station.breaker.acquire(
            now, may_be_canary=True, lease_s=(left_s if left_s > 0 else 0.0) + LEASE_SLACK_S
        )
        if type(answer) is BreakerRefusal:
            self._give_back(now)
            self._circuit_open(answer, now)
            return
        assert type(answer) is Permit
        if answer.transitions:
            station.road.report(guard, answer.transitions)
        self.permit, self.sent = answer, now
        self.is_trial = guard.is_half_open
        if self.is_trial:
            station.trials += 1
        if station.is_smeared:
            smear_s = station.world.smear_s()
            station.loop.wake(now + smear_s, partial(self._smeared, smear_s))
        else:
            self._arrive(now, station.first_byte_s)

    def _smeared(self, smear_s: float) -> None:
        station = self.station
        self._arrive(station.loop.now, max(0.0, station.first_byte_s - smear_s))

    def _arrive(self, now: float, patience_s: float) -> None:
        """Be at the tool, and wait for what comes of it."""
        station, left_s = self.station, self.deadline - self.sent
        loop, world = station.loop, station.world
        station.arrived(now, station.name, self.attempt, world.queued(now), station.trials if self.is_trial else 0)
        takes_s, self.exchange = world.answer(now, patience_s if patience_s < left_s else max(0.0, left_s))
        heappush(loop.timers, (now + takes_s, next(loop.order), self._answered))

    def _answered(self) -> None:
        """Give permit and slot back with what the answer shows."""
        station, exchange = self.station, self.exchange
        now = station.loop.now
        if self.is_trial:
            station.trials -= 1
        outcome, verdict = station.known.get(id(exchange)) or station.judged(exchange)
        moves = station.breaker.settle(self.permit, verdict, now, now - self.sent)
        if moves:
            station.road.report(station.guard, moves)
        self._give_back(now)
        self._conclude(outcome, now)

    def _give_back(self, now: float) -> None:
        """Return the slot; past the pool if neither a rate nor anybody in its queue waits for that."""
        admission = self.station.admission
        if self.is_prompt and not admission.has_waiting:
            admission.give_back(self.ticket, now)
        else:
            self.station.pool.give_back(self.ticket)

    def _circuit_open(self, refusal: BreakerRefusal, now: float) -> None:
        if refusal.transitions:
            self.station.road.report(self.station.guard, refusal.transitions)
        self._conclude(_REFUSED[Code.CIRCUIT_OPEN], now)

    def _conclude(self, last: Outcome, now: float) -> None:
        """End the call, or wait for its next attempt."""
        station, earlier = self.station, self.outcome
        if self.is_charged and _shows_work(last):
            self.budget.refund()
        if earlier is None:
            outcome = last
            if not self.is_charged and type(last) is not Rejected:
                self.budget.deposit(station.ratio, now)
        else:
            outcome = conclude(earlier, last, has_key=station.has_key)
        self.outcome = outcome
        if type(outcome) is not Success and (delay_s := self._delay_s(last, outcome, now)) is not None:
            loop = station.loop
            heappush(loop.timers, (now + delay_s, next(loop.order), self._again))
            return
        if station.insists and type(outcome) is not Rejected:
            self._remember(outcome, now)
        self.end(outcome, now)

    def _delay_s(self, last: Outcome, outcome: Outcome, now: float) -> float | None:
        """Return the wait before the next attempt, already paid for, or None if the outcome is final."""
        station = self.station
        u = station.clock.draw()
        if type(last) is Rejected:
            return None
        decision = decide_retry(
            outcome,
            attempt=self.attempt,
            settings=station.retry,
            now=now,
            deadline=self.deadline,
            u=u,
            is_replayable=True,
            key_until=may_resend_until(station.tool, station.operation, self.first_sent),
        )
        return decision.delay_s if type(decision) is RetryAfter and self.budget.charge(now) else None

    def _again(self) -> None:
        self.attempt += 1
        self.is_charged = True
        self._queue(self.station.loop.now)

    def _remember(self, outcome: Outcome, now: float) -> None:
        if _shows_work(outcome):
            self.station.recent.forget(self)
        else:
            self.station.recent.note(self, now)


def _shows_work(outcome: Outcome) -> bool:
    """Return whether an outcome is not one of a tool in trouble."""
    return not isinstance(outcome, _TROUBLED) or outcome.fault in WORKING
