"""What an agent sets out to do: groups of actions, one group after the other, a group's actions at the same time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.world import Fate

__all__ = ["Action", "Person", "Plan", "canonical", "contained", "directed", "drawn"]


@dataclass(frozen=True, slots=True)
class Action:
    """One call; `item` names its effect, once in the world. The agent leaves after `patience_s`, and comes back.

    It begins after `after_s`. `wait_s`: it waits so long for people; `rest_s`: so long it stays away when told to come back.
    `bait`: it asks for this item first, and takes the other once that is on its way
    to be approved. `key` is the agent's own. A `size` past what the log holds makes its body one that is kept beside it.
    """

    tool: str
    verb: str
    item: str
    patience_s: float | None = None
    wait_s: float = 0.0
    after_s: float = 0.0
    rest_s: float = 0.0
    bait: str = ""
    size: int = 2
    key: str | None = None

    @property
    def method(self) -> str:
        return "PUT" if self.verb == "note" else "POST"

    @property
    def body(self) -> bytes:
        return b"{}" + b" " * (self.size - 2)

    @property
    def target(self) -> str:
        return f"/{self.verb}/{self.item}"


@dataclass(frozen=True, slots=True)
class Person:
    """Says `verdict` to each approval among the plan's `approved`, so long after it was asked for, so often at once."""

    name: str
    after_s: float = 1.0
    verdict: str = "approve"
    clicks: int = 1


BOTH = (Person("ann", 2.0), Person("bob", 4.0, clicks=2))


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: what it does, after which group it changes its mind, and what the network and the tools have in store.

    `cut_after_s`: an operator aborts the run then, whatever it is doing. A reckless agent goes on past unknown outcomes.
    A peer is another agent that looks at what this one makes; `is_contained`: somewhere on the way the run is quarantined.
    `rewind`: a savepoint is taken after the first of the two groups, and rewound to after the second, once. The verifier is
    content from `green[0]` to `green[1]`, seconds since the start. `is_mended`: somebody looks after a frozen run, finds out
    what became of its steps, undoes and does by hand what the tools refused, and lets it go on.
    `stubborn` is sent again whatever is said of it, with one of `fixes` in between while there are any. `repairs` are the
    corrected calls that are tried in turn once an item was refused for good. `caps` are the run's budget.
    """

    name: str
    groups: tuple[tuple[Action, ...], ...]
    abort_after: int | None = None
    on_stuck: str = "stop"
    script: dict[str, list[Fate]] = field(default_factory=dict)
    faults: int = 0
    undo_faults: int = 0
    cut_after_s: float | None = None
    rewind: tuple[int, int] | None = None
    is_reckless: bool = False
    fault_ratio: float = 0.3
    refused_undo: frozenset[str] = frozenset()
    has_peer: bool = False
    is_contained: bool = False
    refused_tell: frozenset[str] = frozenset()
    people: tuple[Person, ...] = ()
    approved: frozenset[str] = frozenset()
    green: tuple[float, float] = (0.0, float("inf"))
    disk_faults: int = 0
    is_mended: bool = False
    stubborn: str | None = None
    fixes: tuple[Action, ...] = ()
    repairs: dict[str, tuple[Action, ...]] = field(default_factory=dict)
    caps: dict[str, float] = field(default_factory=dict)

    @property
    def actions(self) -> list[Action]:
        planned = [action for group in self.groups for action in group]
        return [*planned, *self.fixes, *(action for each in self.repairs.values() for action in each)]

    @property
    def may_freeze(self) -> bool:
        """Whether a person may be needed: a tool that can neither be asked nor take a key, or that refuses for good, or a
        network that answers one question in ten, so that settling may outlast everybody's patience."""
        is_blind = self.is_contained or any(action.tool == "blind" for action in self.actions)
        is_doomed = self.stubborn is not None and any(action.verb == "go" for action in self.actions)
        is_refused = bool(self.refused_undo or self.refused_tell)
        return is_refused or is_doomed or is_blind or self.faults * self.fault_ratio > 10


_AFTER = (
    Action("keyed", "note", "keyed-after"),
    Action("probed", "make", "probed-after"),
    Action("keyed", "go", "keyed-after-pivot"),
)
"""What an agent may try past its pivot; only the first is legal."""


def drawn(rng: random.Random) -> Plan:
    """Return a plan drawn from the seed."""
    is_blind = rng.random() < 0.1
    tools = ["keyed", "brief", "probed", *(["blind"] if is_blind else [])]
    count = rng.randrange(1, 5)
    groups: list[tuple[Action, ...]] = []
    made: list[Action] = []
    while len(made) < count:
        size = 2 if rng.random() < 0.25 else 1
        group = tuple(_drawn_action(rng, tools, len(made) + n) for n in range(size))
        made.extend(group)
        groups.append(group)
    told = _with_notices(rng, tools, groups)
    more: dict[str, Any] = {}
    if rng.random() < 0.5:
        if rng.random() < 0.5:
            more = _guarded(rng, tools, groups)
        else:
            tool = rng.choice(tools)
            groups.append((Action(tool, "go", f"{tool}-pivot"),))
        groups.extend((each,) for each in _AFTER if rng.random() < 0.3)
    plain = len([group for group in groups if group[0].verb == "make" and not group[0].item.endswith("after")])
    rewind = (rng.randrange(plain - 1), plain - 1) if plain > 1 and rng.random() < 0.25 else None
    refused = frozenset({rng.choice(made).item}) if rng.random() < 0.08 else frozenset()
    drawn = Plan(
        "drawn",
        tuple(groups),
        abort_after=rng.randrange(len(groups)) if rng.random() < 0.35 else None,
        on_stuck="continue" if rng.random() < 0.3 else "stop",
        faults=rng.choice((0, 1, 2, 4, 12)),
        rewind=rewind,
        undo_faults=rng.choice((0, 0, 1, 3)),
        cut_after_s=rng.random() * 8 if rng.random() < 0.15 else None,
        is_reckless=rng.random() < 0.3,
        fault_ratio=rng.choice((0.2, 0.5, 0.9)),
        refused_undo=refused,
        refused_tell=frozenset({rng.choice(told)}) if told and rng.random() < 0.1 else frozenset(),
        disk_faults=rng.choice((0, 0, 0, 1, 3, 8)),
        is_mended=rng.random() < 0.6,
        **more,
    )
    # Drawn from the plan itself, so that a seed is the schedule that it was before there were loops.
    return _with_circles(drawn, made, random.Random(repr(drawn)))


def _with_circles(plan: Plan, made: list[Action], rng: random.Random) -> Plan:
    """Let some agents go in circles, some repair what is refused, and some have less to spend than they need."""
    if rng.random() < 0.15:
        is_past = any(action.verb == "go" for group in plan.groups for action in group)
        verb, item = ("note", "keyed-again") if is_past else ("make", f"{rng.choice(('keyed', 'probed'))}-again")
        stubborn = Action(item.partition("-")[0], verb, item)
        fixes = tuple(Action("keyed", "make", f"keyed-fix{n}") for n in range(0 if is_past else rng.choice((0, 0, 6))))
        named = f"/note/{item}" if is_past else item
        plan = replace(
            plan, groups=(*plan.groups, (stubborn,)), stubborn=item, fixes=fixes, script={named: [Fate.NO] * 60}
        )
    elif rng.random() < 0.2:
        broken, works = rng.choice(made), rng.random() < 0.6
        corrected = tuple(Action(broken.tool, "make", f"{broken.item}-r{n}") for n in range(3))
        script = {broken.item: [Fate.NO] * 60}
        script |= {each.item: [Fate.NO] * 60 for each in (corrected[:-1] if works else corrected)}
        plan = replace(plan, repairs={broken.item: corrected}, script=script)
    if rng.random() < 0.1:
        plan = replace(plan, caps={"steps": float(rng.randrange(1, 6))})
    return plan


def _with_notices(rng: random.Random, tools: list[str], groups: list[tuple[Action, ...]]) -> list[str]:
    """Put calls that are staged among the groups; return their items."""
    told = []
    for number in range(rng.choice((0, 0, 0, 1, 2, 3))):
        tool = rng.choice(tools)
        action = Action(tool, "tell", f"{tool}-notice-{number}", size=70_000 if rng.random() < 0.2 else 2)
        groups.insert(rng.randrange(len(groups) + 1), (action,))
        told.append(action.item)
    return told


def _guarded(rng: random.Random, tools: list[str], groups: list[tuple[Action, ...]]) -> dict[str, Any]:
    """End with a pivot behind gates; return what people and verifier say to it."""
    if rng.random() < 0.3:
        groups.insert(0, (Action("keyed", "lock", "keyed-lock"),))
    bait = "guarded-other" if rng.random() < 0.2 else ""
    wait_s = rng.random() * 40 if rng.random() < 0.3 else 0.0
    pivot = Action("guarded", "go", "guarded-pivot", wait_s=wait_s, bait=bait)
    beside = (_drawn_action(rng, tools, 9),) if rng.random() < 0.25 else ()
    groups.append((pivot, *beside))
    names = rng.sample(["ann", "bob", "carl", "mallory", "agent"], rng.randrange(5))
    names = ["ann", "carl"] if rng.random() < 0.5 else names
    people = tuple(
        Person(name, rng.random() * rng.choice((5, 40, 80)), "reject" if rng.random() < 0.15 else "approve",
               rng.choice((1, 1, 2)))
        for name in names
    )  # fmt: skip
    begin = rng.random() * 40 if rng.random() < 0.2 else 0.0
    end = rng.random() * 60 if rng.random() < 0.2 else float("inf")
    return {"people": people, "approved": frozenset({bait or pivot.item}), "green": (begin, end)}


def _drawn_action(rng: random.Random, tools: list[str], number: int) -> Action:
    tool = rng.choice(tools)
    patience = 0.005 + rng.random() * 6 if rng.random() < 0.1 else None
    key = f"own-{number}" if rng.random() < 0.2 else None
    return Action(tool, "make", f"{tool}-{number}", patience, key=key)


def _chain(*actions: Action) -> tuple[tuple[Action, ...], ...]:
    return tuple((action,) for action in actions)


def canonical() -> list[Plan]:
    """The scenarios of seed 000, which every crash point is tried on.

    The deployment: sandbox, address, build, firewall, and a name that is taken (409), so four steps are undone. The trap: a
    second irreversible step is asked for after the pivot, and refused. The trace of six turns: a clone and a look (reads are
    left out here: they leave no record that matters), a database whose answer is lost on the way, a migration that is
    refused and repaired, the crash itself, and the pivot after the gate. The hanging call lands long after it was given up.
    """
    return [
        Plan(
            "deployment",
            _chain(
                Action("keyed", "make", "keyed-sandbox"),
                Action("probed", "make", "probed-address"),
                Action("keyed", "make", "keyed-build"),
                Action("brief", "make", "brief-firewall"),
                Action("keyed", "make", "keyed-name"),
            ),
            script={"keyed-name": [Fate.NO] * 20},
        ),
        Plan(
            "double pivot",
            _chain(
                Action("keyed", "make", "keyed-gpus"),
                Action("probed", "make", "probed-warmup"),
                Action("keyed", "go", "keyed-anycast"),
                Action("probed", "go", "probed-webhook"),
            ),
        ),
        Plan(
            "six turns",
            _chain(
                Action("probed", "make", "probed-database"),
                Action("keyed", "make", "keyed-migration"),
                Action("keyed", "make", "keyed-repaired"),
                Action("brief", "make", "brief-config"),
                Action("brief", "go", "brief-deploy"),
                Action("keyed", "note", "keyed-report"),
            ),
            script={"probed-database": [Fate.ANSWER_LOST], "keyed-repaired": [Fate.LOST], "brief-deploy": [Fate.LATE]},
        ),
        Plan(
            "in circles",
            _chain(Action("keyed", "make", "keyed-before"), Action("keyed", "make", "keyed-again")),
            stubborn="keyed-again",
            fixes=tuple(Action("keyed", "make", f"keyed-fix{n}") for n in range(6)),
            script={"keyed-again": [Fate.NO] * 60},
        ),
        Plan("hanging", _chain(Action("probed", "make", "probed-late")), script={"probed-late": [Fate.LATE]}),
    ]


def directed() -> list[Plan]:
    """What chance brings about too seldom: each is a story in which one rule of the gate or the outbox is all that helps."""
    pivot = Action("guarded", "go", "guarded-pivot")
    made = Action("keyed", "make", "keyed-0")
    told = tuple(Action("keyed", "tell", f"keyed-notice-{number}", size=70_000) for number in range(3))

    def story(name: str, *groups: tuple[Action, ...], **more: Any) -> Plan:
        return Plan(name, groups, **{"people": BOTH, "approved": frozenset({pivot.item}), **more})

    return [
        # People agree after six seconds; while the verifier is asked once more, and takes its time, a step slips in.
        story(
            "slipped in",
            (made,),
            (replace(pivot, wait_s=40.0), Action("keyed", "make", "keyed-1", after_s=6.5)),
            script={"/verify/guarded-pivot": [Fate.SLOW] * 3},
        ),
        # The agent comes back when what it was given has run out.
        story("too late", (made,), (replace(pivot, rest_s=45.0),)),
        # The lock that was taken first has run out when the pivot is asked for.
        story("lock lost", (Action("keyed", "lock", "keyed-lock"),), (replace(pivot, after_s=95.0),)),
        # One says no, and is outvoted.
        story(
            "outvoted",
            (made,),
            (pivot,),
            people=(Person("carl", 2.0, "reject"), Person("ann", 8.0), Person("bob", 8.0)),
        ),
        # Large notices past the pivot, on a disk that fails at everything.
        story("bad disk", (made,), *((each,) for each in told), (pivot,), disk_faults=20),
    ]


def contained() -> list[Plan]:
    """Runs that are quarantined somewhere on the way, while another agent looks at what they make.

    One does its work and reaches its pivot, through lost and late answers; one is undone; one hangs until it is given up.
    """
    made = [Action("shelf", "make", f"shelf-{n}") for n in range(3)]
    return [
        Plan(
            "pivot",
            _chain(*made, Action("shelf", "go", "shelf-pivot")),
            script={"shelf-1": [Fate.ANSWER_LOST], "shelf-2": [Fate.TWICE], "shelf-pivot": [Fate.LOST]},
            has_peer=True,
        ),
        Plan(
            "undone", _chain(*made, Action("probed", "make", "probed-3")), abort_after=3, undo_faults=2, has_peer=True
        ),
        Plan(
            "late",
            _chain(made[0], Action("probed", "make", "probed-late"), made[1]),
            script={"shelf-0": [Fate.LATE], "probed-late": [Fate.LATE]},
            has_peer=True,
        ),
    ]
