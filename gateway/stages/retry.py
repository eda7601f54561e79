"""Owns the attempts of a call: repeats what may be repeated, within a budget that repeats of agents draw on too.

An attempt in doubt is settled before anything is repeated: by the operation's probe where it has one, else by sending it
again under a key that the tool still honours. A call that comes in because its step is in doubt (the agent's identical
repeat, or the settler's after a restart) begins with that question.
"""

from __future__ import annotations

import math

from gateway.clock import Clock
from gateway.core.call import FORWARD, Call, Handler, Lane, Passable
from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Outcome, Refusal, Rejected, Success
from gateway.core.retry import RecentFailures, RetryAfter, RetryBudget, conclude, decide_retry
from gateway.core.settle import Verdict, may_resend_until, still_working_s, why_not_resent
from gateway.core.tool import Catalog, ToolSpec
from gateway.stages.settle import Purse, Settle, absent, doubtful, landed
from gateway.telemetry import Telemetry

__all__ = ["WORKING", "RetryStage"]

# Answers that show a tool at work: the repeat that got one was not wasted and is refunded.
WORKING = frozenset({Fault.NONE, Fault.CLIENT_ERROR})


class RetryStage(Passable):
    """Repeats attempts.

    Budgets are kept per domain, apart for compensators and probes, so that a storm of forward calls cannot use up the
    repeats that an unwinding needs. Nothing of a call is kept on the stage.
    """

    def __init__(self, clock: Clock, telemetry: Telemetry, settle: Settle | None = None) -> None:
        self._settle = settle or Settle({}, clock)
        self._clock = clock
        self._telemetry = telemetry
        self._budgets: dict[tuple[str, bool], RetryBudget] = {}
        self.recent = RecentFailures()

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Return what the attempts amount to, or ERR_RETRY_BUDGET for a repeat that the agent cannot afford."""
        budget = self.budget(call.tool, call.lane)
        is_repeat = self._is_agents_repeat(call)
        if is_repeat and not budget.charge(self._clock.now()):
            return Rejected(_refusal(call, budget.refill_s(self._clock.now())))
        doubt: Outcome | None = None
        if call.is_in_doubt:
            doubt = await self._settle_first(call, proceed, budget)
            if doubt is not None and (not isinstance(doubt, InDoubt) or self._why_not_resent(call) is not None):
                return doubt
        if call.first_sent is None:
            call.first_sent = self._clock.now()
        if is_repeat:
            last = await self._attempt(call, proceed, budget)
        else:
            call.attempt += 1
            last = await proceed(call)
        outcome = last if doubt is None else await _conclude(call, doubt, last)
        if not is_repeat and not isinstance(outcome, Rejected):
            budget.deposit(call.tool.retry.budget_ratio, self._clock.now())
        if last is outcome and isinstance(outcome, Success):
            self.worked(call)
            return outcome
        return await self.go_on(call, proceed, budget, last, outcome)

    def worked(self, call: Call) -> None:
        """Note that the last attempt of a call was its success."""
        call.is_in_doubt = False
        if call.lane is FORWARD and self.recent.failed:
            self.recent.forget((call.agent, call.action))

    async def go_on(
        self, call: Call, proceed: Handler, budget: RetryBudget, last: Outcome, outcome: Outcome
    ) -> Outcome:
        """Return what a call amounts to after its first attempt: settle the doubt it left, repeat what may be repeated.

        `last` is what became of the attempt, `outcome` what it amounts to with those of earlier times.
        """
        if isinstance(last, InDoubt):
            last = outcome = await self._settled(call, proceed, budget, last)
        while not isinstance(outcome, Success) and (delay_s := self._delay_s(call, last, outcome, budget)) is not None:
            await self._wait(budget, outcome, delay_s)
            call.is_in_doubt = isinstance(outcome, InDoubt)
            last = await self._attempt(call, proceed, budget)
            outcome = await _conclude(call, outcome, last)
            if isinstance(last, InDoubt):
                last = outcome = await self._settled(call, proceed, budget, last)
        call.is_in_doubt = isinstance(outcome, InDoubt)
        self._remember(call, outcome)
        return outcome

    def lets_pass(self, call: Call) -> bool:
        """Whether it is no repeat, or one that the agent can afford: the charge would be given back, nothing being sent."""
        now = self._clock.now()
        is_repeat = self.recent.is_repeat((call.agent, call.action), now)
        return not is_repeat or self.budget(call.tool, call.lane).has_one(now)

    def refused(self, call: Call, outcome: Rejected) -> Rejected:
        """It was an attempt, and is not repeated."""
        call.attempt += 1
        return outcome

    # --- settling

    async def _settle_first(self, call: Call, proceed: Handler, budget: RetryBudget) -> Outcome | None:
        """Ask about the attempts of earlier times. Returns None if they did not land and the step may be done now."""
        given_up = self._clock.now() if call.given_up is None else call.given_up
        answer = await self._settle(call, proceed, given_up, self._purse(budget))
        match answer.verdict:
            case Verdict.LANDED:
                call.is_in_doubt = False
                return landed(call, answer)
            case Verdict.NOT_LANDED:
                call.is_in_doubt = False
                return absent(call, Fault.CANCELLED, answer) if call.is_settling_only else None
            case Verdict.UNKNOWN:
                why_not = self._why_not_resent(call)
                return doubtful(call, answer.detail if why_not is None else f"{answer.detail}, and {why_not}")

    async def _settled(self, call: Call, proceed: Handler, budget: RetryBudget, doubt: InDoubt) -> Outcome:
        """Ask about the attempt that was just given up. Returns the doubt itself if that does not settle it."""
        if call.operation.probe is None or call.operation.is_read or _is_cut(doubt):
            return doubt
        given_up = self._clock.now() + still_working_s(doubt.fault, call.operation)
        answer = await self._settle(call, proceed, given_up, self._purse(budget))
        if answer.verdict is Verdict.UNKNOWN:
            return doubt
        await _close(doubt)
        return landed(call, answer) if answer.verdict is Verdict.LANDED else absent(call, doubt.fault, answer)

    def _purse(self, budget: RetryBudget) -> Purse:
        return Purse(lambda: budget.charge(self._clock.now()), budget.refund)

    def _why_not_resent(self, call: Call) -> str | None:
        now = self._clock.now()
        return why_not_resent(call.tool, call.operation, now if call.first_sent is None else call.first_sent, now)

    def reconfigure(self, catalog: Catalog) -> None:
        """Take over the floors of the catalog (the highest among a domain's tools); drop budgets of domains that are
        gone, keep the balance of the others."""
        floors: dict[str, float] = {}
        for tool in catalog.tools.values():
            floors[tool.domain.name] = max(tool.retry.budget_floor, floors.get(tool.domain.name, 0.0))
        self._budgets = {key: budget for key, budget in self._budgets.items() if key[0] in floors}
        for (domain, _), budget in self._budgets.items():
            budget.floor = floors[domain]

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return the repeats in reserve, by domain; `compensation` apart."""
        return {
            f"{domain}/compensation" if is_ours else domain: {"balance": budget.balance, "floor": budget.floor}
            for (domain, is_ours), budget in self._budgets.items()
        }

    async def _wait(self, budget: RetryBudget, earlier: Outcome, delay_s: float) -> None:
        """Wait for the attempt that was paid for; if it is not made after all, the charge is given back."""
        try:
            await _close(earlier)
            await self._clock.sleep(delay_s)
        except BaseException:
            budget.refund()
            raise

    async def _attempt(self, call: Call, proceed: Handler, charged: RetryBudget) -> Outcome:
        call.attempt += 1
        outcome = await proceed(call)
        if _is_refundable(outcome):
            charged.refund()
        return outcome

    def _delay_s(self, call: Call, last: Outcome, outcome: Outcome, budget: RetryBudget) -> float | None:
        """Return the wait before the next attempt, already paid for, or None if the outcome is final.

        Where the last attempt was refused by ourselves it is, whatever was before.
        """
        if call.attempts_most is not None and call.attempt >= call.attempts_most:
            return None
        now = self._clock.now()
        body = call.request.body
        decision = decide_retry(
            last if isinstance(last, Rejected) else outcome,
            attempt=call.attempt,
            settings=call.tool.retry,
            now=now,
            deadline=call.deadline,
            u=self._clock.draw(),
            is_replayable=body is None or body.is_replayable,
            key_until=_key_until(call),
        )
        if not isinstance(decision, RetryAfter) or not budget.charge(now):
            return None
        assert isinstance(outcome, Failed | InDoubt)
        self._telemetry.retry_scheduled(call, outcome.fault, decision.delay_s)
        return decision.delay_s

    def _is_agents_repeat(self, call: Call) -> bool:
        return (
            call.lane is FORWARD
            and not call.is_settling_only
            and self.recent.is_repeat((call.agent, call.action), self._clock.now())
        )

    def _remember(self, call: Call, outcome: Outcome) -> None:
        """Note a failure that an agent might now repeat; our own refusals cost the tool nothing and are not noted."""
        if call.lane is not FORWARD or isinstance(outcome, Rejected) or _is_cut(outcome):
            return
        if isinstance(outcome, Failed | InDoubt) and outcome.fault not in WORKING:
            self.recent.note((call.agent, call.action), self._clock.now())
        else:
            self.recent.forget((call.agent, call.action))

    def budget(self, tool: ToolSpec, lane: Lane) -> RetryBudget:
        """Return the repeats that calls to a tool share, made where nobody has any yet."""
        key = (tool.domain.name, lane is not FORWARD)
        budget = self._budgets.get(key)
        if budget is None:
            budget = self._budgets[key] = RetryBudget(tool.retry.budget_floor, self._clock.now())
        return budget


def _is_cut(outcome: Outcome) -> bool:
    """Whether we broke the call off ourselves, because its run is quarantined."""
    refusal = outcome.refusal if isinstance(outcome, Failed | InDoubt) else None
    return refusal is not None and refusal.code is Code.QUARANTINED


def _key_until(call: Call) -> float | None:
    """Return until when sending the call again settles a doubt, or None if it never does."""
    if call.key is None or call.first_sent is None:
        return None
    return may_resend_until(call.tool, call.operation, call.first_sent)


def _is_refundable(outcome: Outcome) -> bool:
    """Whether the attempt that was charged was never sent, or its answer shows a tool at work."""
    return not isinstance(outcome, Failed | InDoubt) or outcome.fault in WORKING


async def _conclude(call: Call, earlier: Outcome, last: Outcome) -> Outcome:
    """Return what both amount to; a reply that is not part of it is closed."""
    together = conclude(earlier, last, has_key=call.tool.idempotency is not None)
    if together is not last:
        await _close(last)
    return together


async def _close(outcome: Outcome) -> None:
    if not isinstance(outcome, Rejected) and outcome.reply is not None:
        await outcome.reply.aclose()


def _refusal(call: Call, wait_s: float | None) -> Refusal:
    wait = "go another way" if wait_s is None else f"wait {wait_s:.1f} s or go another way"
    detail = (
        f"The call {call.tool.name}.{call.operation.name} failed less than a minute ago and the retry budget of the "
        f"domain {call.tool.domain.name} is spent; {wait} instead of repeating it."
    )
    return Refusal(
        code=Code.RETRY_BUDGET,
        detail=detail,
        retry_after_ms=None if wait_s is None else max(1, math.ceil(wait_s * 1000)),
        dependency=call.tool.domain.name,
    )
