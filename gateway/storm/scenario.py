"""What a storm is: tools that behave in a certain way, calls that arrive, things that go wrong, and policies to compare.

One YAML file serves both engines. Times count from the start of the storm. A policy replaces settings of the manifest for
every tool, so that "the same storm without a breaker" is one line; the manifest as written is the policy `seawall`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from gateway.config.decode import decode
from gateway.config.errors import ConfigError, Position, Problem, Problems, nearest
from gateway.config.nodes import parse_yaml
from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.retry import RetrySettings
from gateway.core.setting import SECONDS, Doc

__all__ = [
    "OURS",
    "FaultSettings",
    "LoadSettings",
    "PolicySettings",
    "Scenario",
    "WorldSettings",
    "book",
    "load",
    "shipped",
]

OURS = "seawall"
"""The policy that is the manifest as written."""

_BOOK = "_policies.yaml"
_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "scenarios", _PACKAGE.parent.parent / "loadtests" / "scenarios")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How a tool behaves while nothing is wrong: first come, first served; abandoned calls are still worked on."""

    workers: Annotated[int, Ge(1), Doc("Calls it works on at once.")] = 64
    service: Annotated[float, SECONDS, Gt(0), Doc("Time it works on one call.")] = 0.02
    spread: Annotated[float, Ge(0), Le(1), Doc("Share by which that time varies, up and down.")] = 0.0
    smear: Annotated[float, SECONDS, Ge(0), Doc("Calls sent at one moment arrive within this time.")] = 0.0
    limit: Annotated[float | None, Gt(0), Doc("Calls a second beyond which it answers 429 with Retry-After.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Calls that arrive. `poisson` and `steady` are open loops: they come whatever became of those before."""

    tool: Annotated[str, MinLen(1), Doc("Tool that is called.")]
    arrive: Annotated[
        Literal["poisson", "steady", "herd", "loop"],
        Doc("`herd`: all at once; `loop`: each agent calls again once answered."),
    ] = "poisson"
    rate: Annotated[float, Ge(0), Doc("Calls a second of an open loop.")] = 0.0
    to_rate: Annotated[float | None, Ge(0), Doc("The rate moves evenly from `rate` to this.")] = None
    agents: Annotated[int, Ge(1), Doc("Agents that call, in turn; of a loop or herd, all at the same time.")] = 16
    lanes: Annotated[int, Ge(1), Doc("Calls that an agent of a loop has in flight at the same time.")] = 1
    name: Annotated[str, Doc("What the agents are called.")] = "agent"
    start: Annotated[float, SECONDS, Ge(0), Doc("When the first may come.")] = 0.0
    end: Annotated[float | None, SECONDS, Gt(0), Doc("When no more come; default: the end of the storm.")] = None
    think: Annotated[float, SECONDS, Ge(0), Doc("How long an agent of a loop waits before its next call.")] = 0.0
    insists: Annotated[int, Ge(0), Doc("How often an agent sends a call again that failed.")] = 0
    pause: Annotated[float, SECONDS, Ge(0), Doc("How long it waits before it does.")] = 0.0
    request: Annotated[str, Doc("Method and target below the tool.")] = "GET /items"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """Something that goes wrong with a tool for a while."""

    tool: Annotated[str, Doc("Tool that it happens to; none for `kill`.")] = ""
    kind: Annotated[
        Literal["slow", "hang", "down", "error", "reset", "kill"],
        Doc(
            "`down` refuses connections, `error` answers 500, `reset` breaks off after the request, `slow` takes longer; "
            "`kill` kills the gateways with SIGKILL and starts them again on the same journal (live only)."
        ),
    ]
    start: Annotated[float, SECONDS, Ge(0), Doc("When it begins.")]
    end: Annotated[float, SECONDS, Gt(0), Doc("When it is over.")]
    factor: Annotated[float, Ge(1), Doc("How many times slower.")] = 1.0
    every: Annotated[
        float | None, SECONDS, Gt(0), Doc("From being back to the next kill; default: one kill alone.")
    ] = None
    share: Annotated[float, Gt(0), Le(1), Doc("Share of the calls that it happens to.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings that replace those of the manifest, for every tool and domain."""

    about: Annotated[str, Doc("Whose policy it is, and where its numbers are from.")] = ""
    breaker: Annotated[BreakerSettings | None, Doc("Replaces every breaker.")] = None
    retry: Annotated[RetrySettings | None, Doc("Replaces every retry policy.")] = None
    admission: Annotated[AdmissionSettings | None, Doc("Replaces slots, queue and rate of every domain.")] = None
    without: Annotated[
        tuple[Literal["breaker", "budget", "bulkhead"], ...], Doc("Parts that are taken out of the gateway altogether.")
    ] = ()
    drop_rate: Annotated[bool, Doc("Domains have no rate.")] = False
    anonymous: Annotated[bool, Doc("The gateway sees one and the same agent in everybody.")] = False
    one_domain: Annotated[bool, Doc("All tools share one domain.")] = False
    journal: Annotated[
        Literal["sqlite", "memory"],
        Doc("`memory`: no disk, and nothing survives (live; virtual storms have no journal)."),
    ] = "sqlite"
    jitter: Annotated[
        Literal["full", "none", "zero"],
        Doc("`none`: always the longest wait, as exponential backoff without jitter; `zero`: no wait at all."),
    ] = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Book:
    """The book of policies: those of many scenarios, and those that peers ship."""

    policies: Annotated[Mapping[str, PolicySettings], Doc("By name.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A storm, what is compared in it, and what must come of it."""

    name: Annotated[str, MinLen(1), Doc("One word; the name of the file.")]
    title: Annotated[str, MinLen(1), Doc("What it shows, in one line.")]
    about: Annotated[str, Doc("What happens and what to look at.")] = ""
    theory: Annotated[str, Doc("What arithmetic says should come of it.")] = ""
    seconds: Annotated[float, SECONDS, Gt(0), Doc("How long calls arrive.")]
    engines: Annotated[tuple[str, ...], Doc("Engines that can run it: `virtual`, `live`.")] = ("virtual", "live")
    gateways: Annotated[int, Ge(1), Doc("Gateways in front of the same tools; agents are spread over them.")] = 1
    manifest: Annotated[str, Doc("The manifest, as text.")] = ""
    folder: Annotated[str, Doc("Where the manifest's includes are looked for.")] = ""
    world: Annotated[Mapping[str, WorldSettings], Doc("How the tools behave, by name.")] = field(default_factory=dict)
    load: Annotated[tuple[LoadSettings, ...], Doc("Calls that arrive.")] = ()
    faults: Annotated[tuple[FaultSettings, ...], Doc("What goes wrong.")] = ()
    policies: Annotated[Mapping[str, PolicySettings], Doc("What the manifest is compared with.")] = field(
        default_factory=dict
    )
    compare: Annotated[tuple[str, ...], Doc("Further policies, by their names in the book of policies.")] = ()
    plots: Annotated[tuple[str, ...], Doc("Plots of the report; see docs/storms.md.")] = ("flow", "latency")
    holds: Annotated[tuple[str, ...], Doc("What must be true, such as `seawall.amplification <= 1.1`.")] = ()
    holds_live: Annotated[tuple[str, ...], Doc("What must be true on real sockets, with wider bounds.")] = ()

    @property
    def trigger(self) -> tuple[float, float] | None:
        """From when to when anything is wrong, or None."""
        if not self.faults:
            return None
        return min(fault.start for fault in self.faults), max(fault.end for fault in self.faults)


def shipped() -> dict[str, Path]:
    """Return the scenarios that come with Seawall, by name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    paths = sorted(folder.glob("*.yaml")) if folder is not None else []
    return {path.stem: path for path in paths if path.stem[0] != "_"}


def book() -> Mapping[str, PolicySettings]:
    """Return the policies that any scenario may compare with: parts taken away, and the defaults of peers.

    Raises:
        ConfigError: something is wrong with the book.
    """
    problems = Problems()
    path = next((folder / _BOOK for folder in _FOLDERS if (folder / _BOOK).is_file()), None)
    if path is None:
        return {}
    decoded = decode(parse_yaml(path.read_bytes(), str(path), problems), _Book, problems)
    problems.raise_if_any()
    assert decoded is not None
    return decoded.policies


def load(name: str) -> Scenario:
    """Return a scenario by the name of a shipped one or the path of a file.

    Raises:
        ConfigError: there is none, or something in it is wrong; with all problems and where they stand.
    """
    known = shipped()
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name, Path(name))
    try:
        data = path.read_bytes()
    except OSError:
        hint = nearest(name, known) or "`seawall storm ls` lists those that come with Seawall"
        raise ConfigError([Problem(Position(name), "there is no such scenario or file", hint)]) from None
    problems = Problems()
    node = parse_yaml(data, str(path), problems)
    scenario = decode(node, Scenario, problems)
    if scenario is not None:
        _check(scenario, node.at("name"), problems)
    problems.raise_if_any()
    assert scenario is not None
    known_policies = book() if scenario.compare else {}
    for policy in scenario.compare:
        if policy not in known_policies:
            problems.add(node.at("compare"), f"the book has no policy `{policy}`", nearest(policy, known_policies))
    problems.raise_if_any()
    compared = {policy: known_policies[policy] for policy in scenario.compare}
    return replace(scenario, policies={**compared, **scenario.policies})


def _check(scenario: Scenario, where: Position, problems: Problems) -> None:
    for engine in scenario.engines:
        if engine not in ("virtual", "live"):
            problems.add(where, f"there is no engine `{engine}`", nearest(engine, ("virtual", "live")))
    for fault in scenario.faults:
        if fault.end <= fault.start:
            problems.add(where, f"a fault of `{fault.tool or fault.kind}` ends before it begins")
        if fault.kind == "kill" and "virtual" in scenario.engines:
            problems.add(where, "a fault kills gateways, which only real ones can stand", "write `engines: [live]`")
        if fault.kind != "kill" and not fault.tool:
            problems.add(where, f"a fault of kind `{fault.kind}` happens to no tool", "name its `tool`")
    for policy in scenario.policies:
        if not policy.isidentifier():
            problems.add(where, f"the policy `{policy}` must be one word of letters, digits and underscores")
