"""What agents lay on each other's desks: a task packet opens a run, a result packet says what became of it.

    task packet                             the run
    task_id                                 its name
    idempotency_key (default: task_id)      the same packet again is the same run; another one under the key is refused
    budget_caps, deadline_ms, retries left  its budget: caps travel with the task, and are no promise of a model's
    parent_task_id                          what it spends counts there, too, if that is a run which is known
    stage, inputs                           kept with it, for whoever does the task

    status of the result                    what the run does on it
    done                                    commits
    failed, needs_retry                     is undone, or frozen past its pivot
    escalate                                is frozen for a person

Until then the status is `running`, or `needs_recovery` once it has run for longer than twice its deadline, or one of its
steps for longer than twice its timeout: that is never waited for.

Source: seed 003, section 2 (task packet and result packet), section 3 (age of a checkpoint), section 4 (budgets and
retries).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import orjson
from annotated_types import Ge, MaxLen, MinLen

from gateway.core.budget import is_amount
from gateway.core.setting import Doc
from gateway.core.trajectory import Phase, Trajectory

__all__ = [
    "ENDINGS",
    "BudgetCaps",
    "ResultPacket",
    "TaskPacket",
    "TaskResult",
    "budget_of_packet",
    "is_overdue",
    "overdue_at",
    "packet_digest",
    "read_packet",
    "read_result",
    "result_of_run",
]

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
ENDINGS: Final = ("done", "failed", "needs_retry", "escalate")
OVERDUE: Final = 2.0
"""Times its deadline after which a task that still runs needs recovery."""

_LATEST: Final = 1 << 62
"""A time that never comes, of those that have a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCaps:
    """What a task may spend. A cap that is left out or null is none."""

    max_usd: Annotated[float | None, Ge(0), Doc("US dollars.")] = None
    max_tokens: Annotated[float | None, Ge(0), Doc("Tokens of any kind.")] = None
    max_cache_read_tokens: Annotated[
        float | None, Ge(0), Doc("Tokens read from a cache; counted as tokens, the lower of both caps holds.")
    ] = None
    max_calls: Annotated[float | None, Ge(0), Doc("Calls to tools.")] = None
    max_steps: Annotated[float | None, Ge(0), Doc("Calls that change something.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPacket:
    """What an orchestrator lays before whoever does a task. It opens a run."""

    task_id: Annotated[str, MinLen(1), MaxLen(128), Doc("Name of the task and of its run: letters, digits and . _ : -")]
    idempotency_key: Annotated[
        str | None,
        MinLen(1),
        MaxLen(255),
        Doc("The same packet under the same key is the same task; default: task_id."),
    ] = None
    stage: Annotated[str | None, MaxLen(128), Doc("What part of the whole it is.")] = None
    parent_task_id: Annotated[
        str | None, MinLen(1), MaxLen(128), Doc("The task that it is a part of, from whose budget it spends.")
    ] = None
    inputs: Annotated[Mapping[str, object], Doc("What it works on; opaque to the gateway.")] = field(
        default_factory=dict
    )
    budget_caps: Annotated[BudgetCaps, Doc("What it may spend.")] = field(default_factory=BudgetCaps)
    deadline_ms: Annotated[float | None, Ge(1), Doc("Time it may take, from its opening, in milliseconds.")] = None
    retry_count: Annotated[int, Ge(0), Doc("How often the task was tried before.")] = 0
    max_retries: Annotated[int | None, Ge(0), Doc("How often it may be tried again in all.")] = None
    on_abandon: Annotated[
        Literal["escalate", "unwind", "commit"], Doc("What becomes of its run if nobody ends it in time.")
    ] = "escalate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How a task ended, as whoever did it says."""

    status: Annotated[Literal["done", "failed", "needs_retry", "escalate"], Doc("How it ended.")]
    artifact_ref: Annotated[str | None, MaxLen(2048), Doc("Where its main result lies.")] = None
    artifacts: Annotated[tuple[str, ...], Doc("Where all of its results lie; at most 256.")] = ()
    next_stage_hint: Annotated[str | None, MaxLen(256), Doc("What should come next.")] = None
    error: Annotated[str | None, MaxLen(4096), Doc("What went wrong.")] = None
    cost_usd: Annotated[float | None, Ge(0), Doc("US dollars that nobody has reported yet.")] = None
    tokens: Annotated[float | None, Ge(0), Doc("Tokens that nobody has reported yet.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPacket:
    """What lies on the orchestrator's desk in return: complete once `status` is an end, and how it stands before."""

    task_id: Annotated[str, Doc("Name of the task and of its run.")]
    status: Annotated[
        Literal["running", "needs_recovery", "done", "failed", "needs_retry", "escalate"], Doc("How it stands.")
    ]
    trajectory_state: Annotated[str, Doc("State of the run: a failed task may still be undone.")]
    artifact_ref: Annotated[str | None, Doc("Where its main result lies.")] = None
    artifacts: Annotated[tuple[str, ...], Doc("Where all of its results lie.")] = ()
    cost_usd: Annotated[float, Doc("US dollars, metered and reported.")] = 0.0
    tokens: Annotated[float, Doc("Tokens, metered and reported.")] = 0.0
    duration_ms: Annotated[int, Doc("From its opening to its end, or to now.")] = 0
    next_stage_hint: Annotated[str | None, Doc("What should come next.")] = None
    error: Annotated[str | None, Doc("What went wrong.")] = None
    retry_count: Annotated[int, Doc("How often the task was tried before.")] = 0
    retries_left: Annotated[int | None, Doc("How often it may be tried again; null: nobody said.")] = None
    parent_task_id: Annotated[str | None, Doc("The task that it is a part of.")] = None
    stage: Annotated[str | None, Doc("What part of the whole it is.")] = None


def read_packet(value: Mapping[str, object]) -> TaskPacket | list[str]:
    """Return a task packet from JSON, or everything that is wrong with it."""
    problems = _unknown(value, TaskPacket)
    caps = value.get("budget_caps") or {}
    if not isinstance(caps, Mapping):
        problems.append("budget_caps must be an object")
        caps = {}
    problems += [f"budget_caps: {problem}" for problem in _unknown(caps, BudgetCaps)]
    problems += [
        f"budget_caps: {name} must be a number from 0 on"
        for name, cap in caps.items()
        if cap is not None and not is_amount(cap)
    ]
    for name, is_needed in (("task_id", True), ("parent_task_id", False)):
        given = value.get(name)
        if (given is not None or is_needed) and not (isinstance(given, str) and NAME.fullmatch(given)):
            problems.append(f"{name} must be 1 to 128 letters, digits and . _ : -, the first a letter or digit")
    problems += _texts(value, {"idempotency_key": 255, "stage": 128})
    if value.get("idempotency_key") == "":
        problems.append("idempotency_key must not be empty")
    if not isinstance(value.get("inputs", {}), Mapping):
        problems.append("inputs must be an object")
    deadline = value.get("deadline_ms")
    if deadline is not None and not (is_amount(deadline) and isinstance(deadline, int | float) and deadline >= 1):
        problems.append("deadline_ms must be a number of milliseconds from 1 on")
    for name in ("retry_count", "max_retries"):
        count = value.get(name)
        is_null = count is None and name in value and name != "max_retries"
        if is_null or (count is not None and not (isinstance(count, int) and is_amount(count))):
            problems.append(f"{name} must be a whole number from 0 on")
    if value.get("on_abandon", "escalate") not in ("escalate", "unwind", "commit"):
        problems.append("on_abandon must be one of escalate, unwind, commit")
    if problems:
        return problems
    known: dict[str, Any] = {name: one for name, one in value.items() if name != "budget_caps"}
    return TaskPacket(**known, budget_caps=BudgetCaps(**{str(name): cap for name, cap in caps.items()}))


def read_result(value: Mapping[str, object]) -> TaskResult | list[str]:
    """Return how a task ended from JSON, or everything that is wrong with that."""
    problems = _unknown(value, TaskResult)
    if value.get("status") not in ENDINGS:
        problems.append(f"status must be one of {', '.join(ENDINGS)}")
    problems += _texts(value, {"artifact_ref": 2048, "next_stage_hint": 256, "error": 4096})
    artifacts = value.get("artifacts", [])
    if not (isinstance(artifacts, list) and len(artifacts) <= 256 and all(isinstance(one, str) for one in artifacts)):
        problems.append("artifacts must be a list of at most 256 texts")
    for name in ("cost_usd", "tokens"):
        if value.get(name) is not None and not is_amount(value[name]):
            problems.append(f"{name} must be a number from 0 on")
    if problems:
        return problems
    known: dict[str, Any] = dict(value)
    return TaskResult(**{**known, "artifacts": tuple(known.get("artifacts", ()))})


def _unknown(value: Mapping[str, object], kind: type) -> list[str]:
    known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(kind)}
    return [f"{name!r} is not known" for name in value if name not in known]


def _texts(value: Mapping[str, object], limits: Mapping[str, int]) -> list[str]:
    return [
        f"{name} must be a text of at most {limit} characters"
        for name, limit in limits.items()
        if value.get(name) is not None and not (isinstance(value[name], str) and len(str(value[name])) <= limit)
    ]


def packet_digest(packet: TaskPacket) -> str:
    """Return what tells a packet that is sent again from another one under its key."""
    return sha256(orjson.dumps(packet, option=orjson.OPT_SORT_KEYS)).hexdigest()


def budget_of_packet(packet: TaskPacket) -> dict[str, float]:
    """Return the caps of the run that a packet opens."""
    caps = packet.budget_caps
    tokens = [cap for cap in (caps.max_tokens, caps.max_cache_read_tokens) if cap is not None]
    budget = {
        "usd": caps.max_usd,
        "tokens": min(tokens) if tokens else None,
        "calls": caps.max_calls,
        "steps": caps.max_steps,
        "seconds": None if packet.deadline_ms is None else packet.deadline_ms / 1000,
        "retries": None if packet.max_retries is None else max(0, packet.max_retries - packet.retry_count),
    }
    return {name: float(cap) for name, cap in budget.items() if cap is not None}


def is_overdue(state: Trajectory, at: int) -> bool:
    """Whether a task that still runs has run for longer than twice its deadline. `at`: UTC milliseconds."""
    deadline = None if state.task is None else state.task.get("deadline_ms")
    return isinstance(deadline, int | float) and at - state.opened_at > OVERDUE * deadline


def overdue_at(state: Trajectory) -> int | None:
    """Return when a task that still runs begins to be overdue, UTC milliseconds, or None: never."""
    deadline = None if state.task is None else state.task.get("deadline_ms")
    if not isinstance(deadline, int | float):
        return None
    return math.floor(min(state.opened_at + OVERDUE * deadline, _LATEST))


_ENDS: Final = {
    Phase.SUCCEEDED: "done", Phase.FINALIZING: "running", Phase.ABORTED_CLEAN: "failed", Phase.COMPENSATING: "failed",
    Phase.FROZEN: "escalate", Phase.CLOSED: "failed", Phase.PREPARING: "running",
}  # fmt: skip


def result_of_run(state: Trajectory, at: int) -> ResultPacket:
    """Return the result packet of a run that a task packet has opened. `at`: UTC milliseconds."""
    task: Mapping[str, Any] = state.task or {}
    ended: Mapping[str, Any] = state.task_ended or {}
    status = str(ended.get("status") or _ENDS[state.phase])
    if state.phase is Phase.COMPENSATING and state.rewinding is not None and not ended:
        status = "running"
    if state.phase is Phase.FROZEN:
        status = "escalate"
    if status == "running" and (is_overdue(state, at) or state.needs_recovery):
        status = "needs_recovery"
    most, count = task.get("max_retries"), int(task.get("retry_count") or 0)
    until = state.changed_at if state.is_over else at
    return ResultPacket(
        task_id=state.id,
        status=status,  # type: ignore[arg-type]
        trajectory_state=state.phase.value,
        artifact_ref=ended.get("artifact_ref"),
        artifacts=tuple(ended.get("artifacts") or ()),
        cost_usd=round(state.usage.get("usd", 0.0), 9),
        tokens=state.usage.get("tokens", 0.0),
        duration_ms=max(0, until - state.opened_at),
        next_stage_hint=ended.get("next_stage_hint"),
        error=ended.get("error") or (state.reason or None if status not in ("done", "running") else None),
        retry_count=count,
        retries_left=None if most is None else max(0, most - count),
        parent_task_id=task.get("parent_task_id"),
        stage=task.get("stage"),
    )
