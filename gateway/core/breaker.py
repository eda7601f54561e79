"""Whether a tool may be called now: a circuit breaker with one leased canary.

A tool that fails is left alone for a while, then tried with a single call. The breaker keeps a ring of the last outcomes
(with a maximum age, so that a rarely used tool is not judged by last week), and counters beside it, so that every
operation costs the same whatever the window. Every move is one row of `TRANSITIONS`:

    closed     consecutive           -> open       this many timeouts or transport failures in a row: a total outage
    closed     failure_ratio         -> open       this share of failures in the ring: a partial outage
    closed     slow_ratio            -> open       this share of slow answers in the ring: a brown-out
    open       cooldown_over         -> half_open  the first eligible call after the cooldown becomes the canary
    half_open  healed                -> closed     the canary (and the ramp) succeeded; the ring is cleared
    half_open  canary_failed         -> open       the cooldown doubles, up to its cap
    half_open  canary_lost           -> open       the lease ran out unanswered: a failure like any other
    half_open  canary_inconclusive   -> open       three canaries in a row were cancelled: nothing learnt, no growth

What makes it hold under concurrency: every move begins a new generation and every permit carries the one it was given in,
so a late answer changes nothing; a canary has a lease, so a lost one cannot wedge the breaker; a cancelled canary is
neither success nor failure and gives its permit back; an irreversible call is never the experiment. The cooldown shrinks
only on evidence (a full window of mostly good answers), never by the passing of time alone.

Left out: jitter on the cooldown (the agent is told the exact remaining time, and one canary needs no spreading) and
deciding by time slices (agents call too rarely to fill them).

Source: Nygard, "Release It!" (2nd ed., section 5.2); sony/gobreaker (generations); bagowix/interlock (returned permits);
envoyproxy/envoy#21142 (evidence-based decay).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le

from gateway.core.fault import Fault
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.core.setting import SECONDS, Doc
from gateway.core.value import frozen

__all__ = [
    "TRANSITIONS",
    "Breaker",
    "BreakerRefusal",
    "BreakerSettings",
    "BreakerStatistics",
    "Cause",
    "Permit",
    "Reason",
    "State",
    "Transition",
    "Verdict",
    "verdict_of",
]

# A cancelled canary says nothing, so the next may follow at once; this keeps a burst of cancels from becoming traffic.
CANARY_SPACING_S = 0.25
# So many canaries in a row without an answer, and the tool is left alone for another cooldown (interlock#194).
INCONCLUSIVE_LIMIT = 3
# What a caller is told to wait while somebody else's call decides: long enough for most answers, short enough to notice.
RECHECK_S = 1.0
# The ramp admits 1, 2, 4, 8, 16 calls at once, then everything: 16 is the default concurrency of a domain.
RAMP_END = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When a tool's breaker opens, and how it heals."""

    window: Annotated[int, Ge(20), Le(10_000), Doc("Outcomes that the ring remembers.")] = 20
    max_age: Annotated[float, SECONDS, Gt(0), Doc("Outcomes older than this no longer count.")] = 300.0
    minimum: Annotated[int, Ge(1), Doc("Outcomes needed before a ratio can open the breaker.")] = 10
    failure_ratio: Annotated[float, Gt(0), Le(1), Doc("Opens at this share of failures in the ring.")] = 0.5
    slow_after: Annotated[float | None, SECONDS, Gt(0), Doc("An answer later than this counts as slow.")] = None
    slow_ratio: Annotated[float, Gt(0), Le(1), Doc("Opens at this share of slow answers in the ring.")] = 0.8
    consecutive: Annotated[int, Ge(1), Doc("Opens at this many timeouts or transport failures in a row.")] = 3
    cooldown: Annotated[float, SECONDS, Gt(0), Doc("First time for which an open breaker refuses.")] = 30.0
    max_cooldown: Annotated[
        float, SECONDS, Gt(0), Doc("Bound of the cooldown, which doubles on each failed canary.")
    ] = 600.0
    ramp: Annotated[bool, Doc("After a successful canary admit 1, 2, 4 … calls at once instead of all.")] = False
    count_429: Annotated[bool, Doc("Whether 429 counts as a failure.")] = True


class State(StrEnum):
    """Closed lets calls through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Verdict(Enum):
    """What an outcome says about the tool.

    `FAILURE` is one of transport and counts to the consecutive rule; `FAILURE_SERVER` is an answer, so it counts to the
    ratio only; `NEUTRAL` (cancelled, refused by ourselves) says nothing.
    """

    SUCCESS = "success"
    FAILURE = "failure"
    FAILURE_SERVER = "failure_server"
    NEUTRAL = "neutral"


class Reason(StrEnum):
    """Why a breaker refuses."""

    OPEN = "open"
    CANARY_OUT = "canary_out"
    NO_ELIGIBLE_CANARY = "no_eligible_canary"


class Cause(StrEnum):
    """Why a breaker moved; the rows of `TRANSITIONS`."""

    CONSECUTIVE = "consecutive"
    FAILURE_RATIO = "failure_ratio"
    SLOW_RATIO = "slow_ratio"
    COOLDOWN_OVER = "cooldown_over"
    HEALED = "healed"
    CANARY_FAILED = "canary_failed"
    CANARY_LOST = "canary_lost"
    CANARY_INCONCLUSIVE = "canary_inconclusive"


TRANSITIONS: Mapping[Cause, tuple[State, State]] = {
    Cause.CONSECUTIVE: (State.CLOSED, State.OPEN),
    Cause.FAILURE_RATIO: (State.CLOSED, State.OPEN),
    Cause.SLOW_RATIO: (State.CLOSED, State.OPEN),
    Cause.COOLDOWN_OVER: (State.OPEN, State.HALF_OPEN),
    Cause.HEALED: (State.HALF_OPEN, State.CLOSED),
    Cause.CANARY_FAILED: (State.HALF_OPEN, State.OPEN),
    Cause.CANARY_LOST: (State.HALF_OPEN, State.OPEN),
    Cause.CANARY_INCONCLUSIVE: (State.HALF_OPEN, State.OPEN),
}

# Members that every call is compared with, looked up once (docs/adr/0092).
_CLOSED, _OPEN, _HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN
_LEFT_ALONE = Reason.OPEN
_SUCCESS, _FAILURE, _NEUTRAL = Verdict.SUCCESS, Verdict.FAILURE, Verdict.NEUTRAL

_GROWING = frozenset({Cause.CANARY_FAILED, Cause.CANARY_LOST})


@dataclass(frozen=True, slots=True)
class Transition:
    """One move. `cooldown_s` is how long the breaker refuses from here; 0 unless it opened."""

    before: State
    after: State
    cause: Cause
    cooldown_s: float


@dataclass(slots=True, eq=False)
class Permit:
    """The right to make one call; given back by `Breaker.settle`, which only the first time means anything.

    Attributes:
        id: unique in its breaker.
        generation: the era in which it was given.
        is_canary: the call decides whether the breaker closes.
        lease_until: monotonic seconds after which a call in half-open counts as lost.
        transitions: moves that giving it made.
    """

    id: int
    generation: int
    is_canary: bool
    lease_until: float
    transitions: tuple[Transition, ...] = ()
    is_settled: bool = False


@frozen(kw_only=False)
class BreakerRefusal:
    """No call now.

    `retry_after_s` is the exact remaining cooldown when the reason is `OPEN`; otherwise somebody else's call decides and
    it says when to ask again. `transitions` are moves noticed on the way (a lost canary).
    """

    retry_after_s: float
    reason: Reason
    transitions: tuple[Transition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatistics:
    """A look inside. `level` is how often the cooldown has doubled; `trials` the permits out in half-open."""

    state: State
    generation: int
    samples: int
    failures: int
    slow: int
    streak: int
    level: int
    trials: int
    cooldown_s: float
    remaining_s: float


class Breaker:
    """One breaker. Every method is O(1) (expiry of old samples is amortised); none waits or calls back.

    `state` is that as of the last operation; read it freely.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self.state = _CLOSED
        self._generation = 0
        self._permits = 0
        self._ring = _Ring()
        self._streak = 0
        self._streak_at = 0.0
        self._evidence = _Evidence()
        self._level = 0
        self._cooldown_s = 0.0
        self._open_until = 0.0
        self._limit = 1
        self._clean = 0
        self._trials: dict[int, float] = {}
        self._inconclusive = 0
        self._not_before = 0.0
        self._unreported: tuple[Transition, ...] = ()

    def peek(self, now: float) -> BreakerRefusal | None:
        """Return why no call at all could go now, or None. Takes nothing; a canary whose lease is over is lost here."""
        if self.state is _CLOSED:
            return None
        self._expire_lease(now)
        refusal = self._refusal(now)
        return self._with_report(refusal) if refusal else None

    def acquire(self, now: float, *, may_be_canary: bool, lease_s: float) -> Permit | BreakerRefusal:
        """Take a permit for a call that is about to be sent.

        Args:
            now: monotonic seconds.
            may_be_canary: the call may be the experiment: a read, or one that may safely be made twice.
            lease_s: bound on the call's answer, with slack; a canary that exceeds it counts as failed.
        """
        if self.state is _CLOSED:
            self._permits += 1
            transitions = self._report() if self._unreported else ()
            return Permit(self._permits, self._generation, False, now + lease_s, transitions)
        self._expire_lease(now)
        refusal = self._refusal(now)
        if refusal is None and self._wants_canary and not may_be_canary:
            refusal = BreakerRefusal(RECHECK_S, Reason.NO_ELIGIBLE_CANARY)
        if refusal is not None:
            return self._with_report(refusal)
        if self.state is _OPEN:
            self._move(Cause.COOLDOWN_OVER, now)
        return self._try(now + lease_s)

    def acquire_at_once(self) -> int | None:
        """Return the generation in which any call may go now without a permit; None, and nothing changed, where it takes
        `acquire` to tell.

        Same as `acquire`, for the many calls that meet a closed breaker; `settle_at_once` counts them.
        """
        return self._generation if self.state is _CLOSED and not self._unreported else None

    def settle_at_once(self, generation: int, verdict: Verdict, now: float, elapsed_s: float) -> tuple[Transition, ...]:
        """Count what a call showed that `acquire_at_once` let go: what `settle` does with the permit of a closed breaker."""
        if self._trials:
            self._expire_lease(now)
        if generation == self._generation and verdict is not _NEUTRAL:
            slow_after_s = self._settings.slow_after
            self._record(verdict, now, slow_after_s is not None and elapsed_s > slow_after_s)
        return self._report() if self._unreported else ()

    def settle(self, permit: Permit, verdict: Verdict, now: float, elapsed_s: float | None) -> tuple[Transition, ...]:
        """Give a permit back with what its call showed. May be repeated; a permit of an earlier generation is inert.

        Args:
            permit: from `acquire`.
            verdict: what the outcome says about the tool.
            now: monotonic seconds.
            elapsed_s: from sending to the answer's head; None if unknown, which is never slow.
        """
        if self._trials:
            self._expire_lease(now)
        if not permit.is_settled and permit.generation == self._generation:
            slow_after_s = self._settings.slow_after
            is_slow = slow_after_s is not None and elapsed_s is not None and elapsed_s > slow_after_s
            if self.state is _CLOSED:
                if verdict is not _NEUTRAL:
                    self._record(verdict, now, is_slow)
            else:
                self._judge(permit, verdict, now, is_slow)
        permit.is_settled = True
        return self._report() if self._unreported else ()

    def observe(self, permit: Permit, verdict: Verdict, now: float) -> tuple[Transition, ...]:
        """Count what was learnt after the permit was settled: a stream that broke after its head."""
        self._expire_lease(now)
        if permit.generation == self._generation:
            if self.state is _CLOSED:
                if verdict is not _NEUTRAL:
                    self._record(verdict, now, is_slow=False)
            elif verdict in (_FAILURE, Verdict.FAILURE_SERVER):
                self._move(Cause.CANARY_FAILED, now)
        return self._report()

    def reconfigure(self, settings: BreakerSettings, now: float) -> None:
        """Go on under other settings; state, permits and samples stay. A running cooldown is cut to the new cap."""
        self._settings = settings
        self._ring.trim(settings.window, now - settings.max_age)
        self._cooldown_s = min(self._cooldown_s, self._cap_s)
        self._open_until = min(self._open_until, now + self._cooldown_s)

    def snapshot(self, now: float, at: int) -> dict[str, str | int | float]:
        """Return what must survive a restart, as plain values. `at` is UTC milliseconds at `now`."""
        self._expire_lease(now)
        remaining_s = self._remaining_s(now)
        return {
            "version": 1,
            "state": _CLOSED if self.state is _CLOSED else _OPEN,
            "level": self._level,
            "cooldown_s": self._cooldown_s,
            "until_at": at + round(remaining_s * 1000),
        }

    @classmethod
    def restore(cls, settings: BreakerSettings, snapshot: Mapping[str, object], now: float, at: int) -> Breaker:
        """Return a breaker that goes on where `snapshot` was taken.

        A canary that was out is forgotten: the next eligible call is one. The remaining cooldown lies within
        [0, cap], whatever the wall clock did meanwhile.

        Raises:
            ValueError: the snapshot is not one of ours.
        """
        breaker = cls(settings)
        try:
            state, level = State(str(snapshot["state"])), int(str(snapshot["level"]))
            cooldown_s, until_at = float(str(snapshot["cooldown_s"])), int(str(snapshot["until_at"]))
        except KeyError as error:
            raise ValueError(f"a breaker's snapshot lacks {error}") from error
        if snapshot.get("version") != 1 or level < 0 or not 0 <= cooldown_s < float("inf"):
            raise ValueError("a breaker's snapshot has another version or values out of range")
        breaker._level = min(level, breaker._top_level())
        if state is not _CLOSED:
            breaker.state = _OPEN
            breaker._cooldown_s = min(cooldown_s, breaker._cap_s)
            breaker._open_until = now + min(max(0.0, (until_at - at) / 1000), breaker._cooldown_s)
        return breaker

    def statistics(self, now: float) -> BreakerStatistics:
        """Return a look inside; changes nothing."""
        return BreakerStatistics(
            state=self.state,
            generation=self._generation,
            samples=len(self._ring),
            failures=self._ring.failures,
            slow=self._ring.slow,
            streak=self._streak,
            level=self._level,
            trials=len(self._trials),
            cooldown_s=self._cooldown_s if self.state is _OPEN else 0.0,
            remaining_s=self._remaining_s(now),
        )

    @property
    def _wants_canary(self) -> bool:
        return self.state is _OPEN or (self.state is _HALF_OPEN and self._limit == 1)

    @property
    def _cap_s(self) -> float:
        return max(self._settings.cooldown, self._settings.max_cooldown)

    def _refusal(self, now: float) -> BreakerRefusal | None:
        if self.state is _OPEN and now < self._open_until:
            return BreakerRefusal(min(self._cooldown_s, self._open_until - now), _LEFT_ALONE)
        if self.state is _HALF_OPEN:
            if len(self._trials) >= self._limit:
                lease_left_s = min(self._trials.values()) - now
                return BreakerRefusal(min(lease_left_s, RECHECK_S), Reason.CANARY_OUT)
            if now < self._not_before:
                return BreakerRefusal(self._not_before - now, Reason.CANARY_OUT)
        return None

    def _try(self, lease_until: float) -> Permit:
        """Return a permit of a half-open breaker."""
        self._permits += 1
        self._trials[self._permits] = lease_until
        return Permit(self._permits, self._generation, self._wants_canary, lease_until, self._report())

    def _expire_lease(self, now: float) -> None:
        """Lose a canary whose lease is over, as of the end of its lease, so that it does not matter who notices when."""
        if self._trials:
            first_s = min(self._trials.values())
            if first_s <= now:
                self._move(Cause.CANARY_LOST, first_s)

    def _with_report(self, refusal: BreakerRefusal) -> BreakerRefusal:
        return replace(refusal, transitions=self._report()) if self._unreported else refusal

    def _report(self) -> tuple[Transition, ...]:
        transitions, self._unreported = self._unreported, ()
        return transitions

    def _record(self, verdict: Verdict, now: float, is_slow: bool) -> None:
        settings, ring = self._settings, self._ring
        is_failure = verdict is not _SUCCESS
        samples, oldest_s = ring.samples, now - settings.max_age
        samples.append((now, is_failure, is_slow))
        if is_failure or is_slow:
            ring.count(is_failure, is_slow)
        if len(samples) > settings.window or samples[0][0] < oldest_s:
            _, was_failure, was_slow = samples.popleft()
            if was_failure or was_slow:
                ring.count(-was_failure, -was_slow)
            if samples and samples[0][0] < oldest_s:
                ring.trim(settings.window, oldest_s)
        if verdict is not _FAILURE:
            self._streak = 0
        else:
            self._streak = self._streak + 1 if now - self._streak_at <= settings.max_age else 1
            self._streak_at = now
        if self._level and self._evidence.shows_health(is_failure, settings):
            self._level -= 1
        if (ring.failures or ring.slow) and (cause := self._trip_cause()) is not None:
            self._move(cause, now)

    def _trip_cause(self) -> Cause | None:
        settings, samples = self._settings, len(self._ring)
        if self._streak >= settings.consecutive:
            return Cause.CONSECUTIVE
        if samples < min(settings.minimum, settings.window):
            return None
        if self._ring.failures / samples >= settings.failure_ratio:
            return Cause.FAILURE_RATIO
        if settings.slow_after is not None and self._ring.slow / samples >= settings.slow_ratio:
            return Cause.SLOW_RATIO
        return None

    def _judge(self, permit: Permit, verdict: Verdict, now: float, is_slow: bool) -> None:
        self._trials.pop(permit.id, None)
        if verdict is _NEUTRAL:
            if permit.is_canary:
                self._take_canary_back(now)
        elif verdict is not _SUCCESS or is_slow:
            self._move(Cause.CANARY_FAILED, now)
        else:
            self._go_up(now)

    def _go_up(self, now: float) -> None:
        self._clean += 1
        if self._settings.ramp and self._clean >= self._limit:
            self._limit, self._clean = self._limit * 2, 0
        if not self._settings.ramp or self._limit > RAMP_END:
            self._move(Cause.HEALED, now)

    def _take_canary_back(self, now: float) -> None:
        self._inconclusive += 1
        self._not_before = now + CANARY_SPACING_S
        if self._inconclusive >= INCONCLUSIVE_LIMIT:
            self._move(Cause.CANARY_INCONCLUSIVE, now)

    def _move(self, cause: Cause, now: float) -> None:
        before, after = TRANSITIONS[cause]
        assert self.state is before, f"{cause} in state {self.state}"
        self.state = after
        self._generation += 1
        self._trials.clear()
        self._limit, self._clean, self._inconclusive, self._not_before = 1, 0, 0, 0.0
        if cause in _GROWING:
            self._level = min(self._level + 1, self._top_level())
        if after is _OPEN:
            self._cooldown_s = min(self._cap_s, self._settings.cooldown * 2.0**self._level)
            self._open_until = now + self._cooldown_s
        elif after is _CLOSED:
            self._ring.clear()
            self._streak = 0
            self._evidence = _Evidence()
        self._unreported += (Transition(before, after, cause, self._cooldown_s if after is _OPEN else 0.0),)

    def _top_level(self) -> int:
        """The level at which the cap is reached; growing beyond would only delay the decay."""
        level = 0
        while level < 63 and self._settings.cooldown * 2.0**level < self._cap_s:
            level += 1
        return level

    def _remaining_s(self, now: float) -> float:
        if self.state is not _OPEN:
            return 0.0
        return min(self._cooldown_s, max(0.0, self._open_until - now))


_Sample = tuple[float, bool, bool]
"""When, whether it failed, whether it was slow. A plain tuple: every call makes one."""


class _Ring:
    """The last outcomes, oldest first, with counters that are kept and never summed again."""

    def __init__(self) -> None:
        self.samples: deque[_Sample] = deque()
        self.failures = 0
        self.slow = 0

    def __len__(self) -> int:
        return len(self.samples)

    def count(self, failures: int, slow: int) -> None:
        """Count what was put at the end, or, below zero, taken from the beginning."""
        self.failures += failures
        self.slow += slow

    def trim(self, window: int, oldest_s: float) -> None:
        """Drop what exceeds the window or is older than `oldest_s`."""
        samples = self.samples
        while samples and (len(samples) > window or samples[0][0] < oldest_s):
            _, was_failure, was_slow = samples.popleft()
            if was_failure or was_slow:
                self.failures -= was_failure
                self.slow -= was_slow

    def clear(self) -> None:
        self.samples.clear()
        self.failures = self.slow = 0


class _Evidence:
    """Stretches of `window` outcomes while closed; one with less than half the failures that open shows health.

    Begun anew whenever the breaker closes, and kept only while there is a level to take back: none comes while closed.
    """

    def __init__(self) -> None:
        self._outcomes = 0
        self._failures = 0

    def shows_health(self, is_failure: bool, settings: BreakerSettings) -> bool:
        """Count an outcome; True when it completes a healthy stretch."""
        self._outcomes += 1
        self._failures += is_failure
        if self._outcomes < settings.window:
            return False
        is_healthy = self._failures / self._outcomes < settings.failure_ratio / 2
        self._outcomes = self._failures = 0
        return is_healthy


_VERDICTS: Mapping[Fault, Verdict] = {
    Fault.NONE: Verdict.SUCCESS,
    Fault.CLIENT_ERROR: Verdict.SUCCESS,
    Fault.CONNECT: Verdict.FAILURE,
    Fault.CONNECT_TIMEOUT: Verdict.FAILURE,
    Fault.TIMEOUT: Verdict.FAILURE,
    Fault.RESET: Verdict.FAILURE,
    Fault.PROTOCOL: Verdict.FAILURE,
    Fault.SERVER: Verdict.FAILURE_SERVER,
    Fault.THROTTLED: Verdict.FAILURE_SERVER,
    Fault.CANCELLED: Verdict.NEUTRAL,
}


def verdict_of(outcome: Outcome, settings: BreakerSettings) -> Verdict:
    """Return what an outcome says about the tool.

    Application errors show a tool that works. A 429 counts as a failure unless `count_429` is false, then it counts as
    neither; 503 is a failure with or without Retry-After. Our own refusals say nothing about the tool.
    """
    if isinstance(outcome, Success):
        return _SUCCESS
    if isinstance(outcome, Rejected):
        return _NEUTRAL
    if outcome.fault is Fault.THROTTLED and not settings.count_429 and outcome.reply and outcome.reply.status == 429:
        return Verdict.NEUTRAL
    return _VERDICTS[outcome.fault]
