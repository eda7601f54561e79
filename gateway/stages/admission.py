"""One queue per domain in front of its tools: waits for slot and rate token together, holds the slot to the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from aiolimiter import AsyncLimiter

from gateway.clock import Clock, wait_until
from gateway.core.admission import (
    Admission,
    AdmissionRefusal,
    AdmissionSettings,
    Holding,
    RateSettings,
    Ticket,
    TicketState,
)
from gateway.core.call import FORWARD, Call, Handler
from gateway.core.codes import Code
from gateway.core.outcome import Outcome, Refusal, Rejected, streamed_reply
from gateway.core.tool import Catalog, Domain
from gateway.telemetry import Telemetry

__all__ = ["AdmissionStage", "Pool"]

_GRANTED, _CIRCUIT_OPEN = TicketState.GRANTED, Code.CIRCUIT_OPEN

# Floats may put the token a hair after its time; a late look finds it, an early one would have to come back.
_DRIP_SLACK_S = 0.001


class AdmissionStage:
    """Bounds what a domain is asked to do at once.

    `peek(call)` is asked first: a call that the breaker would refuse does not wait in the queue for it.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry, peek: Callable[[Call], Rejected | None]) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._peek = peek
        self._pools: dict[str, Pool] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Return the outcome of the call made in a slot, or why it got none.

        The slot is held until the outcome is there; for a streamed answer until its body is closed. Cancelled at any
        point, it gives back place, slot and token in the same step.
        """
        refused = self._peek(call)
        if refused is not None:
            return refused
        domain = call.tool.domain
        pool = self._pools.get(domain.name) or self.pool(domain)
        ticket = pool.request(call.agent, call.deadline, is_ours=call.lane is not FORWARD)
        if isinstance(ticket, AdmissionRefusal):
            return Rejected(_refusal(call, ticket))
        is_streaming = False
        try:
            if ticket.state is not _GRANTED:
                if not await pool.wait(ticket):
                    return Rejected(_refusal(call, AdmissionRefusal(Code.QUEUE_DEADLINE, pool.expected_wait_s)))
                self._telemetry.queue_waited(call, self._clock.now() - ticket.enqueued_at)
            pool.use(ticket)
            outcome = await proceed(call)
            if (reply := streamed_reply(outcome)) is not None:
                is_streaming = True
                reply.on_close(lambda: pool.give_back(ticket))
            return outcome
        finally:
            if not is_streaming:
                pool.give_back(ticket)

    def foresee(self, call: Call) -> Rejected | None:
        """Return the refusal that the call would meet here now, by the breaker or for want of a place; None if neither."""
        refused = self._peek(call)
        if refused is not None:
            return refused
        pool = self._pools.get(call.tool.domain.name)
        refusal = None if pool is None else pool.foresee(call.deadline, is_ours=call.lane is not FORWARD)
        return None if refusal is None else Rejected(_refusal(call, refusal))

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """Count it, where it was for want of a place."""
        if outcome.refusal.code is not _CIRCUIT_OPEN:
            self.pool(call.tool.domain).admission.refused()
        return outcome

    def reconfigure(self, catalog: Catalog) -> None:
        """Have one pool for each domain of the catalog, those already there under their new settings.

        Slots in use stay counted. Pools of domains that are gone are dropped once nobody uses them.
        """
        for domain in catalog.domains.values():
            self.pool(domain).reconfigure(domain.admission)
        self._pools = {
            name: pool for name, pool in self._pools.items() if name in catalog.domains or not pool.admission.is_idle
        }

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return a look inside each domain's pool."""
        return {name: asdict(pool.admission.statistics()) for name, pool in self._pools.items()}

    def pool(self, domain: Domain) -> Pool:
        """Return the pool of a domain, made where there is none yet."""
        pool = self._pools.get(domain.name)
        if pool is None:
            pool = self._pools[domain.name] = Pool(self._clock, domain.admission)
        return pool


class Pool:
    """A domain's admission, its meter, and those who wait.

    Whenever a slot comes free or somebody comes, `_pump` grants as much as slots and tokens allow. While only a token is
    missing, one task sleeps until the meter has dripped enough; it lives no longer than somebody waits for it.
    """

    def __init__(self, clock: Clock, settings: AdmissionSettings) -> None:
        self.admission = Admission(settings)
        self._clock = clock
        self._meter = _Meter(settings.rate)
        self._waiters: dict[Ticket, Callable[[], object]] = {}
        self._unused: set[Ticket] = set()
        self._drip: asyncio.Task[None] | None = None

    def request(self, agent: str, deadline: float, *, is_ours: bool) -> Ticket | AdmissionRefusal:
        """Return a ticket, granted already if nothing stands against it, or why there is none."""
        now = self._clock.now()
        if self._meter.take():
            granted = self.admission.grant_at_once(agent, is_ours=is_ours, now=now, deadline=deadline)
            if granted is not None:
                return granted
            self._meter.put_back()
        ticket = self.admission.request(
            agent, is_ours=is_ours, now=now, deadline=deadline, has_token=self._meter.has_token()
        )
        if isinstance(ticket, Ticket):
            self._pump()
        return ticket

    def take_slot(self, agent: str, now: float, deadline: float) -> Holding | None:
        """Return a slot for a forward call where nobody waits, one is free and no rate is metered; else None, and nothing
        changed. Same as `request`, for the many calls that meet no queue; `return_slot` gives it back."""
        return self.admission.enter(agent, now, deadline) if self._meter.is_free else None

    def return_slot(self, holding: Holding, granted_at: float, now: float) -> None:
        """Give the slot of `take_slot` back, once; serve the next."""
        if self.admission.leave(holding, granted_at, now) or self._drip is not None:
            self._pump()

    def foresee(self, deadline: float, *, is_ours: bool) -> AdmissionRefusal | None:
        """Return why `request` would give no ticket now, or None if it would."""
        return self.admission.refusal(
            is_ours=is_ours, now=self._clock.now(), deadline=deadline, has_token=self._meter.has_token()
        )

    async def wait(self, ticket: Ticket) -> bool:
        """Return whether the ticket was granted before its deadline, once that is certain."""
        future = asyncio.get_running_loop().create_future()
        self.on_grant(ticket, lambda: None if future.done() else future.set_result(None))
        try:
            await wait_until(self._clock, future, ticket.deadline)
        finally:
            self.leave(ticket)
        return ticket.state is _GRANTED

    def on_grant(self, ticket: Ticket, wake: Callable[[], object]) -> None:
        """Have `wake` called once when the ticket is granted, unless somebody is no longer interested (`leave`)."""
        self._waiters[ticket] = wake

    def leave(self, ticket: Ticket) -> None:
        """Wait no longer. The ticket has still to be given back."""
        self._waiters.pop(ticket, None)

    def use(self, ticket: Ticket) -> None:
        """The grant has reached its caller: from here its token is spent."""
        if self._unused:
            self._unused.discard(ticket)

    def give_back(self, ticket: Ticket) -> None:
        """Return place, slot, and the token of a grant that came too late; serve the next. May be repeated."""
        was_used = not self._unused or ticket not in self._unused
        if not was_used:
            self._unused.discard(ticket)
            self._meter.put_back()
        self.admission.give_back(ticket, self._clock.now(), was_used=was_used)
        if self._drip is not None or self.admission.has_waiting:
            self._pump()

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """Go on under other settings."""
        if settings.rate != self.admission.settings.rate:
            self._meter = _Meter(settings.rate)
            self._stop_drip()
        self.admission.reconfigure(settings)
        self._pump()

    @property
    def expected_wait_s(self) -> float:
        """When the next to come can expect its turn."""
        return self.admission.statistics().expected_wait_s

    def _pump(self) -> None:
        self._grant()
        if self.admission.is_grantable and self._drip is None:
            self._drip = asyncio.get_running_loop().create_task(self._grant_as_tokens_come())
        elif not self.admission.is_grantable:
            self._stop_drip()

    def _stop_drip(self) -> None:
        if self._drip is not None:
            self._drip.cancel()
            self._drip = None

    def _grant(self) -> None:
        while self.admission.is_grantable and self._meter.take():
            ticket = self.admission.grant_next(self._clock.now())
            if ticket is None:
                self._meter.put_back()
                return
            self._unused.add(ticket)
            wake = self._waiters.pop(ticket, None)
            if wake is not None:
                wake()

    async def _grant_as_tokens_come(self) -> None:
        while self.admission.is_grantable:
            await self._clock.sleep(self._meter.interval_s + _DRIP_SLACK_S)
            self._grant()
        self._drip = None


class _Meter:
    """aiolimiter's leaky bucket, asked and never waited at: its own queue favours small amounts and has no bound.

    Tokens put back are used before new ones, until the bucket is full anyway.
    """

    def __init__(self, rate: RateSettings | None) -> None:
        self._limiter: AsyncLimiter | None = None
        self.is_free = rate is None
        self._returned = 0
        self.interval_s = 0.0
        if rate is not None:
            self.interval_s = rate.per / rate.calls
            self._limiter = AsyncLimiter(max(1.0, rate.calls), max(rate.per, self.interval_s))

    def has_token(self) -> bool:
        return self._limiter is None or self._returned > 0 or self._limiter.has_capacity()

    def take(self) -> bool:
        """Take a token if there is one."""
        if self._limiter is None:
            return True
        if self._returned and not self._limiter.has_capacity(self._limiter.max_rate):
            self._returned -= 1
            return True
        self._returned = 0
        if not self._limiter.has_capacity():
            return False
        with suppress(StopIteration):
            self._limiter.acquire().send(None)  # with capacity there it returns without waiting
        return True

    def put_back(self) -> None:
        """Return a token that was not used."""
        if self._limiter is not None:
            self._returned += 1


_DETAILS = {
    Code.BULKHEAD_FULL: "All slots of the domain {domain}, which {tool} belongs to, are taken and its queue is full; "
    "{wait}, and send fewer calls to it at the same time.",
    Code.RATE_LIMITED: "The rate of the domain {domain}, which {tool} belongs to, is used up; {wait}.",
    Code.QUEUE_DEADLINE: "The queue of the domain {domain}, which {tool} belongs to, could not be passed in this call's "
    "time; {wait}, or give the call more time.",
}


def _refusal(call: Call, refusal: AdmissionRefusal) -> Refusal:
    domain = call.tool.domain.name
    wait = f"wait {refusal.wait_s:.1f} s, then send the call again"
    return Refusal(
        code=refusal.code,
        detail=_DETAILS[refusal.code].format(domain=domain, tool=call.tool.name, wait=wait),
        retry_after_ms=max(1, math.ceil(refusal.wait_s * 1000)),
        dependency=domain,
    )
