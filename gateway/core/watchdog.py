"""Busy without progress: notices that a run goes in circles, and says what to do about it.

Three things are watched, all by what the world answered, never by how busy the agent looks:

* **Repetition** - the same action with the same "no", `repeats` times with nothing changed in between, or `retries` times
  although something was. The answer counts: three failing tests and then two are no repetition. A "not yet" (a read of
  what is not there yet, a tool out of order, a poll whose answer stays) is let be up to `polls`, or up to the cap that its
  operation declares.
* **State cycles** - the states of the world after changes go round: a whole lap of some period up to `period` repeats the
  lap before it. One return is no cycle: to take back a change that did not help is what a careful agent does.
* **Stagnation** - metrics are measured again after `epoch` changes or more, and none of them was better since.

The ladder: the first violation is an interrupt, an observation in place of the call. A second within `relapse` steps means
that the agent did not heed it: back to before the loop, and the action that closed it is masked for the rest of the run.
When `rewinds` of these are spent, the run is a semantic deadlock.

Constant time and bounded memory per step, whatever the length of the run: an ordered map of the last `window` actions, a
ring of states for each of a few sources, counts for the entropy. `check` changes nothing; all else does.

An action is the first 64 bits of the digest that tells repeats apart (`core/canonical.py`): a hash of operation and
canonical JSON, as the seed wants, that is computed anyway.

Source: seed 000, "Semantic watchdogs" (state hashes, metric monotony, hashes of actions, the three-level ladder);
HKUDS/nanobot#2298 (hash the result too); NousResearch/hermes-agent#67829 (block, do not warn).
Left out: the entropy of the tokens in the model's draft, which a gateway does not see; that of the actions is reported.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt, Le

from gateway.core.canonical import fingerprint
from gateway.core.setting import Doc
from gateway.core.value import frozen

if TYPE_CHECKING:
    from gateway.core.tool import BoundRequest

__all__ = [
    "Ended",
    "Loop",
    "Pattern",
    "Verdict",
    "Watchdog",
    "WatchdogMode",
    "WatchdogSettings",
    "action_hash",
    "first_return",
    "inverse",
    "says_nothing",
]


class WatchdogMode(StrEnum):
    """What becomes of a run that goes in circles."""

    OFF = "off"
    OBSERVE = "observe"
    INTERRUPT = "interrupt"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogSettings:
    """When a run counts as going in circles, and what is done about it."""

    mode: Annotated[
        WatchdogMode,
        Doc(
            "`off`; `observe`: only count; `interrupt`: stop such calls, mask them if they go on; `enforce`: also take a "
            "named run back, and in the end abort it, or freeze it past its pivot."
        ),
    ] = WatchdogMode.ENFORCE
    repeats: Annotated[
        int, Ge(2), Doc("Equal noes to one action, nothing changed in between, after which it is not sent again.")
    ] = 3
    retries: Annotated[
        int, Ge(2), Doc("Equal noes to one action after which it is not sent again, whatever was changed in between.")
    ] = 12
    polls: Annotated[int, Ge(2), Doc("Equal answers to one poll after which it counts as a loop.")] = 200
    window: Annotated[int, Gt(0), Le(4096), Doc("Distinct actions that are remembered.")] = 64
    period: Annotated[int, Gt(0), Le(64), Doc("Longest cycle of states that is noticed, in changes.")] = 8
    returns: Annotated[
        int, Ge(1), Doc("States in a row that must equal those a period before; never less than the period.")
    ] = 2
    epoch: Annotated[int, Gt(0), Doc("Changes that may pass without a better metric.")] = 20
    relapse: Annotated[int, Ge(1), Doc("A violation within so many steps of an interrupt was not heeded.")] = 3
    rewinds: Annotated[int, Ge(0), Doc("Times a run is taken back before it is a deadlock.")] = 2
    volatile: Annotated[
        tuple[str, ...], Doc("Names of JSON members that change by themselves, beside the known ones; not compared.")
    ] = ()


class Pattern(StrEnum):
    """What was seen."""

    REPETITION = "REPEATED_FAILURE_DETECTED"
    POLLING = "ENDLESS_POLLING_DETECTED"
    OSCILLATION = "STATE_OSCILLATION_DETECTED"
    STAGNATION = "METRIC_STAGNATION_DETECTED"
    MASKED = "MASKED_ACTION_REPEATED"


class Verdict(StrEnum):
    """What to do about it."""

    INTERRUPT = "interrupt"
    REWIND = "rewind"
    DEADLOCK = "deadlock"


class Ended(StrEnum):
    """How an action ended: it was done, the answer is no whoever asks again, or not yet."""

    DONE = "done"
    NO = "no"
    NOT_YET = "not_yet"


@dataclass(frozen=True, slots=True)
class Loop:
    """A violation.

    Attributes:
        pattern: what was seen.
        verdict: what to do.
        since_action: with which action of the run it began, reads counted too, from 1.
        since_step: the journaled step with which it began; None if no step belongs to it.
        undo_after: what was done after this step is undone by a rewind; None if nothing belongs to the loop.
        times: how often it repeated; of a cycle, its period.
    """

    pattern: Pattern
    verdict: Verdict
    since_action: int
    since_step: int | None
    undo_after: int | None
    times: int


@dataclass(slots=True)
class _Seen:
    """One action: its latest end, how often that came, and how often in a row with nothing changed in between."""

    result: int
    ended: Ended
    since: int
    number: int | None
    cap: int | None
    total: int = 1
    row: int = 1
    row_since: int = 0
    row_number: int | None = None
    changes: int = 0
    last: int | None = None
    held_at: int = -1
    held: Loop | None = None


@frozen(kw_only=False)
class _State:
    value: int
    action: int
    step: int


@dataclass(slots=True)
class _Orbit:
    """The states of one source; of each period, how many in a row equal those one period before, and how many must."""

    states: list[_State]
    limit: int
    rows: list[int]
    needed: list[int]
    has_rows: bool = False
    _values: dict[int, int] = field(default_factory=dict)

    def is_new(self, state: int) -> bool:
        """Whether none of the states kept is this one."""
        return state not in self._values

    def append(self, state: _State) -> None:
        """Keep one more, and forget the oldest where there is no more room."""
        values, states = self._values, self.states
        if len(states) >= self.limit:
            oldest = states.pop(0).value
            if values[oldest] == 1:
                del values[oldest]
            else:
                values[oldest] -= 1
        states.append(state)
        values[state.value] = values.get(state.value, 0) + 1


@dataclass(frozen=True, slots=True)
class _Pending:
    """What the next change of the run will meet."""

    pattern: Pattern
    since_action: int
    undo_after: int
    times: int


SOURCES = 8
"""Sources of states that are kept apart in one run; the oldest gives way."""


class Watchdog:
    """The watchdog of one run.

    A gentle one never calls a run a deadlock: of runs that nobody named the steps belong together by chance.

    Attributes:
        step: actions so far.
        effects: what the run's own steps amount to.
        heard_s: monotonic seconds when the agent was last told of a loop; for its owner, nothing here reads it.
        since: stream version since when it counts; for its owner, too.
    """

    __slots__ = (
        "_best", "_better_step", "_changes", "_counts", "_interrupted_at", "_is_gentle", "_last_step", "_logs", "_masked",
        "_orbits", "_pending", "_recent", "_rewinds", "_seen", "_since_better", "_sum", "effects", "heard_s", "settings",
        "since", "step",
    )  # fmt: skip

    def __init__(self, settings: WatchdogSettings, *, is_gentle: bool = False) -> None:
        self.settings = settings
        self.step = 0
        self.effects = NetEffect(settings.window)
        self.heard_s = -math.inf
        self.since = 0
        self._is_gentle = is_gentle
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._recent: list[Hashable] = []  # an empty deque takes as much as a hundred of them
        self._counts: dict[Hashable, int] = {}
        self._sum = 0.0
        self._logs = _logs(settings.window)
        self._orbits: OrderedDict[str, _Orbit] = OrderedDict()
        self._best: dict[str, float] = {}
        self._since_better = 0
        self._better_step = 0
        self._pending: _Pending | None = None
        self._interrupted_at: int | None = None
        self._masked: dict[Hashable, None] = {}
        self._rewinds = 0
        self._changes = 0
        self._last_step = 0

    # --- what may be sent

    def may_object(self, action: Hashable) -> bool:
        """Whether `check` has anything to look at for this action; cheap, and False for most calls."""
        return action in self._seen or self._pending is not None or action in self._masked

    def check(self, action: Hashable, *, is_read: bool) -> Loop | None:
        """Return the violation that sending `action` now would be, or None. Changes nothing.

        Args:
            action: digest of operation and canonical arguments.
            is_read: reads are never held back by what happened to the state or the metrics.
        """
        if action in self._masked:
            return Loop(Pattern.MASKED, self._verdict(), self.step + 1, None, None, 1)
        seen = self._seen.get(action)
        if seen is not None and (loop := self._repetition(seen, is_read=is_read)) is not None:
            return loop
        pending = self._pending
        if pending is not None and not is_read:
            step = pending.undo_after + 1
            return Loop(pending.pattern, self._verdict(), pending.since_action, step, pending.undo_after, pending.times)
        return None

    def _repetition(self, seen: _Seen, *, is_read: bool) -> Loop | None:
        settings = self.settings
        if seen.held is not None and seen.held_at == self.step:
            return replace(seen.held, verdict=self._verdict())
        if seen.ended is Ended.NO:
            if seen.row >= settings.repeats:
                return self._repeated(Pattern.REPETITION, seen.row_since, seen.row_number, seen.row)
            if seen.total >= settings.retries:
                return self._repeated(Pattern.REPETITION, seen.since, seen.number, seen.total)
            return None
        if seen.ended is Ended.DONE and not is_read:
            return None
        if seen.total >= (seen.cap or settings.polls):
            return self._repeated(Pattern.POLLING, seen.since, seen.number, seen.total)
        return None

    def _repeated(self, pattern: Pattern, since: int, number: int | None, times: int) -> Loop:
        return Loop(pattern, self._verdict(), since, number, None if number is None else number - 1, times)

    def interrupted(self, loop: Loop, action: Hashable) -> None:
        """Note that `loop` was acted upon in place of the call.

        An interrupted action may be tried once more after another one was carried out: the world may have changed. A poll
        may then go on for as long again.
        """
        self._pending = None
        self._interrupted_at = self.step
        seen = self._seen.get(action)
        if seen is not None:
            seen.held_at, seen.held = self.step, loop
            is_no = seen.ended is Ended.NO
            seen.row = min(seen.row, self.settings.repeats - 1)
            seen.total = min(seen.total, self.settings.retries - 1) if is_no else 0
        if loop.verdict is not Verdict.INTERRUPT:
            self.masks(action, self._rewinds + 1)
            self._orbits.clear()
            self._since_better = 0
            self.effects.clear()

    def _verdict(self) -> Verdict:
        at = self._interrupted_at
        if at is None or self.step - at > self.settings.relapse:
            return Verdict.INTERRUPT
        has_rewinds = self._is_gentle or self._rewinds < self.settings.rewinds
        return Verdict.REWIND if has_rewinds else Verdict.DEADLOCK

    # --- what happened

    def acted(
        self,
        action: Hashable,
        result: int | None,
        ended: Ended,
        *,
        is_change: bool = False,
        number: int | None = None,
        cap: int | None = None,
    ) -> None:
        """Note an action that was carried out, or that we refused.

        Args:
            action: digest of operation and canonical arguments.
            result: hash of the answer; None where it is not known, and so not compared.
            ended: how it ended.
            is_change: it changed the world.
            number: of its step in the journal, if it has one.
            cap: of a declared poll, the equal answers after which it counts as a loop.
        """
        step = self.step = self.step + 1
        self._note_entropy(action)
        if number is not None and number > self._last_step:
            self._last_step = number
        if is_change:
            self._changes += 1
            self._since_better += 1
        if result is None:
            return
        seen = self._seen.get(action)
        if seen is None:  # as most are
            self._seen[action] = _Seen(result, ended, step, number, cap, 1, 1, step, number, self._changes, number)
            if len(self._seen) > self.settings.window:
                self._seen.popitem(last=False)
            return
        if number is not None and number == seen.last:
            return  # several calls shared one step
        if seen.result != result or seen.ended is not ended:
            seen = self._seen[action] = _Seen(result, ended, step, number, cap)
            seen.row_since, seen.row_number = step, number
        else:
            seen.total += 1
            if seen.total == 1 or self._changes > seen.changes:
                seen.row, seen.row_since, seen.row_number = 1, step, number
            else:
                seen.row += 1
        seen.changes, seen.last = self._changes, number
        self._seen.move_to_end(action)

    def state_is(self, state: int, source: str = "agent", *, laps: int = 1) -> Pattern | None:
        """Note the state of the world after a change, as a hash of its canonical form. Returns what it shows, or None.

        Args:
            state: 64 bits.
            source: who says so; states of different sources are not compared.
            laps: how many laps must repeat the first before it is a cycle.
        """
        orbit = self._orbits.get(source)
        period = self.settings.period
        if orbit is None:
            needed = [max(distance * laps, self.settings.returns) for distance in range(period + 1)]
            orbit = self._orbits[source] = _Orbit([], (laps + 1) * period + 1, [0] * (period + 1), needed)
            if len(self._orbits) > SOURCES:
                self._orbits.popitem(last=False)
        if orbit.is_new(state):  # as most are: no row goes on
            if orbit.has_rows:
                orbit.rows, orbit.has_rows = [0] * (period + 1), False
            orbit.append(_State(state, self.step, self._last_step))
            return None
        states, rows, needed, found = orbit.states, orbit.rows, orbit.needed, 0
        known, orbit.has_rows = len(states), True
        for distance in range(1, period + 1):
            is_equal = distance <= known and states[known - distance].value == state
            rows[distance] = rows[distance] + 1 if is_equal else 0
            if not found and rows[distance] >= needed[distance]:
                found = distance
        orbit.append(_State(state, self.step, self._last_step))
        if not found:
            return None
        first = states[max(0, len(states) - rows[found] - found)]
        self._pending = _Pending(Pattern.OSCILLATION, first.action + 1, first.step, found)
        return Pattern.OSCILLATION

    def has_states_of(self, source: str) -> bool:
        """Whether a source has said anything yet."""
        return source in self._orbits

    def measured(self, metrics: Mapping[str, float]) -> Pattern | None:
        """Note metrics, larger being better; of the first 64 names. Returns what they show, or None.

        A better value in any of them is progress.
        """
        is_better = not self._best
        for name, value in metrics.items():
            best = self._best.get(name)
            if best is None:
                if len(self._best) < METRICS and not math.isnan(value):
                    self._best[name] = value
            elif value > best:
                self._best[name], is_better = value, True
        if is_better:
            self._since_better, self._better_step = 0, self._last_step
            if self._pending is not None and self._pending.pattern is Pattern.STAGNATION:
                self._pending = None
            return None
        if self._since_better < self.settings.epoch:
            return None
        since = max(1, self.step - self._since_better + 1)
        self._pending = _Pending(Pattern.STAGNATION, since, self._better_step, self._since_better)
        return Pattern.STAGNATION

    # --- after a restart

    def masks(self, action: Hashable, rewinds: int) -> None:
        """Take up a mask, and how many rewinds are spent."""
        self._masked[action] = None
        if len(self._masked) > self.settings.window:
            del self._masked[next(iter(self._masked))]
        self._rewinds = max(self._rewinds, rewinds)

    # --- what is seen of it

    @property
    def entropy_bits(self) -> float:
        """Shannon entropy of the recent actions in bits: near zero when the run does one thing over and over."""
        total = len(self._recent)
        return max(0.0, math.log2(total) - self._sum / total) if total else 0.0

    def view(self) -> dict[str, object]:
        """Return what people are shown of it."""
        pending = self._pending
        return {
            "actions": self.step,
            "changes": self._changes,
            "entropy_bits": round(self.entropy_bits, 3),
            "masked": len(self._masked),
            "rewinds": self._rewinds,
            "pending": None if pending is None else pending.pattern.value,
        }

    def _note_entropy(self, action: Hashable) -> None:
        counts, logs, recent = self._counts, self._logs, self._recent
        if len(recent) >= self.settings.window:
            oldest = recent.pop(0)
            count = counts[oldest]
            self._sum += logs[count - 1] - logs[count]
            if count == 1:
                del counts[oldest]
            else:
                counts[oldest] = count - 1
        recent.append(action)
        if action not in counts:
            counts[action] = 1  # as most are: 1 * log2(1) is nothing to add
            return
        count = counts[action] = counts[action] + 1
        self._sum += logs[count] - logs[count - 1]


METRICS = 64
"""Names of metrics that one run may have."""

_LOGS: dict[int, list[float]] = {}


def _logs(window: int) -> list[float]:
    """Return n * log2(n) for every count that a window can hold; shared by all runs."""
    table = _LOGS.get(window)
    if table is None:
        table = _LOGS[window] = [0.0, *(n * math.log2(n) for n in range(1, window + 2))]
    return table


class NetEffect:
    """What a run's own steps amount to: a step and its inverse cancel out.

    The inverse of a step is known once the step is done: it is the call that its compensator was bound to. A step without
    one is progress for good. What was read between two changes belongs to the state after them: who learns something new on
    each lap does not go in circles. At most `limit` standing steps are remembered, the newest; what is forgotten stands for
    ever.
    """

    __slots__ = ("_limit", "_read", "_standing", "_total")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._standing: OrderedDict[Hashable, int] = OrderedDict()
        self._total = 0
        self._read = 0

    def looked(self, token: int) -> None:
        """Note a read, by a hash of what was asked and, where it is known, of what was answered."""
        self._read = (self._read * 31 + token) & _BITS

    def changed(self, call: Hashable, inverse: Hashable | None, action: int, number: int) -> int:
        """Note a change and return the state after it.

        Args:
            call: what names the call itself.
            inverse: what names the call that undoes it, if there is one.
            action: digest of operation and canonical arguments.
            number: of the step.
        """
        undone = self._standing.pop(call, None)
        if undone is not None:
            self._total = (self._total - undone) & _BITS
        elif inverse is not None:
            self._standing[inverse] = action
            self._total = (self._total + action) & _BITS
            if len(self._standing) > self._limit:
                self._standing.popitem(last=False)
        else:
            self._total = (self._total + (number + 1) * _GOLDEN) & _BITS
        state = (self._total ^ (self._read * _GOLDEN)) & _BITS
        self._read = 0
        return state

    def clear(self) -> None:
        """Forget what stands: the run was taken back, and what its compensators were is no longer so."""
        self._standing.clear()


def says_nothing(body: bytes) -> bool:
    """Whether a body says nothing, whatever its type: calls with such bodies are the same call."""
    return body.strip() in (b"", b"{}")


def inverse(bound: BoundRequest) -> tuple[str, str, str, bytes]:
    """Return what names the call that a compensator is, for `NetEffect`: tool, method, target, digest of the content."""
    body = (bound.body or "").encode()
    if says_nothing(body):
        return bound.tool, bound.method, bound.target, b""
    kind = next((value for name, value in bound.headers if name.lower() == "content-type"), "")
    return bound.tool, bound.method, bound.target, fingerprint(bound.method, bound.target, kind, body)


_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def action_hash(action: bytes) -> int:
    """Return 64 bits of a call's action digest."""
    return int.from_bytes(action[:8], "big")


def first_return(history: list[str], current: str, max_period: int) -> int | None:
    """Return how many steps ago the state was the same, up to `max_period`, or None: the seed's own detector.

    It reports the first return; `Watchdog` waits for a whole lap, since taking back a change that did not help is no loop.

    Source: seed 000, `check_state_hash_invariants`.
    """
    for distance, past in enumerate(reversed(history[-max_period:]), start=1):
        if past == current:
            return distance
    return None
