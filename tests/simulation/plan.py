"""What an agent sets out to do: groups of actions, one group after the other, a group's actions at the same time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.simulation.world import Fate

__all__ = ["Action", "Plan", "canonical", "drawn"]


@dataclass(frozen=True, slots=True)
class Action:
    """One call; `item` names its effect, once in the world. The agent leaves after `patience_s`, and comes back."""

    tool: str
    verb: str
    item: str
    patience_s: float | None = None

    @property
    def method(self) -> str:
        return "PUT" if self.verb == "note" else "POST"

    @property
    def target(self) -> str:
        return f"/{self.verb}/{self.item}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A run: what it does, after which group it changes its mind, and what the network and the tools have in store.

    `cut_after_s`: an operator aborts the run then, whatever it is doing. A reckless agent goes on past unknown outcomes.
    `rewind`: a savepoint is taken after the first of the two groups, and rewound to after the second, once.
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
        """Whether a person may be needed: a tool that can neither be asked nor take a key, or that refuses an undo."""
        is_doomed = self.stubborn is not None and any(action.verb == "go" for action in self.actions)
        return bool(self.refused_undo) or is_doomed or any(action.tool == "blind" for action in self.actions)


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
    if rng.random() < 0.4:
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


def _drawn_action(rng: random.Random, tools: list[str], number: int) -> Action:
    tool = rng.choice(tools)
    patience = 0.005 + rng.random() * 6 if rng.random() < 0.1 else None
    return Action(tool, "make", f"{tool}-{number}", patience)


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
