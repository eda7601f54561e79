"""An event loop whose time is a number: nobody ever waits, and the same seed always gives the same storm.

When nothing is ready, the loop's clock jumps to the next timer. Everything that runs on the loop runs on that time,
futures, tasks, `loop.time` and aiolimiter included, so the gateway's own classes need no stand-ins.

Most of what a storm does is waiting, so the loop is built for that: a heap of timers, a queue of what is ready, and for
coroutines that nobody else needs a handle of (`spawn`) a driver in place of a task, to which a wait is one entry in the
heap. It opens no sockets, threads or signals.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

__all__ = ["VirtualClock", "VirtualLoop", "pause", "run"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Where UTC stands at the beginning, in milliseconds: any fixed moment.
_EPOCH_MS = 1_700_000_000_000
# The largest float below 1: a draw that gives the whole of a bound.
_ALMOST_ONE = 1.0 - 2.0**-53

Ready = Callable[[], object]


class _Handle(asyncio.TimerHandle):
    """What asyncio is given for a callback; calling it runs the callback unless it was cancelled."""

    __slots__ = ("_calls", "_with", "is_cancelled")

    def __init__(self, calls: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._calls = calls
        self._with = args
        self.is_cancelled = False

    def __call__(self) -> None:
        if not self.is_cancelled:
            self._calls(*self._with)

    def cancel(self) -> None:
        self.is_cancelled = True
        self._with = ()

    def cancelled(self) -> bool:
        return self.is_cancelled


class _Driver:
    """Runs one coroutine: sends it on whenever what it waits for is there."""

    __slots__ = ("_loop", "_ready", "_send")

    def __init__(self, loop: VirtualLoop, coroutine: Coroutine[Any, Any, object]) -> None:
        self._loop = loop
        self._send = coroutine.send
        self._ready: Ready = self

    def __call__(self, _: object = None) -> None:
        loop = self._loop
        loop.is_driven = True
        try:
            waits = self._send(None)
        except StopIteration:
            loop.spawned -= 1
            return
        finally:
            loop.is_driven = False
        if type(waits) is float:
            heappush(loop.timers, (loop.now + waits, next(loop.order), self._ready))
        else:
            waits._asyncio_future_blocking = False
            waits.add_done_callback(self)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time, from 0. Sockets, threads and signals are never served.

    Attributes:
        now: virtual seconds.
        timers: what is due when, in the order in which it was asked for.
        soon: what happens before time goes on.
        spawned: coroutines of `spawn` that have not ended.
        is_driven: whether a coroutine of `spawn` is running just now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.timers: list[tuple[float, int, Ready]] = []
        self.order = itertools.count()
        self.spawned = 0
        self.is_driven = False
        self.soon: deque[Ready] = deque()
        self._failure: BaseException | None = None

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine from now on. What it raises ends `run`."""
        self.spawned += 1
        self.soon.append(_Driver(self, coroutine))

    def wake(self, when: float, callback: Ready) -> None:
        """Call it at a virtual second that is not over: what costs a storm least."""
        heappush(self.timers, (when, next(self.order), callback))

    def run_out(self) -> None:
        """Let things happen until nothing is left to happen. Raises the first failure that nobody took."""
        soon, timers = self.soon, self.timers
        while True:
            while soon:
                soon.popleft()()
            if self._failure is not None:
                raise self._failure
            if not timers:
                return
            self.now, _, callback = heappop(timers)
            callback()

    # --- what asyncio's futures and tasks ask of a loop

    def time(self) -> float:
        """Return virtual seconds."""
        return self.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it before time goes on. Contexts are not kept apart: nothing in a storm has one."""
        handle = _Handle(callback, args)
        self.soon.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it `delay` virtual seconds from now."""
        return self.call_at(self.now + delay, callback, *args)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it at a virtual second."""
        handle = _Handle(callback, args)
        self.wake(max(when, self.now), handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the first failure that nobody took, for `run_out` to raise: a storm is not half right."""
        found = context.get("exception") or RuntimeError(str(context.get("message")))
        self._failure = self._failure or found


class VirtualClock:
    """A `gateway.clock.Clock` on a virtual loop, with seeded chance.

    `jitter` chooses the draws: `full` is uniform, `none` always the highest (backoff without jitter), `zero` always 0.
    """

    def __init__(self, loop: VirtualLoop, seed: int, jitter: str = "full") -> None:
        self._loop = loop
        self._random = random.Random(seed)  # noqa: S311 - jitter, not secrets
        self._fixed = {"none": _ALMOST_ONE, "zero": 0.0}.get(jitter)

    def now(self) -> float:
        """Return virtual seconds."""
        return self._loop.now

    def at(self) -> int:
        """Return UTC milliseconds, from a fixed moment."""
        return _EPOCH_MS + round(self._loop.now * 1000)

    def draw(self) -> float:
        """Return a draw from [0, 1)."""
        return self._random.random() if self._fixed is None else self._fixed

    def token(self) -> str:
        """Return 32 hexadecimal digits."""
        return f"{self._random.getrandbits(128):032x}"

    async def sleep(self, delay_s: float) -> None:
        """Wait in virtual time."""
        if self._loop.is_driven:
            await pause(float(delay_s))
        else:
            await asyncio.sleep(delay_s)


@types.coroutine
def pause(delay_s: float) -> Generator[float, None, None]:
    """Wait, in a coroutine of `spawn` and nowhere else."""
    yield delay_s


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run what `main` makes of a loop to its end in virtual time, and everything that was spawned meanwhile.

    Raises:
        RuntimeError: everybody waits and no timer is left.
    """
    loop = VirtualLoop()
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        task: asyncio.Task[T] = loop.create_task(main(loop))
        loop.run_out()
        if loop.spawned or not task.done():
            raise RuntimeError(f"everybody waits for somebody else at {loop.now:.3f} s of virtual time")
        return task.result()
    finally:
        asyncio._set_running_loop(before)
        loop.close()
