"""Runs one plan under one seed to its end, over as many crashes as the schedule has, and checks what must hold then."""

from __future__ import annotations

import logging
import random
from collections import Counter
from dataclasses import dataclass

from gateway.core.records import CompensationCompleted, SavepointTaken, TrajectoryRewound
from gateway.core.trajectory import UNSENT_FAULT, Phase, StepState, Trajectory
from gateway.journal import JournalError
from tests.simulation.loop import Crash, SimLoop
from tests.simulation.plan import Plan, drawn
from tests.simulation.process import RUN, START_S, Process
from tests.simulation.world import EPOCH_MS, Violation, World

__all__ = ["Report", "play", "play_seed"]

CRASHES_MOST = 6


@dataclass(slots=True)
class Report:
    """What a schedule was: where its run ended, how often the process did, how many callbacks it took, and its trace.

    `parked`: how often a run was.
    """

    phase: str
    crashes: int
    handled: int
    trace: list[str]
    parked: int = 0


def play_seed(seed: int, *, parks: bool = False) -> Report:
    """Run the schedule of a seed.

    Raises:
        Violation: an invariant does not hold; its notes hold the trace.
    """
    rng = random.Random(seed)
    plan = drawn(rng)
    crashes = [1 + int(600 * rng.random() ** 2) for _ in range(rng.choice((0, 1, 1, 2, CRASHES_MOST)))]
    return play(plan, rng, crashes, parks=parks)


def play(
    plan: Plan, rng: random.Random, crashes: list[int], contain_at: int | None = None, *, parks: bool = False
) -> Report:
    """Run a plan. `crashes`: after how many callbacks each life of the process ends; the one after them lives on.

    `contain_at`: before which callback of the first life the run is quarantined. `parks`: before each callback every run
    is parked that can be.
    """
    world = World(
        rng,
        faults_left=plan.faults,
        undo_faults_left=plan.undo_faults,
        fault_ratio=plan.fault_ratio,
        refused_undo=set(plan.refused_undo),
        script={item: list(fates) for item, fates in plan.script.items()},
        disk_faults_left=plan.disk_faults,
        refused_tell=set(plan.refused_tell),
        green_from_s=START_S + plan.green[0],
        green_until_s=START_S + plan.green[1],
    )
    handled = ended = parked = 0
    logging.getLogger("gateway").setLevel(logging.CRITICAL)
    try:
        for crash_at in [*crashes, *[None] * (1 + plan.disk_faults)]:
            loop = SimLoop(rng, world.now, crash_at)
            loop.interrupt_at, contain_at = contain_at, None
            is_over, times = _live(world, rng, plan, loop, parks=parks)
            parked += times
            handled += loop.handled
            ended += not is_over
            if is_over:
                break
        state = world.durable(RUN)
        check(world, plan, state)
    except Exception as error:
        error.add_note("\n".join([f"plan: {plan}", f"crashes: {crashes}", *world.trace, *world.causes[-40:]]))
        raise
    finally:
        logging.getLogger("gateway").setLevel(logging.NOTSET)
    return Report(state.phase.value, ended, handled, world.trace, parked)


def _live(world: World, rng: random.Random, plan: Plan, loop: SimLoop, *, parks: bool) -> tuple[bool, int]:
    """One life of the process. Returns whether it came to its end by itself, and how often a run was parked."""
    process: list[Process] = []
    parked = 0

    async def life() -> None:
        process.append(Process(world, rng, plan))
        await process[0].main()

    def tick(now: float) -> None:
        nonlocal parked
        world.now = now
        if parks:
            parked += sum(each.trajectories.park(name) for each in process for name in each.trajectories.awake_names())
        if world.violations:
            raise Violation(world.violations[0])

    loop.on_time = tick

    def end() -> None:
        for each in process:
            each.journal.is_dead = True

    def contain() -> None:
        for each in process:
            each.contain()

    loop.interrupt = contain

    try:
        loop.run(life(), end)
    except Crash:
        world.note("CRASH")
        return False, parked
    except JournalError as error:
        world.note(f"NO START: {error}")
        return False, parked
    return True, parked


# --- what must hold at the end


def check(world: World, plan: Plan, state: Trajectory) -> None:
    """Invariants 2 to 6 of design section 2, on the tools' own ledger."""
    if world.bugs:
        raise Violation(f"something unforeseen: {world.bugs}")
    made = Counter(e.item for e in world.ledger if e.kind in ("made", "pivot"))
    undone = Counter(e.item for e in world.ledger if e.kind == "undone")
    standing = sorted(item for item in made if made[item] > undone[item])
    was_rewound = any(isinstance(record, TrajectoryRewound) for record, _ in world.records(RUN))
    told = [e.item for e in world.ledger if e.kind == "told"]
    if strangers := {e.item for e in world.ledger} - {action.item for action in plan.actions}:
        raise Violation(f"nobody asked for {strangers}")
    _check_circles(world, plan, state)
    _check_lifo(world, state, [item for item in undone if made[item] == 1])
    # What nothing can undo, and a person has said so: in an abort and in a rewind alike.
    residue = {step.target.split("/")[2] for step in state.steps.values() if step.is_residue and step.resolved}
    match state.phase:
        case Phase.SUCCEEDED:
            if undone and not was_rewound:
                raise Violation(f"the run is committed, and undone: {sorted(undone)}")
            rewound = _rewound(world, state)
            if wrong := [item for item in undone if item in world.acked and item not in [*rewound, *standing]]:
                raise Violation(f"the run is committed, and undone: {wrong}")
            if left := [item for item in world.rewound if item in standing and item not in residue]:
                raise Violation(f"the run was rewound, and {left} still stands")
            if state.in_doubt or state.in_flight:
                raise Violation(f"the run is committed with steps {sorted(state.in_doubt | state.in_flight)} unsettled")
            if dropped := [item for item in told if item in world.rewound]:
                raise Violation(f"the run was rewound past {dropped}, which left all the same")
            # What a person took off the list never came to be, and somebody has seen to it.
            seen_to = {step.target.rsplit("/", 1)[-1] for step in state.steps.values() if step.resolved == "not_landed"}
            known = {entry.item for entry in world.ledger} | set(world.rewound) | seen_to
            if missing := [item for item in world.acked if item not in known]:
                raise Violation(f"the agent was told of {missing}, and the tools know nothing of it")
        case Phase.ABORTED_CLEAN:
            if unsaid := [s.number for s in state.steps.values() if s.is_to_undo]:
                raise Violation(f"the run is aborted cleanly, and the record says nothing of steps {unsaid}")
            if left := [item for item in standing if item not in residue] or told:
                raise Violation(f"the run is aborted cleanly, and {left} still stands")
        case Phase.FROZEN:
            if not plan.may_freeze:
                raise Violation(f"the run is frozen for no reason that a person could mend: {state.reason}")
            if not state.incident or not state.reason:
                raise Violation("the run is frozen without saying why")
        case _:
            if state.steps:
                raise Violation(f"the run never ended: it is {state.phase}")
    for step in state.steps.values():
        if step.state is StepState.COMPENSATED and not step.compensator:
            raise Violation(f"step {step.number} is undone by a call that was never bound")


def _rewound(world: World, state: Trajectory) -> set[str]:
    """What a rewind took back, whether its agent lived to see it or not."""
    savepoints, items = dict[str, int](), set[str]()
    for position, (record, _) in enumerate(world.records(RUN), 1):
        if isinstance(record, SavepointTaken):
            savepoints[record.name] = position
        elif isinstance(record, TrajectoryRewound):
            since = savepoints[record.savepoint]
            items |= {s.target.split("/")[2] for s in state.steps.values() if since < s.intended < position}
    return items


EQUAL_NOES = 3
"""What the simulated manifest lets pass of one action with nothing changed in between; with changes, one more."""


def _check_circles(world: World, plan: Plan, state: Trajectory) -> None:
    """Loops are stopped before they spend, repairs that work are let be, and no cap of steps is exceeded."""
    # A step whose intent could not be written never left, and is given back.
    left = [s for s in state.steps.values() if not (s.state is StepState.FAILED and s.fault == UNSENT_FAULT)]
    if (cap := plan.caps.get("steps")) is not None and len(left) > cap:
        raise Violation(f"the run may have {cap:g} steps, and has {len(left)}")
    if plan.stubborn is not None:
        sent = [one for one in world.sent if one[2] in (f"/make/{plan.stubborn}", f"/note/{plan.stubborn}")]
        # What a crash or the disk takes away of an answer is asked for once more.
        if len(sent) > EQUAL_NOES + bool(plan.fixes) + world.boots + plan.disk_faults:
            raise Violation(f"{plan.stubborn} was refused each time, and sent {len(sent)} times")
    told = state.circles is not None and state.circles.rewinds > 0
    if told and plan.stubborn is None:
        raise Violation(f"an honest agent was called stubborn: {state.circles}")


def _check_lifo(world: World, state: Trajectory, undone: list[str]) -> None:
    """What the agent knew to be done before it began another is undone after that other."""
    order = [e.item for e in world.ledger if e.kind == "undone"]
    first = {item: order.index(item) for item in undone}
    when = {e.item: e.at for e in reversed(world.ledger) if e.kind == "undone"}
    meant: dict[str, float] = {}
    for step in state.steps.values():
        if step.state is not StepState.FAILED:  # what never came to be, and was done anew after a rewind, has no order
            meant.setdefault(step.target.split("/")[2], (step.intended_at - EPOCH_MS) / 1000)
    for a, at in world.acked.items():
        for b in undone:
            begun = max(world.first_sent.get(b, 0.0), meant.get(b, 0.0))
            # What a rewind had undone before the other was begun has no order with it.
            if a in undone and a != b and at <= begun <= when[a] and first[a] < first[b]:
                raise Violation(f"{a} was done before {b} was begun, and undone before it")
    if state.phase is Phase.FROZEN and state.on_stuck == "stop":
        ended = {r.step: at for at, (r, _) in enumerate(world.records(RUN), 1) if isinstance(r, CompensationCompleted)}
        for stuck in [s for s in state.steps.values() if s.state is StepState.COMPENSATION_FAILED]:
            for other in state.steps.values():
                if other.order < stuck.intended <= ended.get(other.number, 0) and other.state is StepState.COMPENSATED:
                    raise Violation(f"step {other.number} was undone past step {stuck.number}, which is stuck")
