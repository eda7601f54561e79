"""Admission: fair, bounded, and nothing is ever lost; examples, then any schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from gateway.core.admission import (
    Admission,
    AdmissionRefusal,
    AdmissionSettings,
    Holding,
    RateSettings,
    Ticket,
    TicketState,
    WhenFull,
)
from gateway.core.codes import Code


def pool(**fields: object) -> Admission:
    fields.setdefault("reserved", 0)
    return Admission(AdmissionSettings(**fields))  # type: ignore[arg-type]


def ask(
    admission: Admission,
    agent: str = "a",
    *,
    now: float = 0.0,
    deadline: float = 100.0,
    is_ours: bool = False,
    has_token: bool = True,
) -> Ticket | AdmissionRefusal:
    return admission.request(agent, is_ours=is_ours, now=now, deadline=deadline, has_token=has_token)


def queued(admission: Admission, agent: str = "a", **fields: object) -> Ticket:
    ticket = ask(admission, agent, **fields)  # type: ignore[arg-type]
    assert isinstance(ticket, Ticket), ticket
    return ticket


def granted(admission: Admission, agent: str = "a", **fields: object) -> Ticket:
    ticket = queued(admission, agent, **fields)
    assert admission.grant_next(ticket.enqueued_at) is ticket
    return ticket


class TestSlotsAndQueue:
    def test_calls_go_at_once_while_there_are_slots(self) -> None:
        admission = pool(concurrency=2)
        granted(admission)
        granted(admission)
        waiting = queued(admission)
        assert admission.grant_next(0.0) is None
        assert waiting.state is TicketState.WAITING

    def test_a_slot_that_comes_back_goes_to_the_next_in_turn(self) -> None:
        admission = pool(concurrency=1)
        first, second, third = granted(admission), queued(admission), queued(admission)
        admission.give_back(first, 1.0)
        assert admission.grant_next(1.0) is second
        assert third.state is TicketState.WAITING

    def test_a_full_queue_refuses_with_the_wait_to_be_expected(self) -> None:
        admission = pool(concurrency=1, queue=2)
        admission.give_back(granted(admission), 4.0)
        granted(admission, now=4.0)
        queued(admission, now=4.0), queued(admission, now=4.0)
        assert ask(admission, now=4.0) == AdmissionRefusal(Code.BULKHEAD_FULL, 12.0)

    def test_a_domain_that_refuses_when_full_has_no_queue(self) -> None:
        admission = pool(concurrency=1, when_full=WhenFull.REFUSE)
        granted(admission)
        assert ask(admission) == AdmissionRefusal(Code.BULKHEAD_FULL, 1.0)

    def test_without_a_rate_token_a_refusal_says_so(self) -> None:
        admission = pool(when_full=WhenFull.REFUSE, rate=RateSettings(calls=10, per=5.0))
        assert ask(admission, has_token=False) == AdmissionRefusal(Code.RATE_LIMITED, 0.5)

    def test_newcomers_do_not_barge_in_before_those_who_wait_for_the_rate(self) -> None:
        """Regression: agronholm/anyio#1170, where a late comer stole what a woken waiter had been promised."""
        admission = pool(rate=RateSettings(calls=1))
        early = queued(admission, has_token=False)
        late = queued(admission, has_token=True)
        assert admission.is_grantable
        assert admission.grant_next(0.0) is early
        assert admission.grant_next(0.0) is late


class TestFairness:
    def test_calls_of_one_agent_go_in_order(self) -> None:
        admission = pool(concurrency=1)
        first = granted(admission)
        waiting = [queued(admission) for _ in range(5)]
        order = []
        for _ in waiting:
            admission.give_back(first, 1.0)
            first = admission.grant_next(1.0)  # type: ignore[assignment]
            order.append(first)
        assert order == waiting

    def test_the_agent_with_the_fewest_slots_goes_first(self) -> None:
        """One agent with a hundred calls cannot starve another with one."""
        admission = pool(concurrency=4, queue=200)
        held = [granted(admission, "greedy") for _ in range(4)]
        for _ in range(100):
            queued(admission, "greedy")
        modest = queued(admission, "modest")
        admission.give_back(held[0], 1.0)
        assert admission.grant_next(1.0) is modest

    def test_ties_go_to_the_longest_waiting(self) -> None:
        admission = pool(concurrency=1)
        held = granted(admission, "x")
        tickets = [queued(admission, agent) for agent in "bac"]
        admission.give_back(held, 1.0)
        assert admission.grant_next(1.0) is tickets[0]

    def test_an_agent_whose_first_call_leaves_loses_the_place_of_that_call(self) -> None:
        admission = pool(concurrency=1)
        held = granted(admission, "x")
        leaving, waiting, _ = queued(admission, "a"), queued(admission, "b"), queued(admission, "a")
        admission.give_back(leaving, 0.5)
        admission.give_back(held, 1.0)
        assert admission.grant_next(1.0) is waiting

    def test_slots_even_out_between_agents_that_always_want_more(self) -> None:
        admission = pool(concurrency=6, queue=1_000)
        in_flight = [granted(admission, "a") for _ in range(6)]
        for agent in "abc":
            for _ in range(50):
                queued(admission, agent)
        for _ in range(30):
            admission.give_back(in_flight.pop(0), 1.0)
            in_flight.append(admission.grant_next(1.0))  # type: ignore[arg-type]
        assert sorted(ticket.agent for ticket in in_flight) == list("aabbcc")


class TestCompensators:
    def test_they_have_slots_that_forward_calls_cannot_take(self) -> None:
        admission = Admission(AdmissionSettings(concurrency=3, reserved=1))
        granted(admission), granted(admission)
        forward = queued(admission)
        assert admission.grant_next(0.0) is None
        ours = granted(admission, is_ours=True)
        assert (ours.state, forward.state) == (TicketState.GRANTED, TicketState.WAITING)

    def test_they_go_before_forward_calls_that_wait(self) -> None:
        admission = pool(concurrency=1)
        held, forward = granted(admission), queued(admission)
        ours = queued(admission, is_ours=True)
        admission.give_back(held, 1.0)
        assert admission.grant_next(1.0) is ours
        assert forward.state is TicketState.WAITING

    def test_a_full_forward_queue_does_not_refuse_them(self) -> None:
        admission = pool(concurrency=1, queue=0)
        granted(admission)
        assert isinstance(ask(admission), AdmissionRefusal)
        assert isinstance(ask(admission, is_ours=True), Ticket)

    def test_a_domain_of_one_slot_still_serves_forward_calls(self) -> None:
        granted(Admission(AdmissionSettings(concurrency=1, reserved=1)))


class TestDeadlines:
    def test_a_call_that_cannot_expect_its_turn_in_time_is_told_at_once(self) -> None:
        admission = pool(concurrency=1)
        admission.give_back(granted(admission), 10.0)
        granted(admission, now=10.0)
        assert ask(admission, now=10.0, deadline=15.0) == AdmissionRefusal(Code.QUEUE_DEADLINE, 10.0)
        assert isinstance(ask(admission, now=10.0, deadline=21.0), Ticket)

    def test_no_time_left_is_no_time_and_not_no_limit(self) -> None:
        """Regression: aws-powertools/powertools-lambda-python#4759."""
        refusal = ask(pool(), now=5.0, deadline=5.0)
        assert isinstance(refusal, AdmissionRefusal)
        assert refusal.code is Code.QUEUE_DEADLINE

    def test_an_expired_waiter_never_gets_a_slot(self) -> None:
        """Regression: failsafe-lib/failsafe#393, where a slot went to a waiter that was gone, and was lost."""
        admission = pool(concurrency=1)
        held = granted(admission)
        gone, there = queued(admission, "b", deadline=2.0), queued(admission, "c")
        admission.give_back(held, 3.0)
        assert admission.grant_next(3.0) is there
        assert gone.state is TicketState.EXPIRED
        admission.give_back(gone, 3.0)
        admission.give_back(there, 3.0)
        assert admission.is_idle

    def test_one_long_stream_does_not_make_the_queue_look_impassable(self) -> None:
        admission = pool(concurrency=1)
        for _ in range(20):
            admission.give_back(granted(admission), 1.0)
        admission.give_back(granted(admission), 3_600.0)
        assert admission.statistics().service_s == pytest.approx(2.8)


class TestGivingBack:
    def test_a_waiter_that_leaves_takes_nothing_along(self) -> None:
        admission = pool(concurrency=1)
        held, leaving, staying = granted(admission), queued(admission), queued(admission)
        admission.give_back(leaving, 0.5)
        admission.give_back(held, 1.0)
        assert admission.grant_next(1.0) is staying

    def test_a_grant_that_raced_a_cancel_gives_its_slot_back(self) -> None:
        """Regression: Netflix/concurrency-limits#179, a token lost when the grant raced the time-out."""
        admission = pool(concurrency=1)
        ticket = granted(admission)
        admission.give_back(ticket, 0.0, was_used=False)
        assert admission.is_idle
        assert admission.statistics().service_s is None

    def test_giving_back_twice_gives_back_once(self) -> None:
        """Regression: resilience4j/resilience4j#332 and #1569."""
        admission = pool(concurrency=2)
        ticket, _ = granted(admission), granted(admission)
        for _ in range(3):
            admission.give_back(ticket, 1.0)
        assert admission.statistics().in_flight == 1

    def test_waiters_that_come_and_go_leave_no_memory_behind(self) -> None:
        admission = pool(concurrency=1, queue=10)
        granted(admission)
        for number in range(5_000):
            admission.give_back(queued(admission, f"agent-{number % 7}"), 1.0)
        assert len(admission._forward.holdings) == 1
        assert len(admission._forward._offers) <= 20


class TestReload:
    def test_fewer_slots_wait_for_calls_in_flight_and_lose_none(self) -> None:
        admission = pool(concurrency=3)
        held = [granted(admission) for _ in range(3)]
        waiting = queued(admission)
        admission.reconfigure(AdmissionSettings(concurrency=1, reserved=0))
        for ticket in held[:2]:
            admission.give_back(ticket, 1.0)
            assert admission.grant_next(1.0) is None
        admission.give_back(held[2], 1.0)
        assert admission.grant_next(1.0) is waiting

    def test_more_slots_serve_those_who_wait(self) -> None:
        admission = pool(concurrency=1)
        granted(admission)
        waiting = queued(admission)
        admission.reconfigure(AdmissionSettings(concurrency=2, reserved=0))
        assert admission.grant_next(1.0) is waiting


TURNS = st.lists(
    st.tuples(st.sampled_from(["call", "call", "ours", "queued", "end"]), st.sampled_from("abc"), st.integers(0, 9)),
    max_size=40,
)


@given(turns=TURNS)
@hypothesis_settings(max_examples=150, deadline=None)
def test_a_slot_without_a_ticket_is_the_slot_that_a_ticket_would_have_got(
    turns: list[tuple[str, str, int]],
) -> None:
    """`enter` and `leave` leave behind what `grant_at_once` and `give_back` do, whoever else waits or is in flight."""
    with_tickets, without = (pool(concurrency=3, reserved=1, queue=2) for _ in range(2))
    held: list[tuple[Ticket, Ticket | Holding, float]] = []
    for now, (what, agent, number) in enumerate(turns):
        if what == "call":
            ticket = with_tickets.grant_at_once(agent, is_ours=False, now=now, deadline=now + number)
            holding = without.enter(agent, now, now + number)
            assert (ticket is None) == (holding is None)
            if ticket is not None and holding is not None:
                held.append((ticket, holding, now))
        elif what in ("ours", "queued"):
            pair = [ask(one, agent, now=now, deadline=1e9, is_ours=what == "ours") for one in (with_tickets, without)]
            if isinstance(pair[0], Ticket) and isinstance(pair[1], Ticket):
                held.append((pair[0], pair[1], now))
        elif held:
            ticket, other, since = held.pop(number % len(held))
            with_tickets.give_back(ticket, now)
            if isinstance(other, Ticket):
                without.give_back(other, now)
            else:
                assert without.leave(other, since, now) == with_tickets.has_waiting
            for one in (with_tickets, without):
                one.grant_next(now)
        assert with_tickets.statistics() == without.statistics()


class AnySchedule(RuleBasedStateMachine):
    """Requests, grants, cancels, double releases, expiry and reloads in any order, against a naive model."""

    tickets: Bundle[Ticket] = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.settings = AdmissionSettings(concurrency=4, reserved=1, queue=6)
        self.admission = Admission(self.settings)
        self.live: list[Ticket] = []

    @rule(target=tickets, agent=st.sampled_from("abc"), is_ours=st.booleans(), patience_s=st.sampled_from([0.5, 9, 99]))
    def a_call_comes(self, agent: str, is_ours: bool, patience_s: float) -> object:
        answer = ask(self.admission, agent, now=self.now, deadline=self.now + patience_s, is_ours=is_ours)
        if isinstance(answer, AdmissionRefusal):
            assert answer.wait_s >= 0
            return multiple()
        self.live.append(answer)
        return answer

    @rule()
    def a_token_comes(self) -> None:
        candidates = [t for t in self.live if t.state is TicketState.WAITING and t.deadline > self.now]
        in_use = {(t.agent, t.is_ours): 0 for t in self.live}
        for ticket in self.live:
            in_use[ticket.agent, ticket.is_ours] += ticket.state is TicketState.GRANTED
        is_grantable = self.admission.is_grantable
        ticket = self.admission.grant_next(self.now)
        if ticket is None:
            return
        assert is_grantable
        rivals = [t for t in candidates if t.is_ours == ticket.is_ours]
        assert ticket is min(rivals, key=lambda t: (in_use[t.agent, t.is_ours], t.seq))

    @rule(ticket=tickets, was_used=st.booleans())
    def a_ticket_is_given_back(self, ticket: Ticket, was_used: bool) -> None:
        self.admission.give_back(ticket, self.now, was_used=was_used)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(concurrency=st.integers(1, 5), reserved=st.integers(0, 5), queue=st.integers(0, 8))
    def the_manifest_is_reloaded(self, concurrency: int, reserved: int, queue: int) -> None:
        self.settings = AdmissionSettings(concurrency=concurrency, reserved=reserved, queue=queue)
        self.admission.reconfigure(self.settings)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        figures = self.admission.statistics()
        states = [ticket.state for ticket in self.live]
        assert figures.in_flight == states.count(TicketState.GRANTED)
        assert figures.waiting == states.count(TicketState.WAITING)
        assert figures.grants == figures.releases + figures.in_flight

    @invariant()
    def grants_keep_to_the_slots(self) -> None:
        """After a reload there may be too many in flight, but then nobody is grantable."""
        if self.admission.statistics().in_flight >= self.settings.concurrency:
            assert not self.admission.is_grantable

    def teardown(self) -> None:
        for ticket in self.live:
            self.admission.give_back(ticket, self.now)
        assert self.admission.is_idle
        assert not self.admission._forward.holdings
        assert not self.admission._ours.holdings


AnySchedule.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True
)
TestAnySchedule = AnySchedule.TestCase
