"""What of a run's circles outlives a restart: the fold of the watchdog's own records, bounded whatever the run does.

Steps and their ends are in the run's other records already; the watchdog of a run that is read back is built from both
(`core/interrupt.py`). Reads are recorded without what was asked, so repetitions of reads are counted anew after a restart:
the error is on the side of patience.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gateway.core.records import LoopInterrupted, MetricsReported, StateReported

__all__ = ["Circles", "fold_circles"]

KEPT = 128
"""Reports that are kept: more than the widest ring of states of the default settings, for several sources."""

MASKS = 64


@dataclass(slots=True)
class Circles:
    """What was reported and done about circles.

    Attributes:
        reports: the newest states and metrics, each with its stream version.
        interrupted: how often a call was held back; `rewinds`: how often more than that was done, short of a deadlock.
        masked: actions that are not sent any more, the newest.
        is_deadlocked: the run was stopped for good.
        last: the latest that was held back.
        since: stream version before which nothing counts any more.
    """

    reports: deque[tuple[int, StateReported | MetricsReported]] = field(default_factory=lambda: deque(maxlen=KEPT))
    interrupted: int = 0
    rewinds: int = 0
    masked: dict[str, None] = field(default_factory=dict)
    is_deadlocked: bool = False
    last: LoopInterrupted | None = None
    since: int = 0

    def released(self, position: int) -> None:
        """A person lets the run go on: it starts with a full ladder, and every action may be tried again."""
        self.is_deadlocked, self.rewinds, self.since = False, 0, position
        self.masked.clear()
        self.reports.clear()


def fold_circles(circles: Circles, record: LoopInterrupted | StateReported | MetricsReported, position: int) -> Circles:
    """Fold one record, the run's `position`th. Changes `circles` and returns it."""
    if not isinstance(record, LoopInterrupted):
        circles.reports.append((position, record))
        return circles
    circles.interrupted += 1
    circles.last = record
    if record.verdict != "interrupt":
        circles.masked[record.action] = None
        if len(circles.masked) > MASKS:
            del circles.masked[next(iter(circles.masked))]
    if record.verdict in ("rewind", "mask"):
        circles.rewinds += 1
        circles.reports.clear()
    circles.is_deadlocked = circles.is_deadlocked or record.verdict == "deadlock"
    return circles
