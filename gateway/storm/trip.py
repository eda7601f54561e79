"""A call of an agent in virtual time, from when it is due to when nobody insists any more, and what it meets on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.core.outcome import Failed, InDoubt, Outcome, Rejected, Success
from gateway.core.tool import Catalog, Match, ToolSpec
from gateway.storm.recording import Recording
from gateway.storm.scenario import LoadSettings
from gateway.storm.virtualtime import VirtualClock, VirtualLoop
from gateway.storm.world import World

__all__ = ["Gateway", "Lab", "Station", "Trip"]


@dataclass(frozen=True, slots=True)
class Lab:
    """What one storm shares. `is_anonymous`: gateways see one and the same agent in everybody."""

    loop: VirtualLoop
    clock: VirtualClock
    world: World
    recording: Recording
    catalog: Catalog
    is_anonymous: bool


class Gateway(ABC):
    """A gateway in virtual time."""

    @abstractmethod
    def __init__(self, lab: Lab, number: int) -> None: ...

    @abstractmethod
    def station(self, load: LoadSettings) -> Station:
        """Return where the calls of a load begin."""


class Station:
    """What the calls of one load at one gateway have in common. `kind(station, agent, due)` makes one of them."""

    kind: type[Trip]

    def __init__(self, lab: Lab, load: LoadSettings) -> None:
        self.lab, self.load = lab, load
        self.known_as = "anybody" if lab.is_anonymous else ""
        self.loop, self.clock, self.note = lab.loop, lab.clock, lab.recording.calls.add
        self.tool: ToolSpec = lab.catalog.tools[load.tool]
        method, _, target = load.request.partition(" ")
        self.match: Match = self.tool.match(method, target)
        self.operation = self.match.operation
        self.total_s = self.operation.timeouts.total
        self.insists = load.insists
        self.name = self.tool.name


class Trip(ABC):
    """One call, made again as often as its agent insists. Identical calls are told by the object itself."""

    __slots__ = ("agent", "deadline", "due", "known_as", "repeats", "station", "then")

    def __init__(self, station: Station, agent: str, due: float) -> None:
        self.station = station
        self.agent = agent
        self.known_as = station.known_as or agent
        self.due = due
        self.deadline = 0.0
        self.repeats = 0
        self.then: Callable[[], object] | None = None

    def begin(self) -> None:
        """Make the call, now."""
        station = self.station
        now = station.loop.now
        self.deadline = now + station.total_s
        self.send(now)

    @abstractmethod
    def send(self, now: float) -> None:
        """Take the road. `end` is called when it is over."""

    def end(self, outcome: Outcome, now: float) -> None:
        """Note what became of the call; make it again if it failed and the agent insists."""
        station = self.station
        is_good = type(outcome) is Success
        station.note(self.due, now, station.name, self.agent, "success" if is_good else _word(outcome))
        if is_good or self.repeats >= station.insists:
            if self.then is not None:
                self.then()
            return
        self.repeats += 1
        self.due = now + station.load.pause
        if station.load.pause:
            station.loop.wake(self.due, self.begin)
        else:
            self.begin()


_REFUSED = {code: f"refused:{code.value}" for code in Code}
_FAILED = {fault: f"failed:{fault.value}" for fault in Fault}
_IN_DOUBT = {fault: f"in_doubt:{fault.value}" for fault in Fault}


def _word(outcome: Outcome) -> str:
    match outcome:
        case Rejected(refusal):
            return _REFUSED[refusal.code]
        case Success():
            return "success"
        case Failed(fault):
            return _FAILED[fault]
        case InDoubt(fault):
            return _IN_DOUBT[fault]
