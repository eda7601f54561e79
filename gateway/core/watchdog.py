"""Busy without progress: notices that a run goes in circles, and says what to do about it.

Three things are watched, all by what the world answered, never by how busy the agent looks:

* **Repetition** - the same action with the same failing result, `repeats` times in a row of its own occurrences. The result
  counts too: a poll whose answer changes is no loop, and one whose answer stays is let be up to `polls`.
* **State cycles** - the state of the world after a change equals one seen up to `period` changes ago.
* **Stagnation** - `epoch` changes without a better value in any metric that is reported.

The ladder: the first violation is an interrupt, an observation in place of the call. A second within `relapse` steps means
that the agent did not heed it: back to before the loop, and the action that closed it is masked for the rest of the run.
When `rewinds` of these are spent, the run is a semantic deadlock.

Constant time and bounded memory per step, whatever the length of the run: an ordered map of the last `window` actions, a
ring of states, counts for the entropy. `check` changes nothing; `acted`, `state_is`, `measured` and `interrupted` do.

Source: seed 000, "Semantic watchdogs" (state hashes, metric monotony, xxHash64 of actions, the three-level ladder);
HKUDS/nanobot#2298 (hash the result too); NousResearch/hermes-agent#67829 (block, do not warn).
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt

from gateway.core.setting import Doc

__all__ = ["Loop", "Pattern", "Verdict", "Watchdog", "WatchdogSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogSettings:
    """When a run counts as going in circles."""

    repeats: Annotated[int, Ge(1), Doc("Equal failures of one action after which it is not sent again.")] = 3
    polls: Annotated[int, Ge(1), Doc("Equal successful answers to one action after which it counts as a loop.")] = 100
    window: Annotated[int, Gt(0), Doc("Distinct actions that are remembered.")] = 64
    period: Annotated[int, Gt(0), Doc("Longest cycle of states that is noticed, in changes.")] = 8
    epoch: Annotated[int, Gt(0), Doc("Changes that may pass without a better metric.")] = 20
    relapse: Annotated[int, Ge(1), Doc("A violation within so many steps of an interrupt was not heeded.")] = 3
    rewinds: Annotated[int, Ge(0), Doc("Times a run is taken back before it is a deadlock.")] = 2


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


@dataclass(frozen=True, slots=True)
class Loop:
    """A violation.

    Attributes:
        pattern: what was seen.
        verdict: what to do.
        since_step: the step with which it began; where a rewind goes back to the one before.
        times: how often it repeated, or the cycle's period.
    """

    pattern: Pattern
    verdict: Verdict
    since_step: int
    times: int


@dataclass(slots=True)
class _Seen:
    """One action: its latest result, how often that came in a row, and since which step."""

    result: int
    failed: bool
    times: int
    since_step: int
    held_at: int = -1


class Watchdog:
    """The watchdog of one run."""

    __slots__ = (
        "_best", "_counts", "_interrupted_at", "_masked", "_pending", "_recent", "_rewinds", "_seen", "_settings",
        "_since_better", "_states", "step",
    )  # fmt: skip

    def __init__(self, settings: WatchdogSettings) -> None:
        self._settings = settings
        self.step = 0
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        self._recent: deque[int] = deque(maxlen=settings.window)
        self._counts: Counter[int] = Counter()
        self._states: deque[tuple[int, int]] = deque(maxlen=settings.period)
        self._best: dict[str, float] = {}
        self._since_better = 0
        self._pending: tuple[Pattern, int, int] | None = None
        self._interrupted_at: int | None = None
        self._masked: set[int] = set()
        self._rewinds = 0

    def check(self, action: int, *, is_read: bool) -> Loop | None:
        """Return the violation that sending `action` now would be, or None. Changes nothing.

        Args:
            action: hash of operation and canonical arguments.
            is_read: reads are never held back by what happened to the state or the metrics.
        """
        if action in self._masked:
            return Loop(Pattern.MASKED, self._verdict(), self.step, 1)
        seen = self._seen.get(action)
        if seen is not None:
            is_held = seen.held_at == self.step
            if (seen.times >= self._limit(seen) or is_held) and (seen.failed or is_read):
                pattern = Pattern.REPETITION if seen.failed else Pattern.POLLING
                return Loop(pattern, self._verdict(), seen.since_step, seen.times)
        if self._pending is not None and not is_read:
            pattern, since, times = self._pending
            return Loop(pattern, self._verdict(), since, times)
        return None

    def interrupted(self, loop: Loop, action: int) -> None:
        """Note that `loop` was acted upon in place of the call.

        An interrupted action may be tried once more after another one was carried out: the world may have changed.
        """
        self._pending = None
        self._since_better = 0
        self._states.clear()
        self._interrupted_at = self.step
        seen = self._seen.get(action)
        if seen is not None:
            seen.held_at = self.step
            seen.times = min(seen.times, self._limit(seen) - 1)
        if loop.verdict is not Verdict.INTERRUPT:
            self._masked.add(action)
            self._rewinds += 1

    def _limit(self, seen: _Seen) -> int:
        return self._settings.repeats if seen.failed else self._settings.polls

    def acted(self, action: int, result: int, *, failed: bool, is_change: bool) -> None:
        """Note an action that was carried out and the hash of its result."""
        self.step += 1
        self._note_entropy(action)
        seen = self._seen.get(action)
        if seen is not None and seen.result == result and seen.failed == failed:
            seen.times += 1
        else:
            self._seen[action] = _Seen(result, failed, 1, self.step)
        self._seen.move_to_end(action)
        if len(self._seen) > self._settings.window:
            self._seen.popitem(last=False)
        if is_change and self._best:
            self._since_better += 1
            if self._since_better >= self._settings.epoch:
                self._pending = (Pattern.STAGNATION, self.step - self._since_better + 1, self._since_better)

    def state_is(self, state: int) -> None:
        """Note the state of the world after a change, as a hash of its canonical form."""
        for distance, (past, step) in enumerate(reversed(self._states), start=1):
            if past == state:
                self._pending = (Pattern.OSCILLATION, step, distance)
                break
        self._states.append((state, self.step))

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Note metrics, larger being better. A better value in any of them is progress."""
        for name, value in metrics.items():
            best = self._best.get(name)
            if best is None or value > best:
                if best is not None:
                    self._since_better = 0
                    if self._pending is not None and self._pending[0] is Pattern.STAGNATION:
                        self._pending = None
                self._best[name] = value

    @property
    def entropy_bits(self) -> float:
        """Shannon entropy of the recent actions in bits: near zero when the run does one thing over and over."""
        total = len(self._recent)
        return -sum(count / total * math.log2(count / total) for count in self._counts.values()) if total else 0.0

    def _verdict(self) -> Verdict:
        at = self._interrupted_at
        if at is None or self.step - at > self._settings.relapse:
            return Verdict.INTERRUPT
        return Verdict.REWIND if self._rewinds < self._settings.rewinds else Verdict.DEADLOCK

    def _note_entropy(self, action: int) -> None:
        if len(self._recent) == self._recent.maxlen:
            oldest = self._recent[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._recent.append(action)
        self._counts[action] += 1
