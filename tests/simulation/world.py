"""What no crash can touch: the disk, the tools with their ledger, and the messages under way between them and us."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NoReturn

import orjson

from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.message import BytesBody, Reply, Request
from gateway.core.records import (
    ApprovalDecided,
    ApprovalRequested,
    CompensationIntended,
    Record,
    StepCommitted,
    StepIntended,
    StepReleased,
    decode,
)
from gateway.core.tool import ToolSpec
from gateway.core.trajectory import Phase, Step, StepState, Trajectory, fold
from gateway.egress import Timings
from gateway.journal.memory import MemoryJournal
from tests.simulation.disk import DiskFault, SimJournal

__all__ = ["APPROVERS", "EPOCH_MS", "Entry", "Fate", "SimEgress", "Violation", "World"]

EPOCH_MS = 1_700_000_000_000
"""UTC milliseconds at virtual time 0."""

APPROVERS, REQUIRED = ("ann", "bob", "carl"), 2
TIMEOUT_S, VALID_S, LEASE_S = 60.0, 30.0, 90.0
"""As the manifest has them."""

LATEST_S = 3.5
"""A message arrives within this time or never: less than any probe's `delay`, which is what `delay` promises."""

LAG_S = 2.0
"""A listing lags behind by up to this: less than any probe's `again`."""


_KINDS = (("made", "pivot"), ("undone",))
_EFFECTS = {"note": "noted", "lock": "noted", "go": "pivot", "tell": "told"}


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
    SLOW = "slow"


FATES = tuple(fate for fate in Fate if fate not in (Fate.FINE, Fate.SLOW))


@dataclass(slots=True)
class Entry:
    """One line of a tool's ledger: an effect, or its undo."""

    kind: str
    item: str
    at: float
    number: int


@dataclass(slots=True)
class World:
    """`faults_left` messages may still go wrong, and `disk_faults_left` accesses to the disk; then the world is well, so
    that every run can end. `verified` and `said` are what the verifier and the people really answered."""

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
    disk: MemoryJournal = field(default_factory=MemoryJournal)
    disk_faults_left: int = 0
    journal: SimJournal | None = None
    refused_tell: set[str] = field(default_factory=set)
    green_from_s: float = 0.0
    green_until_s: float = float("inf")
    verified: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)
    said: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    clicked: set[tuple[str, str]] = field(default_factory=set)
    baited: set[str] = field(default_factory=set)
    mended: int = 0
    violations: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    boots: int = 0
    rewound: list[str] = field(default_factory=list)
    seen_to: set[str] = field(default_factory=set)
    """Of what was in doubt, what a person has found done: where nothing can undo it, it stands, and a rewound run may do
    it anew."""
    tried: set[str] = field(default_factory=set)
    repaired: set[str] = field(default_factory=set)
    interrupts: int = 0
    taken_away: dict[str, int] = field(default_factory=dict)
    contained_at: float | None = None
    looks: list[tuple[float, str, str]] = field(default_factory=list)

    def violate(self, text: str) -> NoReturn:
        """Note that an invariant is broken, wherever this is called from; the schedule ends with it."""
        self.violations.append(text)
        raise Violation(text)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    # --- the disk

    def disk_fault(self, method: str) -> DiskFault:
        """What becomes of an access to the disk."""
        if self.disk_faults_left <= 0 or self.rng.random() > 0.15:
            return DiskFault.FINE
        self.disk_faults_left -= 1
        fault = self.rng.choice(tuple(DiskFault)[1:])
        self.note(f"DISK {method} {fault}")
        return fault

    def streams(self) -> list[str]:
        return [name for name in self.disk._streams if not name.startswith("~")]

    def records(self, run: str) -> list[tuple[Record, int]]:
        known = self.disk._streams.get(run)
        return [] if known is None else [(_decoded(entry.kind, entry.data), entry.at) for entry in known.entries]

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
            if target.startswith("/tell/"):
                self._check_release(run, target)
                return
            if target.startswith("/go/"):
                self._check_gate(run, target)
            if any(isinstance(r, StepIntended) and r.target == target for r, _ in self.records(run)):
                return
        self.violate(f"{method} {target} left before its intent was durable")

    def _check_masked(self, run: str, target: str) -> None:
        """An action that was taken away from a run is not sent again, and none once it was stopped for good.

        What was masked lazily a crash may take back, a disk that fails may not.
        """
        if self.taken_away.get(target, -1) in (0, self.boots):
            self.violate(f"{target} was sent, and the agent was told that it is masked")
        state = self.durable(run)
        if state.circles is None:
            return
        flying = [step for step in state.steps.values() if step.target == target and step.state.value == "intended"]
        if any(step.action in state.circles.masked for step in flying):
            self.violate(f"{target} was sent, and it is masked")
        if flying and state.circles.is_deadlocked:
            self.violate(f"{target} was sent in a run that was stopped for good")

    def _check_release(self, run: str, target: str) -> None:
        """What is staged leaves after the pivot, in order, and each release is durable before it (invariant 5)."""
        state = self.durable(run)
        step = next((step for step in state.steps.values() if step.target == target), None)
        if step is None or not any(isinstance(r, StepReleased) and r.step == step.number for r, _ in self.records(run)):
            self.violate(f"{target} left before its release was durable")
        if Phase.FINALIZING not in (state.phase, state.resume):
            self.violate(f"{target} left while its run was {state.phase}")
        if state.pivot is not None and state.steps[state.pivot].state is not StepState.COMMITTED:
            self.violate(f"{target} left before the pivot had committed")
        done = (StepState.COMMITTED, StepState.SKIPPED)
        # What a person found not to have landed is off the list: whoever says so has seen to it, or does without it.
        before = [
            s
            for s in state.steps.values()
            if s.is_staged and s.number < step.number and s.state not in done and s.resolved is None
        ]
        if before:
            self.violate(f"{target} left before {[s.target for s in before]}, which came earlier")

    def _check_gate(self, run: str, target: str) -> None:
        """The pivot leaves only when everything before it is settled and can be undone (invariant 5)."""
        state = self.durable(run)
        before = range(1, state.pivot or len(state.steps) + 1)
        unsettled = (state.in_doubt | state.in_flight | state.unbound).intersection(before)
        if unsettled:
            self.violate(f"{target} left while steps {sorted(unsettled)} were not settled")
        step = next((step for step in state.steps.values() if step.target == target), None)
        if target.startswith("/go/guarded") and step is not None:
            self._check_clearance(state, step)

    def _check_clearance(self, state: Trajectory, step: Step) -> None:
        """A guarded pivot leaves only on what its gates really said, to exactly this, of the run as it was (invariant 5)."""
        target, item = step.target, step.target.split("/")[2]
        earlier = [s for s in state.steps.values() if s.number < step.number]
        if any(s.tool == "brief" and s.state is StepState.COMMITTED for s in earlier):
            self.violate(f"{target} left though its check does not hold")
        since = max([s.committed_at / 1000 for s in earlier], default=0.0) - EPOCH_MS / 1000
        if not any(is_green and at >= since - 0.001 for at, is_green in self.verified.get(item, ())):
            self.violate(f"{target} left, and the verifier never agreed to the run as it was")
        ended = [s for s in earlier if s.lease is not None and step.intended_at > s.committed_at + LEASE_S * 1000]
        if ended:
            self.violate(f"{target} left after a lease had run out")
        if not any(self._is_granted(state, step, name) for name in state.approvals):
            self.violate(f"{target} left without an approval that was given, for exactly this, and in time")

    def _is_granted(self, state: Trajectory, step: Step, name: str) -> bool:
        """Whether an approval was given by enough of those who may, by the records and by what they really said."""
        asked, yes = None, dict[str, float]()
        for record, at in self.records(state.id)[: step.intended]:
            if isinstance(record, ApprovalRequested) and record.approval == name and record.target == step.target:
                asked = at
            elif isinstance(record, ApprovalDecided) and record.approval == name:
                if record.verdict == "reject":
                    return False
                if record.principal in APPROVERS and (record.principal, "approve") in self.said.get(step.target, ()):
                    yes.setdefault(record.principal, at)
        if asked is None or len(yes) < REQUIRED:
            return False
        last = max(yes.values())
        return last < asked + TIMEOUT_S * 1000 and step.intended_at < last + VALID_S * 1000

    # --- the tools

    def effects(self, item: str, kind: str = "made") -> list[Entry]:
        return [entry for entry in self.ledger if entry.item == item and entry.kind == kind]

    def apply(self, tool: ToolSpec, method: str, target: str, key: str | None) -> tuple[int, dict[str, object]]:
        """The tool does what it is asked, or answers from its memory of the key."""
        _, verb, *rest = target.split("/")
        item = rest[0]
        if verb == "look":
            return (200, {"item": item}) if self.effects(item) else (404, {})
        if verb == "list":
            lag_s = self.rng.random() * LAG_S
            seen = [e for e in self.ledger if e.item == item and e.kind != "undone" and e.at <= self.now - lag_s]
            return 200, {"items": [item] if seen else [], "id": f"id-{item}"}
        if verb == "verify":
            is_green = self.green_from_s <= self.now < self.green_until_s
            self.verified.setdefault(item, []).append((self.now, is_green))
            return 200, {"ok": is_green}
        remembered = None if key is None or tool.idempotency is None else self.answers.get((tool.name, key))
        if remembered is not None and tool.idempotency is not None:
            since, status, told = remembered
            if self.now - since < tool.idempotency.window:
                return status, told
        status, told = self._do(verb, item, is_keyed=tool.name in ("keyed", "shelf"))
        if key is not None:
            self.answers[(tool.name, key)] = (self.now, status, told)
        return status, told

    def _do(self, verb: str, item: str, *, is_keyed: bool) -> tuple[int, dict[str, object]]:
        if verb == "undo":
            if item in self.refused_undo:
                return 409, {"error": "cannot be undone"}
            if not is_keyed and len(self.effects(item, "undone")) >= max(1, len(self.effects(item))):
                return 404, {"error": "gone already"}
            self.enter("undone", item)
            return 200, {}
        if verb == "tell" and item in self.refused_tell:
            return 422, {"error": "nobody wants to hear that"}
        self.enter(_EFFECTS.get(verb, "made"), item)
        return 200, {"id": f"id-{item}"}

    def enter(self, kind: str, item: str) -> None:
        entry = Entry(kind, item, self.now, len(self.ledger))
        self.ledger.append(entry)
        self.note(f"LEDGER {kind} {item}")
        if self.is_checked:
            self._check(entry)

    def _check(self, new: Entry) -> None:
        """What must hold after every single effect."""
        done, undone = (sum(e.kind in kinds and e.item == new.item for e in self.ledger) for kinds in _KINDS)
        if new.kind in ("made", "pivot") and done > undone + 1 + (new.item in self.seen_to):
            self.violate(f"{new.item} has its effect {done - undone} times")
        if new.kind == "undone" and undone > done:
            self.violate(f"{new.item} was done {done} times and undone {undone} times")
        if new.kind == "pivot" and sum(e.kind == "pivot" for e in self.ledger) > 1:
            self.violate("there is a second pivot")
        if new.kind == "undone" and any(e.kind == "pivot" for e in self.ledger):
            self.violate(f"{new.item} was undone after the pivot")
        if new.kind == "made" and any(e.kind == "pivot" for e in self.ledger):
            self.violate(f"{new.item} was done after the pivot")
        if new.kind == "told" and len(self.effects(new.item, "told")) > 1:
            self.violate(f"{new.item} was told twice")

    # --- the network

    def fate(self, target: str) -> Fate:
        script = self.script.get(target.split("/")[2] if target.startswith(("/make", "/go", "/tell")) else target)
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


@lru_cache(8192)
def _decoded(kind: str, data: bytes) -> Record:
    return decode(kind, data)


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
        self._check_contained(target)
        fate = Fate.FINE if target.startswith("/look/") else world.fate(target)
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
            case Fate.SLOW:
                told = world.apply(tool, request.method, target, key)
                await asyncio.sleep(1.0)
                return _reply(*told)
            case Fate.LATE:
                world.post(timings.first_byte_s + world.rng.random() * LATEST_S, arrive)
            case Fate.TWICE:
                world.post(latency, arrive)
                if tool.idempotency is not None and not target.startswith(("/list", "/verify")):
                    world.post(latency + world.rng.random() * LATEST_S, arrive)
            case Fate.ERROR_BEFORE | Fate.THROTTLED | Fate.NO:
                await asyncio.sleep(latency)
                status = {Fate.ERROR_BEFORE: 500, Fate.THROTTLED: 429, Fate.NO: 422}[fate]
                if fate is Fate.NO and target.startswith(("/undo", "/tell", "/verify")):
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

    def _check_contained(self, target: str) -> None:
        """No call leaves after severing, and nobody else touches what was made (seed 000, the four stages)."""
        world = self._world
        if world.contained_at is None:
            return
        item = target.split("/")[2]
        if not target.startswith("/look/"):
            world.violate(f"{target} left after its run was severed")
        elif world.effects(item):
            world.violate(f"{item} was looked at after the run that made it was quarantined")

    def _check_key(self, tool: ToolSpec, target: str, key: str | None) -> None:
        """What had its effect is never sent again once the tool may have forgotten its key (invariant 2)."""
        first = self._world.answers.get((tool.name, key or ""))
        if tool.idempotency is None or first is None or first[1] >= 400 or target.startswith("/undo"):
            return
        if self._world.now - first[0] >= tool.idempotency.window:
            self._world.violate(f"{target} was sent again {self._world.now - first[0]:.0f} s after its effect")

    async def close(self) -> None: ...


def _reply(status: int, told: dict[str, object]) -> Reply:
    return Reply(status, b"", ((b"Content-Type", b"application/json"),), BytesBody(orjson.dumps(told)))


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
