"""The live timeline: what happens, as small values, for whoever watches.

The reporter only appends to a bounded queue. Each watcher has a thread of its own that calls it back, so one that is slow
loses its oldest events, one that raises is dropped, and neither is felt by a call. With nobody watching nothing is made.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Event", "Subscription", "Timeline"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: kind, UTC milliseconds, and plain JSON values.

    Kinds: `call.started`, `call.finished`, `attempt.started` (with the injected key), `attempt.finished`,
    `retry.scheduled`, `queue.waited`, `breaker.changed`, `refused`, `step.changed`, `trajectory.changed`,
    `background.failed`. A `lane` of `compensation` marks the calls that undo a run.
    """

    kind: str
    at: int
    fields: Mapping[str, object]


class Subscription:
    """One watcher. `dropped` counts the events it was too slow for."""

    def __init__(
        self, callback: Callable[[Event], None], capacity: int, on_end: Callable[[Subscription], None]
    ) -> None:
        self.dropped = 0
        self._callback = callback
        self._on_end = on_end
        self._waiting: deque[Event] = deque(maxlen=capacity)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="seawall-timeline", daemon=True)
        self._thread.start()

    def offer(self, event: Event) -> None:
        """Queue an event; never waits."""
        if len(self._waiting) == self._waiting.maxlen:
            self.dropped += 1
        self._waiting.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop after what is queued was delivered, waiting `timeout_s` at most. May be repeated."""
        self._closing = True
        self._on_end(self)
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing or self._waiting:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                try:
                    self._callback(self._waiting.popleft())
                except Exception:
                    _log.warning("a subscriber of the timeline raised and was dropped", exc_info=True)
                    self._on_end(self)
                    return


class Timeline:
    """Passes events to the watchers, and keeps the last `keep` of them for those who come later."""

    def __init__(self, keep: int = 0) -> None:
        self._recent: deque[Event] = deque(maxlen=keep)
        self._watchers: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self.is_watched = keep > 0

    def publish(self, event: Event) -> None:
        """Hand out an event; never waits, never raises."""
        self._recent.append(event)
        for watcher in self._watchers:
            watcher.offer(event)

    def subscribe(self, callback: Callable[[Event], None], capacity: int = 1_000) -> Subscription:
        """Have `callback` called with each event from now on, in order, in a thread of its own."""
        subscription = Subscription(callback, capacity, self._forget)
        with self._lock:
            self._watchers = (*self._watchers, subscription)
            self.is_watched = True
        return subscription

    def recent(self) -> list[Event]:
        """Return the events kept, oldest first."""
        return list(self._recent)

    def close(self) -> None:
        """Deliver what is queued and let all watchers go."""
        for watcher in self._watchers:
            watcher.close()

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            self._watchers = tuple(watcher for watcher in self._watchers if watcher is not subscription)
            self.is_watched = bool(self._watchers) or bool(self._recent.maxlen)
