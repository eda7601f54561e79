"""Who goes next: slots, a bounded queue and a rate, granted together and fairly.

One queue grants slot and rate token in the same step, so that neither is held while waiting for the other. The next grant
goes to the waiting agent with the fewest slots in use (max-min fairness: no agent can get more by asking more often), ties
to whoever waits longest; calls of one agent go in the order they came. Compensators and probes have a queue of their own
that goes first, and slots that forward calls may not use, so that a storm of forward calls cannot keep a run from being
undone. A call that cannot expect its turn before its deadline is told so at once instead of at its deadline.

The machine does not meter the rate: it is asked for one grant at a time, as often as the meter has a token
(`is_grantable`, `grant_next`). What always holds: calls in flight <= concurrency, grants == releases + calls in flight,
and a ticket given back returns what it holds exactly once, wherever its grant and its cancellation crossed.

Left out: adaptive limits (they follow later, as a change of `concurrency`) and weights of agents.

Source: Bertsekas & Gallager, "Data Networks", section 6.5.2 (max-min fairness); failsafe-lib/failsafe#393 and
Netflix/concurrency-limits#179 (grants that raced a time-out).
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated

from annotated_types import Ge, Gt

from gateway.core.codes import Code
from gateway.core.setting import SECONDS, Doc
from gateway.core.value import frozen

__all__ = [
    "Admission",
    "AdmissionRefusal",
    "AdmissionSettings",
    "AdmissionStatistics",
    "RateSettings",
    "Ticket",
    "TicketState",
    "WhenFull",
]

# Weight of a new service time in the average, and how far one may stand out: one stream of an hour among calls of a
# second must not make the queue look impassable.
_EWMA_WEIGHT = 0.2
_EWMA_OUTLIER = 10.0
# What a refused call is told to wait before any call has ended.
_UNKNOWN_WAIT_S = 1.0


class WhenFull(StrEnum):
    """What a call meets when every slot is taken."""

    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """Calls per period, as a leaky bucket that holds `calls`."""

    calls: Annotated[float, Gt(0), Doc("Calls that may start in one period.")]
    per: Annotated[float, SECONDS, Gt(0), Doc("Length of the period.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Slots, queue and rate of a domain."""

    concurrency: Annotated[int, Ge(1), Doc("Calls that may be at the domain's tools at once.")] = 16
    reserved: Annotated[int, Ge(0), Doc("Slots of these that only compensators may use.")] = 1
    queue: Annotated[int, Ge(0), Doc("Calls that may wait for a slot.")] = 32
    when_full: Annotated[WhenFull, Doc("Wait in the queue, or refuse at once.")] = WhenFull.WAIT
    rate: Annotated[RateSettings | None, Doc("Bound on calls started per period.")] = None


class TicketState(Enum):
    """Where a ticket stands."""

    WAITING = "waiting"
    GRANTED = "granted"
    EXPIRED = "expired"
    DONE = "done"


# Members that every call is compared with, looked up once (docs/adr/0092).
_WAITING, _GRANTED, _DONE = TicketState.WAITING, TicketState.GRANTED, TicketState.DONE


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the queue, then a slot. Given back by `Admission.give_back`, in whatever state it is."""

    agent: str
    is_ours: bool
    seq: int
    enqueued_at: float
    deadline: float
    state: TicketState = TicketState.WAITING
    granted_at: float = 0.0


@frozen(kw_only=False)
class AdmissionRefusal:
    """No place. `wait_s` is when one can be expected."""

    code: Code
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatistics:
    """A look inside. Counts since start; `service_s` is the average time that a call holds its slot."""

    concurrency: int
    reserved: int
    in_flight: int
    waiting: int
    grants: int
    releases: int
    refusals: int
    service_s: float | None
    expected_wait_s: float


class Admission:
    """The pool of one domain. Every method is O(log n) in the number of waiting agents; none waits or calls back."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._forward_slots = _forward_slots(settings)
        self._ours = _FairQueue()
        self._forward = _FairQueue()
        self._seq = itertools.count()
        self._service_s: float | None = None
        self._grants = 0
        self._releases = 0
        self._refusals = 0

    def request(
        self, agent: str, *, is_ours: bool, now: float, deadline: float, has_token: bool
    ) -> Ticket | AdmissionRefusal:
        """Return a place in the queue, granted or not by the next `grant_next`, or why there is none.

        Args:
            agent: between whom to be fair.
            is_ours: a compensator or probe: it goes first, may use reserved slots, and always may wait.
            now: monotonic seconds.
            deadline: monotonic seconds after which the place is worthless.
            has_token: whether the meter has a rate token now.
        """
        refusal = self.refusal(is_ours=is_ours, now=now, deadline=deadline, has_token=has_token)
        if refusal is not None:
            self.refused()
            return refusal
        ticket = Ticket(agent, is_ours, next(self._seq), now, deadline)
        self._queue(is_ours).push(ticket)
        return ticket

    def refusal(self, *, is_ours: bool, now: float, deadline: float, has_token: bool) -> AdmissionRefusal | None:
        """Return why `request` would give no place, or None if it would. Arguments as there; changes nothing."""
        has_slot = self._has_slot(is_ours)
        if deadline <= now:
            return AdmissionRefusal(Code.QUEUE_DEADLINE, self._expected_wait_s(is_ours, has_token))
        if has_slot and has_token and not self._ahead(is_ours):
            return None
        wait_s = self._expected_wait_s(is_ours, has_token)
        if self._is_full(is_ours):
            return AdmissionRefusal(Code.RATE_LIMITED if has_slot else Code.BULKHEAD_FULL, wait_s or _UNKNOWN_WAIT_S)
        if now + wait_s > deadline:
            return AdmissionRefusal(Code.QUEUE_DEADLINE, wait_s)
        return None

    def refused(self) -> None:
        """Count a caller that was told a `refusal`."""
        self._refusals += 1

    def grant_at_once(self, agent: str, *, is_ours: bool, now: float, deadline: float) -> Ticket | None:
        """Return a ticket with a slot if nobody who would go first waits and a slot is free; else None, and nothing changed.

        To be called with a rate token in hand, which the grant uses up. Same as `request` and `grant_next`, for the many
        calls that meet no queue. Arguments as for `request`.
        """
        ours, forward = self._ours, self._forward
        if ours.waiting or deadline <= now or ours.in_use + forward.in_use >= self._settings.concurrency:
            return None
        if is_ours:
            ours.occupy(agent)
        elif forward.waiting or forward.in_use >= self._forward_slots:
            return None
        else:
            forward.occupy(agent)
        self._grants += 1
        return Ticket(agent, is_ours, next(self._seq), now, deadline, _GRANTED, now)

    def enter(self, agent: str, now: float, deadline: float) -> Holding | None:
        """Give a forward call a slot where nobody waits and one is free; return what its agent has, or None, and nothing
        changed.

        Same as `grant_at_once` without a ticket, for the many calls that meet no queue and give the slot back themselves, by
        `leave`.
        """
        ours, forward = self._ours, self._forward
        in_use = forward.in_use
        if ours.waiting or forward.waiting or deadline <= now or in_use >= self._forward_slots:
            return None
        if ours.in_use + in_use >= self._settings.concurrency:
            return None
        holdings = forward.holdings
        holding = holdings.get(agent)
        if holding is None:
            holding = holdings[agent] = Holding(agent)
        holding.in_use += 1
        forward.in_use = in_use + 1
        self._grants += 1
        return holding

    def leave(self, holding: Holding, granted_at: float, now: float) -> bool:
        """Give the slot of `enter` back, once; return whether somebody waits for one."""
        forward = self._forward
        holding.in_use -= 1
        forward.in_use -= 1
        if not holding.in_use or holding.tickets:
            forward.changed(holding)
        self._releases += 1
        elapsed_s, service_s = now - granted_at, self._service_s
        if service_s is None or elapsed_s > service_s:
            self._learn(elapsed_s)
        else:
            self._service_s = service_s + _EWMA_WEIGHT * (elapsed_s - service_s)
        return forward.waiting > 0 or self._ours.waiting > 0

    @property
    def has_waiting(self) -> bool:
        """Whether somebody waits."""
        return bool(self._ours.waiting or self._forward.waiting)

    @property
    def is_grantable(self) -> bool:
        """Whether somebody waits for whom there is a slot; only a rate token is missing."""
        if self._ours.waiting and self._has_slot(is_ours=True):
            return True
        return self._forward.waiting > 0 and self._has_slot(is_ours=False)

    def grant_next(self, now: float) -> Ticket | None:
        """Give a slot to the next in turn and return its ticket; None if nobody can have one.

        To be called with a rate token in hand, which the grant uses up. Tickets past their deadline are marked and left.
        """
        for is_ours in (True, False):
            queue = self._queue(is_ours)
            while queue.waiting and self._has_slot(is_ours) and (ticket := queue.pop()) is not None:
                if ticket.deadline <= now:
                    ticket.state = TicketState.EXPIRED
                    continue
                ticket.state, ticket.granted_at = _GRANTED, now
                queue.occupy(ticket.agent)
                self._grants += 1
                return ticket
        return None

    def give_back(self, ticket: Ticket, now: float, *, was_used: bool = True) -> None:
        """Return what the ticket holds: its place, its slot, or nothing. May be repeated.

        `was_used` is False for a slot that came too late to be used; its time says nothing of the service.
        """
        queue = self._ours if ticket.is_ours else self._forward
        if ticket.state is _GRANTED:
            queue.vacate(ticket.agent)
            self._releases += 1
            if was_used:
                self._learn(now - ticket.granted_at)
        elif ticket.state is _WAITING:
            queue.remove(ticket)
        ticket.state = _DONE

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """Go on under other settings. Slots in use stay in use; where there are now too many, none is granted until
        enough were given back."""
        self._settings = settings
        self._forward_slots = _forward_slots(settings)

    def statistics(self) -> AdmissionStatistics:
        """Return a look inside; changes nothing."""
        return AdmissionStatistics(
            concurrency=self._settings.concurrency,
            reserved=self._settings.concurrency - self._forward_slots,
            in_flight=self._in_flight,
            waiting=self._ours.waiting + self._forward.waiting,
            grants=self._grants,
            releases=self._releases,
            refusals=self._refusals,
            service_s=self._service_s,
            expected_wait_s=self._expected_wait_s(is_ours=False, has_token=True),
        )

    @property
    def settings(self) -> AdmissionSettings:
        """The settings in force."""
        return self._settings

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or is in flight."""
        return not (self._in_flight or self._ours.waiting or self._forward.waiting)

    @property
    def _in_flight(self) -> int:
        return self._ours.in_use + self._forward.in_use

    def _queue(self, is_ours: bool) -> _FairQueue:
        return self._ours if is_ours else self._forward

    def _has_slot(self, is_ours: bool) -> bool:
        if self._in_flight >= self._settings.concurrency:
            return False
        return is_ours or self._forward.in_use < self._forward_slots

    def _ahead(self, is_ours: bool) -> int:
        return self._ours.waiting + (0 if is_ours else self._forward.waiting)

    def _is_full(self, is_ours: bool) -> bool:
        """Whether a call that has to wait has nowhere to. Ours may always wait, in a queue as long as the domain is wide."""
        settings = self._settings
        if is_ours:
            return self._ours.waiting >= max(settings.queue, settings.concurrency)
        return settings.when_full is WhenFull.REFUSE or self._forward.waiting >= settings.queue

    def _expected_wait_s(self, is_ours: bool, has_token: bool) -> float:
        """Return when the next to come can expect its turn: by the slots' turnover and by the rate, the later."""
        turn = self._ahead(is_ours) + 1
        by_slots_s = by_rate_s = 0.0
        if not self._has_slot(is_ours) and self._service_s is not None:
            slots = self._settings.concurrency if is_ours else self._forward_slots
            by_slots_s = turn * self._service_s / slots
        if not has_token and self._settings.rate is not None:
            by_rate_s = turn * self._settings.rate.per / self._settings.rate.calls
        return max(by_slots_s, by_rate_s)

    def _learn(self, elapsed_s: float) -> None:
        if self._service_s is None:
            self._service_s = elapsed_s
            return
        most_s = _EWMA_OUTLIER * (self._service_s if self._service_s > 0.001 else 0.001)
        self._service_s += _EWMA_WEIGHT * ((elapsed_s if elapsed_s < most_s else most_s) - self._service_s)


def _forward_slots(settings: AdmissionSettings) -> int:
    """Return the slots that forward calls may use: at least one, else a small domain could never be called."""
    return max(1, settings.concurrency - settings.reserved)


_NONE: OrderedDict[int, Ticket] = OrderedDict()
"""What agents that never waited have; never written to. Most calls wait for nothing, and to make one costs them more."""


class Holding:
    """What one agent has: tickets that wait, in order, and slots in use. `version` tells its newest offer."""

    __slots__ = ("in_use", "name", "tickets", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_use = 0
        self.tickets = _NONE
        self.version = -1


class _FairQueue:
    """Waiting tickets and slots in use by agent; pops the oldest ticket of the agent with the fewest slots.

    A heap of offers (slots in use, age of the oldest ticket) that is corrected lazily: an agent whose place changed makes
    a new offer, older ones are skipped when they come up, and are swept out when they are the majority.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.in_use = 0
        self.holdings: dict[str, Holding] = {}
        self._offers: list[tuple[int, int, int, Holding]] = []
        self._versions = itertools.count()

    def push(self, ticket: Ticket) -> None:
        agent = self.holdings.get(ticket.agent)
        if agent is None:
            agent = self.holdings[ticket.agent] = Holding(ticket.agent)
        if agent.tickets:
            agent.tickets[ticket.seq] = ticket
        else:
            agent.tickets = OrderedDict(((ticket.seq, ticket),))
            self._offer(agent)
        self.waiting += 1

    def remove(self, ticket: Ticket) -> None:
        agent = self.holdings[ticket.agent]
        was_first = next(iter(agent.tickets)) == ticket.seq
        del agent.tickets[ticket.seq]
        self.waiting -= 1
        self._renew(agent, has_moved=was_first)

    def pop(self) -> Ticket | None:
        while self._offers:
            _, _, version, agent = heapq.heappop(self._offers)
            if version == agent.version and agent.tickets:
                _, ticket = agent.tickets.popitem(last=False)
                self.waiting -= 1
                self._renew(agent, has_moved=True)
                return ticket
        return None

    def occupy(self, name: str) -> None:
        agent = self.holdings.get(name)
        if agent is None:
            agent = self.holdings[name] = Holding(name)
        agent.in_use += 1
        self.in_use += 1
        if agent.tickets:
            self._offer(agent)

    def vacate(self, name: str) -> None:
        agent = self.holdings[name]
        agent.in_use -= 1
        self.in_use -= 1
        self.changed(agent)

    def changed(self, agent: Holding) -> None:
        """An agent has a slot less: its next ticket goes before others now; forget one that has nothing left."""
        if agent.tickets:
            self._offer(agent)
        elif not agent.in_use:
            del self.holdings[agent.name]

    def _renew(self, agent: Holding, *, has_moved: bool) -> None:
        """Forget an agent that has nothing left; make a new offer for one whose place changed."""
        if not agent.tickets and not agent.in_use:
            del self.holdings[agent.name]
        elif agent.tickets and has_moved:
            self._offer(agent)

    def _offer(self, agent: Holding) -> None:
        agent.version = next(self._versions)
        heapq.heappush(self._offers, (agent.in_use, next(iter(agent.tickets)), agent.version, agent))
        if len(self._offers) > 2 * len(self.holdings) + 16:
            self._offers = [offer for offer in self._offers if offer[2] == offer[3].version and offer[3].tickets]
            heapq.heapify(self._offers)
