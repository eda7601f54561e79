"""The virtual engine: the gateway's own rules in virtual time, between agents and tools that are only modelled.

Breaker, admission, retry budget, backoff and verdict are the very classes that the gateway runs; journal and saga are left
out, since nothing here touches a disk. Only the wire is replaced. A call takes one of two roads: `road` asks the rules one
after the other and is fast, `staged` sends it through the gateway's own stages and is the measure of the other: both give
the same recording, to the byte (`tests/storm/test_road.py`). The stages also take what the fast road leaves to them.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gateway.core.tool import Catalog
from gateway.storm.arrivals import due_times, names, source_of, whole
from gateway.storm.policy import catalog_of, manifest_for
from gateway.storm.recording import Recording
from gateway.storm.road import Road
from gateway.storm.scenario import LoadSettings, PolicySettings, Scenario
from gateway.storm.staged import Staged
from gateway.storm.trip import Gateway, Lab, Station, Trip
from gateway.storm.virtualtime import VirtualClock, VirtualLoop, run
from gateway.storm.world import World

__all__ = ["simulate"]


def simulate(
    scenario: Scenario,
    policy: PolicySettings,
    seed: int,
    progress: Callable[[float], None] = lambda share: None,
    *,
    is_staged: bool = False,
) -> Recording:
    """Return what happened in a storm under a policy. The same arguments give the same recording, on any machine.

    `progress` is told the share of the time that is over, now and then. `is_staged` sends every call through the gateway's
    stages: the same recording, several times as slowly.

    Raises:
        ConfigError: something is wrong with the scenario's manifest.
    """
    catalog = catalog_of(manifest_for(scenario, policy))
    storm = _Storm(
        scenario, policy, catalog, seed, Staged if is_staged or not Road.can_take(scenario, catalog) else Road
    )
    with _no_collection():
        return run(lambda loop: storm.run(loop, progress))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector from looking through a recording again and again: what a storm drops has no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Storm:
    def __init__(
        self, scenario: Scenario, policy: PolicySettings, catalog: Catalog, seed: int, kind: type[Gateway]
    ) -> None:
        self._scenario, self._policy, self._catalog, self._seed, self._kind = scenario, policy, catalog, seed, kind

    async def run(self, loop: VirtualLoop, progress: Callable[[float], None]) -> Recording:
        scenario, clock = self._scenario, VirtualClock(loop, self._seed, self._policy.jitter)
        lab = Lab(loop, clock, World(scenario, self._seed), Recording(), self._catalog, self._policy.anonymous)
        gateways = [self._kind(lab, number) for number in range(scenario.gateways)]
        for index, load in enumerate(scenario.load):
            stations = [gateway.station(load) for gateway in gateways]
            if load.arrive == "loop":
                _Agents(lab, load, stations, whole(load, scenario.seconds)).begin()
            else:
                source = source_of(scenario, self._seed, index)
                _Arrivals(lab, load, stations, due_times(load, scenario.seconds, source)).begin()
        for step in range(100):
            loop.call_at(scenario.seconds * step / 100, progress, step / 100)
        return lab.recording


class _Arrivals:
    """An open loop: calls begin when they are due, whatever became of those before."""

    def __init__(self, lab: Lab, load: LoadSettings, stations: Sequence[Station], when: Iterator[float]) -> None:
        self._loop, self._when = lab.loop, when
        begins = [(stations[number % len(stations)], name) for number, name in enumerate(names(load))]
        self._agents = itertools.cycle(begins)
        self._due = math.inf

    def begin(self) -> None:
        """Begin what is due at once, and wait for what is not."""
        self._due = next(self._when, math.inf)
        self._together()

    def __call__(self) -> None:
        """Begin the call that is due, once the next is waited for; what is due with it comes first, all in a row."""
        trip = self._next()
        if self._due > self._loop.now:
            self._wait()
            trip.begin()
        else:
            self._loop.soon.append(trip.begin)
            self._together()

    def _together(self) -> None:
        loop = self._loop
        while self._due <= loop.now:
            loop.soon.append(self._next().begin)
        self._wait()

    def _next(self) -> Trip:
        """Return the call that is due, and turn to the next."""
        station, name = next(self._agents)
        trip = station.kind(station, name, self._due)
        self._due = next(self._when, math.inf)
        return trip

    def _wait(self) -> None:
        if self._due < math.inf:
            self._loop.wake(self._due, self)


class _Agents:
    """A closed loop: an agent calls again once it was answered and has thought."""

    # A refusal takes no virtual time: without this an agent that never thinks would call for ever at one moment.
    _LEAST_S = 0.0005

    def __init__(self, lab: Lab, load: LoadSettings, stations: Sequence[Station], when: tuple[float, float]) -> None:
        self._loop, self._load, self._stations = lab.loop, load, stations
        self._start, self._end = when

    def begin(self) -> None:
        """Have every lane of every agent make its first call."""
        for number, name in enumerate(names(self._load)):
            for _ in range(self._load.lanes):
                self._after(self._start, number, name)

    def _after(self, wait_s: float, number: int, name: str) -> None:
        self._loop.call_later(wait_s, self._again, number, name)

    def _again(self, number: int, name: str) -> None:
        now = self._loop.now
        if now < self._end:
            station = self._stations[number % len(self._stations)]
            trip = station.kind(station, name, now)
            trip.then = lambda: self._after(max(self._load.think, self._LEAST_S), number, name)
            trip.begin()
