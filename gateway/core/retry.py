"""Whether an attempt is repeated, and who pays for it.

A repeat is allowed only if it cannot do a second harm: the outcome before it certainly had no effect, or the tool honours
idempotency keys and still remembers this one, in which case sending it again is how the doubt is settled. Once any attempt
of a call is in doubt, only a definite answer to the same key takes the doubt away (`conclude`): a refusal of our own, a
broken connection or a throttled repeat says nothing about the attempt before it.

Repeats multiply load exactly when a tool can bear it least, so they are paid for from a budget per domain: each call earns
a fraction of a repeat, a small floor refills with time, and the charge is made when the repeat is *scheduled*, so that
repeats waiting in backoff are counted too. Agents repeat on their own; a call that an agent makes again shortly after it
failed is charged to the same budget, which is what keeps framework times gateway from multiplying.

Left out: hedging (a second effect by design) and retrying what we refused ourselves (the agent is told when).

Source: Beyer et al., "Site Reliability Engineering", chapter 21 (retry budgets); twitter/finagle `RetryBudget`;
envoyproxy/envoy#30205 (charge when scheduled); RFC 9110 sections 9.2.2 and 10.2.3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le

from gateway.core.backoff import backoff_class, wait_s
from gateway.core.codes import Dispatched
from gateway.core.fault import Fault
from gateway.core.message import first_header
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.setting import SECONDS, Doc
from gateway.core.value import frozen

__all__ = [
    "GiveUp",
    "GiveUpReason",
    "RecentFailures",
    "RetryAfter",
    "RetryBudget",
    "RetrySettings",
    "conclude",
    "decide_retry",
    "parse_retry_after",
]

# An attempt with less time than this left would only add load.
MIN_ATTEMPT_S = 0.05
# A budget may save up so many repeats beyond its floor, however long the tool was well.
BUDGET_CAP = 10.0
# A failed action that the agent makes again within this time is a repeat.
REPEAT_WINDOW_S = 60.0
# Tenths do not sum to one in floats; who waited as long as told must not be refused for that.
_WHOLE = 1.0 - 1e-6
# Longest hint taken from a tool, so that arithmetic on it stays sane: a year.
_LONGEST_HINT_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How often and how patiently an attempt is repeated."""

    attempts: Annotated[int, Ge(1), Le(20), Doc("Attempts a call may take, the first included.")] = 3
    base: Annotated[float, SECONDS, Gt(0), Doc("Upper bound of the first wait; it doubles with each attempt.")] = 0.1
    cap: Annotated[float, SECONDS, Gt(0), Doc("Bound of any wait.")] = 30.0
    retry_after_cap: Annotated[float, SECONDS, Gt(0), Doc("A tool's Retry-After is honoured up to this.")] = 60.0
    budget_ratio: Annotated[float, Ge(0), Le(1), Doc("Retries earned by each call.")] = 0.1
    budget_floor: Annotated[float, Ge(0), Doc("Retries that are always in reserve, refilled at one a second.")] = 3.0


@frozen(kw_only=False)
class RetryAfter:
    """Repeat after this many seconds."""

    delay_s: float


class GiveUpReason(StrEnum):
    """Why an outcome is final."""

    SUCCESS = "success"
    REFUSED = "refused"
    PERMANENT = "permanent"
    IN_DOUBT = "in_doubt"
    BODY_SPENT = "body_spent"
    ATTEMPTS = "attempts"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The outcome is final."""

    reason: GiveUpReason


_SUCCESS, _REFUSED, _PERMANENT, _IN_DOUBT, _BODY_SPENT, _ATTEMPTS, _DEADLINE = (
    GiveUp(reason) for reason in GiveUpReason
)  # made once: most calls end in one
_NEVER_SENT = frozenset({Fault.CONNECT, Fault.CONNECT_TIMEOUT})
# Answers to a repeat under the same key that do not say what became of the first: not let in, or still running.
_UNSETTLING = frozenset({401, 403, 407, 408, 409, 423, 425, 429})


def decide_retry(
    outcome: Outcome,
    *,
    attempt: int,
    settings: RetrySettings,
    now: float,
    deadline: float,
    u: float,
    is_replayable: bool,
    key_until: float | None,
) -> RetryAfter | GiveUp:
    """Return whether and when the attempt is repeated.

    Args:
        outcome: what became of the call so far, as `conclude` has it.
        attempt: attempts made, from 1.
        settings: of the tool.
        now: monotonic seconds.
        deadline: monotonic seconds by which the call must be over.
        u: a draw from [0, 1).
        is_replayable: the request has no body, or one that can be read again.
        key_until: monotonic seconds until which the tool remembers the call's key; None if it honours none.
    """
    if isinstance(outcome, Success):
        return _SUCCESS
    if isinstance(outcome, Rejected):
        return _REFUSED
    delay_s = _delay_s(outcome, attempt, settings, u)
    if delay_s is None:
        return _PERMANENT
    if isinstance(outcome, InDoubt) and (key_until is None or now + delay_s >= key_until):
        return _IN_DOUBT
    if not is_replayable and outcome.fault not in _NEVER_SENT:
        return _BODY_SPENT
    if attempt >= settings.attempts:
        return _ATTEMPTS
    if now + delay_s + MIN_ATTEMPT_S > deadline:
        return _DEADLINE
    return RetryAfter(delay_s)


def _delay_s(outcome: Failed | InDoubt, attempt: int, settings: RetrySettings, u: float) -> float | None:
    backoff = backoff_class(outcome.fault, outcome.reply.status if outcome.reply else None)
    if backoff is None:
        return None
    asked_ms = outcome.retry_after_ms
    return wait_s(
        backoff,
        attempt,
        base_s=settings.base,
        cap_s=settings.cap,
        u=u,
        asked_s=None if asked_ms is None else asked_ms / 1000,
        asked_cap_s=settings.retry_after_cap,
    )


def conclude(earlier: Outcome | None, last: Outcome, *, has_key: bool = True) -> Outcome:
    """Return what a call's attempts together amount to, given what those before `last` amounted to.

    A doubt stays until a repeat under the same key is answered definitely: by success, or by a refusal that the tool
    could only give if the first had not landed. Where `last` was refused by ourselves after an attempt without effect,
    the answer is that refusal, as a failure, since something was sent. If `last` has a reply and is not returned, the
    caller closes it.

    Without a key (`has_key` False: an idempotent operation) only success settles: the second DELETE of a pair is
    answered 404 because the first one landed.
    """
    if isinstance(earlier, InDoubt) and not (isinstance(last, Success) if not has_key else _settles(last)):
        return last if isinstance(last, InDoubt) else _still_doubtful(earlier, last)
    if isinstance(earlier, Failed) and isinstance(last, Rejected):
        dispatched = Dispatched.NO if earlier.fault in _NEVER_SENT else Dispatched.YES
        return Failed(earlier.fault, refusal=replace(last.refusal, dispatched=dispatched))
    return last


def _still_doubtful(doubt: InDoubt, last: Outcome) -> InDoubt:
    """Return a doubt that a repeat did not settle, with when the next may: as the tool said, or as we who refused it."""
    asked_ms = None if isinstance(last, Success | Rejected) else last.retry_after_ms
    hint_ms = last.refusal.retry_after_ms if isinstance(last, Rejected) else asked_ms
    refusal = doubt.refusal if hint_ms is None else replace(doubt.refusal, retry_after_ms=hint_ms)
    return replace(doubt, reply=None, retry_after_ms=asked_ms, refusal=refusal)


def _settles(outcome: Outcome) -> bool:
    """Whether the answer to a repeat under the same key tells what became of the attempts before it."""
    if isinstance(outcome, Success):
        return True
    if not isinstance(outcome, Failed) or outcome.fault is not Fault.CLIENT_ERROR or outcome.reply is None:
        return False
    return 400 <= outcome.reply.status < 500 and outcome.reply.status not in _UNSETTLING


class RetryBudget:
    """Repeats that a domain may still make: a token bucket, earned by calls, with a floor that refills with time.

    Whatever the schedule: repeats charged <= floor + ratio * calls + seconds, and the balance stays within
    [0, floor + BUDGET_CAP].
    """

    def __init__(self, floor: float, now: float) -> None:
        self.floor = floor
        self._balance = floor
        self._refilled = now

    def deposit(self, ratio: float, now: float) -> None:
        """Earn `ratio` of a repeat: once per call, however many attempts and layers it passes."""
        if self._balance < self.floor:
            self._refill(now)
        else:
            self._refilled = now
        earned, most = self._balance + ratio, self.floor + BUDGET_CAP
        self._balance = earned if earned < most else most

    def charge(self, now: float) -> bool:
        """Pay for one repeat that is about to be scheduled; False, and nothing taken, if the budget is spent."""
        if not self.has_one(now):
            return False
        self._balance = max(0.0, self._balance - 1.0)
        return True

    def has_one(self, now: float) -> bool:
        """Whether a repeat could be paid for."""
        self._refill(now)
        return self._balance >= _WHOLE

    def refund(self) -> None:
        """Give back a charge: the repeat was never sent, or its answer shows that the tool works."""
        self._balance = min(self.floor + BUDGET_CAP, self._balance + 1.0)

    def refill_s(self, now: float) -> float | None:
        """Return the seconds until the next repeat can be paid for by waiting, or None if only calls can earn it."""
        self._refill(now)
        if self._balance >= _WHOLE:
            return 0.0
        return 1.0 - self._balance if self.floor >= 1.0 else None

    @property
    def balance(self) -> float:
        """Repeats in reserve, as of the last operation."""
        return self._balance

    def _refill(self, now: float) -> None:
        since, self._refilled = self._refilled, now
        if self._balance < self.floor:
            self._balance = min(self.floor, self._balance + max(0.0, now - since))


class RecentFailures:
    """Which actions failed within the last minute, to tell an agent's repeat from a new call. Bounded; O(1).

    `failed` is when, by action, the longest ago first, with some that are too long ago; who finds it empty need not ask.
    """

    def __init__(self, capacity: int = 4_096, window_s: float = REPEAT_WINDOW_S) -> None:
        self._capacity = capacity
        self._window_s = window_s
        self.failed: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self.failed)

    def note(self, action: Hashable, now: float) -> None:
        """Remember that the action failed just now."""
        self.failed[action] = now
        self.failed.move_to_end(action)
        while len(self.failed) > self._capacity or next(iter(self.failed.values())) < now - self._window_s:
            self.failed.popitem(last=False)

    def forget(self, action: Hashable) -> None:
        """The action worked: whoever makes it again repeats nothing that failed."""
        self.failed.pop(action, None)

    def is_repeat(self, action: Hashable, now: float) -> bool:
        """Whether the action failed within the window."""
        failed = self.failed.get(action)
        return failed is not None and now - failed <= self._window_s


def parse_retry_after(headers: Iterable[tuple[bytes, bytes]], at: int) -> int | None:
    """Return the wait that an answer asks for, in milliseconds, or None if it asks for none that can be read.

    `retry-after-ms` (some AI providers) is finer and wins; `retry-after` is whole seconds or an HTTP-date, measured from
    `at`, UTC milliseconds. The past is zero.

    Source: RFC 9110 section 10.2.3.
    """
    fields = tuple(headers)
    milliseconds = _number(first_header(fields, b"retry-after-ms"))
    if milliseconds is not None:
        return min(round(milliseconds), _LONGEST_HINT_MS)
    value = first_header(fields, b"retry-after")
    seconds = _number(value)
    if seconds is not None:
        return min(round(seconds * 1000), _LONGEST_HINT_MS)
    return None if value is None else _milliseconds_until(value, at)


def _number(value: bytes | None) -> float | None:
    """Return a plain non-negative decimal, or None; `nan`, `inf`, signs and exponents are not plain."""
    text = (value or b"").strip()
    if not text or len(text) > 20 or not text.replace(b".", b"", 1).isdigit():
        return None
    return float(text)


def _milliseconds_until(value: bytes, at: int) -> int | None:
    try:
        date = parsedate_to_datetime(value.decode("ascii"))
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        wait_ms = round(date.timestamp() * 1000) - at
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return max(0, min(wait_ms, _LONGEST_HINT_MS))
