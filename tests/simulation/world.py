"""What no crash can touch: the disk, the tools with their ledger, and the messages under way between them and us."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

import orjson

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.records import CompensationIntended, Record, StepCommitted, StepIntended, decode
from gateway.core.tool import ToolSpec
from gateway.core.trajectory import Trajectory, fold
from gateway.egress import Timings
from gateway.journal import Append
from gateway.journal.memory import MemoryJournal

__all__ = ["Entry", "Fate", "SimEgress", "SimJournal", "Violation", "World"]

LATEST_S = 3.5
"""A message arrives within this time or never: less than any probe's `delay`, which is what `delay` promises."""

LAG_S = 2.0
"""A listing lags behind by up to this: less than any probe's `again`."""


_KINDS = (("made", "pivot"), ("undone",))


class Violation(AssertionError):
    """One of the invariants of design section 2 does not hold."""


class Fate(StrEnum):
    """What becomes of one request."""

    FINE = "fine"
    REFUSED = "refused"
    LOST = "lost"
    ANSWER_LOST = "answer_lost"
    LATE = "late"
    TWICE = "twice"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    THROTTLED = "throttled"
    NO = "no"


FATES = tuple(Fate)[1:]


@dataclass(slots=True)
class Entry:
    """One line of a tool's ledger: an effect, or its undo."""

    kind: str
    item: str
    at: float
    number: int


@dataclass(slots=True)
class World:
    """`faults_left` messages may still go wrong; then the world is well, so that every run can end."""

    rng: random.Random
    now: float = 1_000.0
    faults_left: int = 0
    undo_faults_left: int = 0
    fault_ratio: float = 0.3
    refused_undo: set[str] = field(default_factory=set)
    script: dict[str, list[Fate]] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)
    answers: dict[tuple[str, str], tuple[float, int, dict[str, object]]] = field(default_factory=dict)
    under_way: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    sent: list[tuple[float, str, str, str]] = field(default_factory=list)
    acked: dict[str, float] = field(default_factory=dict)
    first_sent: dict[str, float] = field(default_factory=dict)
    is_checked: bool = True
    journal: SimJournal | None = None
    violations: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    boots: int = 0
    rewound: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    repaired: set[str] = field(default_factory=set)
    interrupts: int = 0

    def violate(self, text: str) -> NoReturn:
        """Note that an invariant is broken, wherever this is called from; the schedule ends with it."""
        self.violations.append(text)
        raise Violation(text)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    # --- the disk

    def streams(self) -> list[str]:
        return [] if self.journal is None else list(self.journal._streams)

    def records(self, run: str) -> list[tuple[Record, int]]:
        known = None if self.journal is None else self.journal._streams.get(run)
        return [] if known is None else [(decode(entry.kind, entry.data), entry.at) for entry in known.entries]

    def durable(self, run: str) -> Trajectory:
        return fold(run, self.records(run))

    def check_intent(self, method: str, target: str) -> None:
        """No effect without its durable intent (invariant 1; MassTransit/MassTransit#4990, #1005)."""
        if target.startswith("/undo/"):
            for run in self.streams():
                bound: dict[int, str] = {}
                for record, _ in self.records(run):
                    if isinstance(record, StepCommitted) and record.compensator is not None:
                        bound[record.step] = record.compensator.target
                    elif isinstance(record, CompensationIntended) and bound.get(record.step) == target:
                        return
            self.violate(f"{method} {target} left before its intent to undo was durable")
        for run in self.streams():
            self._check_masked(run, target)
            if target.startswith("/go/"):
                self._check_gate(run, target)
            if any(isinstance(r, StepIntended) and r.target == target for r, _ in self.records(run)):
                return
        self.violate(f"{method} {target} left before its intent was durable")

    def _check_masked(self, run: str, target: str) -> None:
        """An action that was taken away from a run is not sent again, and none once it was stopped for good."""
        state = self.durable(run)
        if state.circles is None:
            return
        flying = [step for step in state.steps.values() if step.target == target and step.state.value == "intended"]
        if any(step.action in state.circles.masked for step in flying):
            self.violate(f"{target} was sent, and it is masked")
        if flying and state.circles.is_deadlocked:
            self.violate(f"{target} was sent in a run that was stopped for good")

    def _check_gate(self, run: str, target: str) -> None:
        """The pivot leaves only when everything before it is settled and can be undone (invariant 5)."""
        state = self.durable(run)
        unsettled = (state.in_doubt | state.in_flight | state.unbound) - {state.pivot}
        if unsettled:
            self.violate(f"{target} left while steps {sorted(unsettled)} were not settled")

    # --- the tools

    def effects(self, item: str, kind: str = "made") -> list[Entry]:
        return [entry for entry in self.ledger if entry.item == item and entry.kind == kind]

    def apply(self, tool: ToolSpec, method: str, target: str, key: str | None) -> tuple[int, dict[str, object]]:
        """The tool does what it is asked, or answers from its memory of the key."""
        _, verb, *rest = target.split("/")
        item = rest[0]
        if verb == "list":
            lag_s = self.rng.random() * LAG_S
            seen = [e for e in self.ledger if e.item == item and e.kind != "undone" and e.at <= self.now - lag_s]
            return 200, {"items": [item] if seen else [], "id": f"id-{item}"}
        remembered = None if key is None or tool.idempotency is None else self.answers.get((tool.name, key))
        if remembered is not None and tool.idempotency is not None:
            since, status, told = remembered
            if self.now - since < tool.idempotency.window:
                return status, told
        status, told = self._do(verb, item, is_keyed=tool.name == "keyed")
        if key is not None:
            self.answers[(tool.name, key)] = (self.now, status, told)
        return status, told

    def _do(self, verb: str, item: str, *, is_keyed: bool) -> tuple[int, dict[str, object]]:
        if verb == "undo":
            if item in self.refused_undo:
                return 409, {"error": "cannot be undone"}
            if not is_keyed and len(self.effects(item, "undone")) >= max(1, len(self.effects(item))):
                return 404, {"error": "gone already"}
            self._enter("undone", item)
            return 200, {}
        self._enter("noted" if verb == "note" else "pivot" if verb == "go" else "made", item)
        return 200, {"id": f"id-{item}"}

    def _enter(self, kind: str, item: str) -> None:
        entry = Entry(kind, item, self.now, len(self.ledger))
        self.ledger.append(entry)
        self.note(f"LEDGER {kind} {item}")
        if self.is_checked:
            self._check(entry)

    def _check(self, new: Entry) -> None:
        """What must hold after every single effect."""
        done, undone = (sum(e.kind in kinds and e.item == new.item for e in self.ledger) for kinds in _KINDS)
        if new.kind in ("made", "pivot") and done > undone + 1:
            self.violate(f"{new.item} has its effect {done - undone} times")
        if new.kind == "undone" and undone > done:
            self.violate(f"{new.item} was done {done} times and undone {undone} times")
        if new.kind == "pivot" and sum(e.kind == "pivot" for e in self.ledger) > 1:
            self.violate("there is a second pivot")
        if new.kind == "undone" and any(e.kind == "pivot" for e in self.ledger):
            self.violate(f"{new.item} was undone after the pivot")
        if new.kind == "made" and any(e.kind == "pivot" for e in self.ledger):
            self.violate(f"{new.item} was done after the pivot")

    # --- the network

    def fate(self, target: str) -> Fate:
        script = self.script.get(target.split("/")[2] if target.startswith(("/make", "/go")) else target)
        if script:
            return script.pop(0)
        is_undo = target.startswith("/undo/")
        left = self.undo_faults_left if is_undo else self.faults_left
        if left <= 0 or self.rng.random() > self.fault_ratio:
            return Fate.FINE
        if is_undo:
            self.undo_faults_left -= 1
        else:
            self.faults_left -= 1
        return self.rng.choice(FATES)

    def post(self, delay: float, deliver: Callable[[], None]) -> None:
        """Put a message under way: it arrives even if its sender is no more."""
        due = (self.now + delay, deliver)
        self.under_way.append(due)
        _arrange(self, due)

    def resume(self) -> None:
        """Let what was under way when the process ended arrive in the time of the next one."""
        for due in list(self.under_way):
            _arrange(self, due)


def _arrange(world: World, due: tuple[float, Callable[[], None]]) -> None:
    def arrive() -> None:
        if due in world.under_way:
            world.under_way.remove(due)
            due[1]()

    asyncio.get_running_loop().call_at(due[0], arrive)


class SimEgress:
    """Sends to the simulated tools; dies with its process."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Reply | Broken:
        world = self._world
        target, is_read = request.target.decode(), not request.has_side_effects or request.method == "GET"
        key = next((v.decode() for n, v in request.headers if n.lower() == b"idempotency-key"), None)
        if not is_read and world.is_checked:
            world.check_intent(request.method, target)
            self._check_key(tool, target, key)
        fate = world.fate(target)
        world.sent.append((world.now, tool.name, target, fate.value))
        world.note(f"SEND {tool.name} {request.method} {target} {fate.value}")
        answer: asyncio.Future[tuple[int, dict[str, object]]] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            told = world.apply(tool, request.method, target, key)
            if fate is Fate.ERROR_AFTER:
                told = 500, {"error": "after"}
            if not answer.done() and fate not in (Fate.ANSWER_LOST, Fate.LATE):
                answer.set_result(told)

        latency = 0.001 + world.rng.random() * 0.05
        match fate:
            case Fate.REFUSED:
                await asyncio.sleep(latency)
                return Broken(Fault.CONNECT, Dispatched.NO, "refused")
            case Fate.LOST:
                pass
            case Fate.LATE:
                world.post(timings.first_byte_s + world.rng.random() * LATEST_S, arrive)
            case Fate.TWICE:
                world.post(latency, arrive)
                if tool.idempotency is not None and not target.startswith("/list"):
                    world.post(latency + world.rng.random() * LATEST_S, arrive)
            case Fate.ERROR_BEFORE | Fate.THROTTLED | Fate.NO:
                await asyncio.sleep(latency)
                status = {Fate.ERROR_BEFORE: 500, Fate.THROTTLED: 429, Fate.NO: 422}[fate]
                if fate is Fate.NO and target.startswith("/undo"):
                    status = 503
                if fate is Fate.NO and key is not None and tool.idempotency is not None and status == 422:
                    known = world.answers.setdefault((tool.name, key), (world.now, 422, {"error": "no"}))
                    return _reply(known[1], known[2])
                return _reply(status, {"error": fate.value})
            case _:
                world.post(latency, arrive)
        try:
            return _reply(*await asyncio.wait_for(answer, timings.first_byte_s))
        except TimeoutError:
            return Broken(Fault.TIMEOUT, Dispatched.MAYBE, "no answer in time")

    def _check_key(self, tool: ToolSpec, target: str, key: str | None) -> None:
        """What had its effect is never sent again once the tool may have forgotten its key (invariant 2)."""
        first = self._world.answers.get((tool.name, key or ""))
        if tool.idempotency is None or first is None or target.startswith("/undo"):
            return
        if self._world.now - first[0] >= tool.idempotency.window:
            self._world.violate(f"{target} was sent again {self._world.now - first[0]:.0f} s after its effect")

    async def close(self) -> None: ...


def _reply(status: int, told: dict[str, object]) -> Reply:
    return Reply(status, b"", ((b"Content-Type", b"application/json"),), BytesBody(orjson.dumps(told)))


class SimJournal(MemoryJournal):
    """The memory journal's rules over a disk that outlives it: what was queued and not committed is gone with the process.

    A commit takes time, so that the process can end before it, and between it and whoever waits for it.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        disk = world.journal
        if disk is not None:
            self._streams, self._keys, self._notes = disk._streams, disk._keys, disk._notes
            self._meta, self._bodies = disk._meta, disk._bodies
        world.journal = self
        self._world = world
        self._is_due = False
        self.is_dead = False

    def append(self, append: Append, *, lazy: bool = False) -> asyncio.Future[None]:
        if self.is_dead:
            raise RuntimeError("the process has ended")
        was_empty = not self._queue
        future = super().append(append, lazy=lazy)
        if not lazy and not self._is_due and not (was_empty and not self._queue):
            self._is_due = True
            asyncio.get_running_loop().call_later(self._world.rng.random() * 0.01, self._due)
        elif lazy and not self._is_due and self._queue:
            # By themselves after a while, as the real journal's do.
            self._is_due = True
            asyncio.get_running_loop().call_later(0.02, self._due)
        return future

    def _due(self) -> None:
        self._is_due = False
        super()._commit()

    def _commit(self) -> None:
        """Called by the parent at the end of a pass: the disk is slower than that."""

    async def flush(self) -> None:
        super()._commit()

    def remember(self, name: str, value: bytes) -> None:
        if not self.is_dead:
            super().remember(name, value)


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
