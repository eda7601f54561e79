"""The records of a run: what happened, in the past tense, and how it is written down.

A run is the fold of its records (`core/saga.py`) and nothing else. Records are only ever added: a field that a later
release adds has a default, so that journals written by any earlier release fold to the same state for ever.

Encoding is JSON (orjson): readable in any SQLite shell, and fast. Unknown members are ignored when reading.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from itertools import compress
from operator import itemgetter
from typing import Any, Final

import orjson

from gateway.core.message import Headers
from gateway.core.remembered import Remembered
from gateway.core.tool import BoundRequest
from gateway.core.value import frozen

__all__ = [
    "ApprovalDecided",
    "ApprovalExpired",
    "ApprovalRequested",
    "BudgetTightened",
    "CompensationCompleted",
    "CompensationIntended",
    "CompensationRefused",
    "CompensationSkipped",
    "ContentBlocked",
    "GatePassed",
    "IncidentAcknowledged",
    "LeaseEnded",
    "LeaseTaken",
    "LoopInterrupted",
    "MetricsReported",
    "NoticesDelivered",
    "PlanAdopted",
    "PolicyObserved",
    "ReadObserved",
    "ReadsObserved",
    "Record",
    "RecordedReply",
    "RecordedRequest",
    "RecoveryFailed",
    "RefusalsObserved",
    "SavepointTaken",
    "StateReported",
    "StepCommitted",
    "StepDeferred",
    "StepFailed",
    "StepInDoubt",
    "StepIntended",
    "StepReleased",
    "StepResolved",
    "StepStaged",
    "TaskAccepted",
    "TaskEnded",
    "TrajectoryAborted",
    "TrajectoryClosed",
    "TrajectoryClosing",
    "TrajectoryCommitted",
    "TrajectoryFrozen",
    "TrajectoryOpened",
    "TrajectoryReleased",
    "TrajectoryRewound",
    "UnknownRecord",
    "UnwindingStarted",
    "UsageReported",
    "decode",
    "encode",
    "is_recordable",
    "redacted",
]


class UnknownRecord(ValueError):
    """A record of a kind or shape that this release does not know: written by a newer one, or damaged."""


@frozen(slots=False, kw_only=False)
class RecordedReply:
    """A tool's answer as the journal keeps it, so that it can be delivered again.

    Exactly one of `text`, `base64`, `blob` holds the body; `blob` names a body kept beside the log.
    """

    status: int
    reason: str = ""
    headers: list[list[str]] = field(default_factory=list)
    text: str | None = None
    base64: str | None = None
    blob: str | None = None

    @classmethod
    def of(cls, status: int, reason: bytes, headers: Headers, body: bytes | str) -> RecordedReply:
        """Return the record of an answer; `body` is its bytes, or the name of a kept body."""
        pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
        said = reason.decode("latin-1")
        if isinstance(body, str):
            return cls(status, said, pairs, blob=body)
        try:
            return cls(status, said, pairs, body.decode())
        except UnicodeDecodeError:
            return cls(status, said, pairs, base64=base64.b64encode(body).decode())

    def raw_headers(self) -> Headers:
        """Return the header fields as bytes, in order."""
        return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers)

    def inline_body(self) -> bytes | None:
        """Return the body, or None if it is kept beside the log."""
        if self.blob is not None:
            return None
        return self.text.encode() if self.text is not None else base64.b64decode(self.base64 or "")


@frozen(slots=False, kw_only=False)
class RecordedRequest:
    """What was sent, as far as sending it again needs: no credentials, since only known harmless fields are kept.

    At most one of `text`, `base64`, `blob` holds the body; `blob` names a body kept beside the log.
    """

    headers: list[list[str]] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    base64: str | None = None
    blob: str | None = None

    @classmethod
    def of(cls, headers: Headers, params: Mapping[str, str], body: bytes | str | None) -> RecordedRequest:
        """Return the record of a request; `body` is its bytes, or the name of a kept body, or None without one."""
        recordable = compress(headers, map(_RECORDABLE, map(_NAME, headers)))
        pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in recordable]
        kept = dict(params)
        if body is None or isinstance(body, str):
            return cls(pairs, kept, blob=body)
        try:
            return cls(pairs, kept, body.decode())
        except UnicodeDecodeError:
            return cls(pairs, kept, base64=base64.b64encode(body).decode())

    def raw_headers(self) -> Headers:
        """Return the header fields as bytes, in order."""
        return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers)

    def inline_body(self) -> bytes | None:
        """Return the body, or None if there is none or it is kept beside the log."""
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else base64.b64decode(self.base64)


_RECORDED_FIELDS = frozenset({
    b"accept", b"accept-language", b"content-encoding", b"content-language", b"content-type", b"if-match",
    b"if-none-match", b"prefer",
})  # fmt: skip


def is_recordable(name: bytes) -> bool:
    """Whether a request field may be written down: it has a meaning and can hold no secret."""
    name = name.lower()
    return name in _RECORDED_FIELDS or name.endswith(b"-version")


_NAME: Final = itemgetter(0)
_RECORDABLE: Final = Remembered[bytes, bool](is_recordable).__getitem__


@frozen(slots=False)
class TrajectoryOpened:
    """The run began. Implicit runs were named by nobody and close themselves.

    `on_stuck` says what an unwinding does at a step that cannot be undone: `stop` there, or `continue` with the rest.
    `budget` are its caps by name.
    """

    agent: str
    is_implicit: bool = False
    on_abandon: str = "escalate"
    ttl_s: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    on_stuck: str = "stop"
    budget: dict[str, float] = field(default_factory=dict)


@frozen(slots=False, kw_only=False)
class StepIntended:
    """A call is about to leave. Durable before it does.

    Attributes:
        step: number in the run, from 1.
        action: digest of operation and canonical arguments, hexadecimal.
        occurrence: how often the same action came before in this run, plus one.
        key: idempotency key that goes to the tool.
        caller: digest of the agent's own key, if it gave one.
        request: what was sent beside method and target, where settling or undoing the step may need it.
        delivered: steps whose results have reached the agent since the record before.
        approval: the approval that it uses up.
    """

    step: int
    tool: str
    operation: str
    tier: str
    action: str
    fingerprint: str
    occurrence: int
    key: str
    method: str
    target: str
    is_idempotent: bool = False
    caller: str | None = None
    body_digest: str | None = None
    delivered: list[int] = field(default_factory=list)
    request: RecordedRequest | None = None
    approval: str | None = None


@frozen(slots=False, kw_only=False)
class StepCommitted:
    """The tool did it. Durable, with the bound compensator, before the agent sees the answer.

    `unbound` says why a declared compensator could not be bound; `bad` why the postcondition does not hold; `settled`
    how the tool's answer was found out if it never arrived. What the step gave is good until `lease_until` (UTC
    milliseconds; 0: nobody knows) under the name `lease`. `leak` says what its effect costs for as long as it is not undone:
    [what, amount, seconds, currency].
    """

    step: int
    reply: RecordedReply
    compensator: BoundRequest | None = None
    unbound: str | None = None
    bad: str | None = None
    settled: str | None = None
    lease: str | None = None
    lease_until: int | None = None
    leak: tuple[str, float, float, str] | None = None


@frozen(slots=False)
class StepFailed:
    """Certainly no effect: never sent, proven absent, or the tool said no.

    With a `compensator` (or `unbound`, why it could not be bound) the manifest says that a failure may leave a part of
    the effect behind: it is undone like a step that was done. `answer` is a hash of the tool's no, 16 hexadecimal digits,
    by which an equal one is recognised.
    """

    step: int
    fault: str
    detail: str
    status: int | None = None
    compensator: BoundRequest | None = None
    unbound: str | None = None
    answer: str = ""


@frozen(slots=False)
class StepInDoubt:
    """Sent, and the effect is unknown."""

    step: int
    fault: str
    detail: str
    status: int | None = None


@frozen(slots=False)
class ReadObserved:
    """A read went through; written lazily, for the audit."""

    tool: str
    operation: str
    method: str
    path: str
    outcome: str
    status: int | None = None


@frozen(slots=False)
class ReadsObserved:
    """Several reads went through: each with the fields of a `ReadObserved`, in their order, and when (UTC milliseconds).

    A read that does not open its run waits a moment for others, since a record costs more than the read it tells of.
    """

    reads: list[tuple[str, str, str, str, str, int | None, int]]


@frozen(slots=False)
class RefusalsObserved:
    """Calls that we refused since the last such record: [code, tool, operation, how many]."""

    refusals: list[tuple[str, str, str, int]]


@frozen(slots=False)
class PolicyObserved:
    """What rules decided about calls since the last such record, or would have (in shadow): [rule, effect, operation,
    in shadow, how many]."""

    decisions: list[tuple[str, str, str, bool, int]]


@frozen(slots=False)
class LeaseTaken:
    """The run has a credential for a tool, until then at the latest (UTC milliseconds). Its secret is written nowhere."""

    lease: str
    tool: str
    kind: str
    until: int


@frozen(slots=False)
class LeaseEnded:
    """The credential is good for nothing any more."""

    lease: str
    tool: str
    why: str


@frozen(slots=False)
class UnwindingStarted:
    """From here no forward step is admitted; what was done is undone, last first, down to the savepoint if one is named."""

    reason: str
    by: str = "agent"
    savepoint: str | None = None


@frozen(slots=False)
class SavepointTaken:
    """A place to rewind to: what is intended after it can be undone without undoing what was intended before.

    `since`: the stream version that it stands for, where it is taken for a place that lies behind; None for here.
    """

    name: str
    by: str = "agent"
    since: int | None = None


@frozen(slots=False)
class TrajectoryRewound:
    """Everything after the savepoint is undone; the run goes on from there."""

    savepoint: str


@frozen(slots=False)
class RecoveryFailed:
    """Settling or undoing broke off on something unforeseen. Counted until anything succeeds; the third freezes."""

    where: str
    error: str


@frozen(slots=False)
class CompensationIntended:
    """A compensator is about to leave. Durable before it does; the key is the same for every attempt.

    `compensator` is what is sent for a step that could not be settled, whose undo is declared safe all the same. `round`
    2 is the one repeat, under a key of its own, after a probe found the effect back.
    """

    step: int
    key: str
    compensator: BoundRequest | None = None
    round: int = 1


@frozen(slots=False)
class CompensationCompleted:
    """The step is undone; `is_proven` if a probe found its effect gone."""

    step: int
    status: int | None = None
    is_proven: bool = False


@frozen(slots=False)
class CompensationSkipped:
    """There was nothing to undo, or nothing that could be: the reason names which, and `is_residue` says so."""

    step: int
    reason: str
    is_residue: bool = False


@frozen(slots=False)
class CompensationRefused:
    """The tool refused the compensator for good, or its budget is spent."""

    step: int
    fault: str
    detail: str
    status: int | None = None


@frozen(slots=False)
class TrajectoryAborted:
    """Everything that could be undone is undone."""


@frozen(slots=False)
class TrajectoryCommitted:
    """The run is over and stays done."""

    by: str = "agent"


@frozen(slots=False)
class TrajectoryFrozen:
    """Nothing more happens in this run until a person decides. `incident` is its class, `step` the one it is about."""

    incident: str
    detail: str
    step: int | None = None
    by: str = "gateway"


@frozen(slots=False)
class TrajectoryClosing:
    """No more steps: what is staged or deferred is finished, then the run is committed. There is no way back."""

    by: str = "agent"


# --- the gate in front of a pivot


@frozen(slots=False)
class ApprovalRequested:
    """A call waits for people. They decide on exactly this: another argument, or another address, is another call.

    Attributes:
        approval: its name; the run's and the position of this record.
        action, fingerprint: digests of the canonical arguments.
        origin: where it would be sent, without the path.
        body: as text, if it is short and is text; `body_digest` is the SHA-256 of all of it.
        required: how many of `approvers` (empty: any principal) must approve.
        expires_at: UTC milliseconds; without a decision by then it is denied.
        valid_ms: for how long a given approval may be used.
    """

    approval: str
    agent: str
    tool: str
    operation: str
    tier: str
    action: str
    fingerprint: str
    origin: str
    method: str
    target: str
    required: int
    expires_at: int
    valid_ms: int
    content_type: str = ""
    body: str | None = None
    body_bytes: int = 0
    body_digest: str | None = None
    approvers: list[str] = field(default_factory=list)


@frozen(slots=False)
class ApprovalDecided:
    """One person decided: `approve` or `reject`. The vote that completes it carries until when it may be used."""

    approval: str
    principal: str
    verdict: str
    reason: str
    use_until: int | None = None


@frozen(slots=False)
class ApprovalExpired:
    """Nobody decided in time, or the approval was not used in time: denied."""

    approval: str


@frozen(slots=False)
class GatePassed:
    """Every gate of an action let it pass, on the run as it was: `snapshot` is the digest of all outcomes so far.

    `gates` is what each of them said: [gate, finding].
    """

    action: str
    operation: str
    snapshot: str
    approval: str | None = None
    gates: list[list[str]] = field(default_factory=list)


@frozen(slots=False)
class PlanAdopted:
    """The run follows this plan: [{id, tool, operation, tier, phase, needs}] in order."""

    steps: list[dict[str, Any]]


# --- past the pivot


@frozen(slots=False)
class StepStaged:
    """An irreversible call is kept until the pivot commits. Its step is released then, or dropped with the run."""

    step: int
    tool: str
    operation: str
    tier: str
    action: str
    fingerprint: str
    occurrence: int
    key: str
    method: str
    target: str
    request: RecordedRequest
    is_idempotent: bool = False
    caller: str | None = None
    approval: str | None = None
    delivered: list[int] = field(default_factory=list)


@frozen(slots=False)
class StepReleased:
    """A staged or deferred step is about to leave (again). Durable before it does."""

    step: int


@frozen(slots=False)
class StepDeferred:
    """A step past the pivot certainly had no effect yet, and must have it: it will be tried again."""

    step: int
    fault: str
    detail: str
    status: int | None = None


# --- people


@frozen(slots=False)
class IncidentAcknowledged:
    """Somebody looks after it."""

    principal: str
    reason: str = ""


@frozen(slots=False)
class TrajectoryReleased:
    """A person lets a frozen run go on, in phase `to`; its incident is resolved."""

    to: str
    principal: str
    reason: str


@frozen(slots=False)
class TrajectoryClosed:
    """A person ended a frozen run as it is; its incident is resolved."""

    principal: str
    reason: str


@frozen(slots=False)
class StepResolved:
    """A person found out whether a step's effect is in the world: `landed` or `not_landed`."""

    step: int
    verdict: str
    evidence: str
    principal: str


@frozen(slots=False)
class NoticesDelivered:
    """A sink has taken every notice of this run up to a position; `is_complete`: and so have all the others."""

    sink: str
    up_to: int
    is_complete: bool = False


# --- circles


@frozen(slots=False)
class LoopInterrupted:
    """A call was not sent, because with it the run went in circles.

    Attributes:
        pattern: what was seen.
        verdict: what was done: `interrupt`, `rewind`, `deadlock`, or `mask` where only the action was taken away.
        action: digest of the call that was held back, hexadecimal.
        since_step: the step with which the loop began.
        times: how often it repeated.
    """

    pattern: str
    verdict: str
    action: str
    tool: str
    operation: str
    since_step: int | None = None
    times: int = 1


@frozen(slots=False)
class StateReported:
    """The state of the world after a change, as a hash (16 hexadecimal digits), and who says so."""

    state: str
    source: str = "agent"


@frozen(slots=False)
class MetricsReported:
    """Figures of progress; larger is better."""

    values: dict[str, float]


# --- blocked content


@frozen(slots=False)
class ContentBlocked:
    """A tool's content filter said no to an action (its digest): it is not sent again in this run."""

    tool: str
    operation: str
    action: str


# --- budgets


@frozen(slots=False)
class BudgetTightened:
    """Caps of the run that are lower from here on, or new."""

    caps: dict[str, float]


@frozen(slots=False)
class UsageReported:
    """The run spent so much more: what `source` (agent, gateway) knows of. A report that carries a name counts once."""

    values: dict[str, float]
    source: str = "agent"
    report: str | None = None


# --- tasks


@frozen(slots=False)
class TaskAccepted:
    """The run is that of a task packet. `digest` tells the packet from another one."""

    task: dict[str, Any]
    digest: str


@frozen(slots=False)
class TaskEnded:
    """How the task ended, as whoever did it says: status, artifact_ref, artifacts, next_stage_hint, error."""

    result: dict[str, Any]


@frozen(slots=False)
class ChildOpened:
    """A task that names this run as its parent is about to be opened: what it spends counts here, too."""

    child: str


@frozen(slots=False)
class ChildSettled:
    """That task is over, and has spent so much in all, its own children included. `heirs`: children of its own that are not
    over; they are this run's from here on, and what they spend is not in `values`."""

    child: str
    values: dict[str, float] = field(default_factory=dict)
    heirs: list[str] = field(default_factory=list)


Record = (
    TrajectoryOpened
    | StepIntended
    | StepCommitted
    | StepFailed
    | StepInDoubt
    | ReadObserved
    | ReadsObserved
    | RefusalsObserved
    | PolicyObserved
    | LeaseTaken
    | LeaseEnded
    | UnwindingStarted
    | SavepointTaken
    | TrajectoryRewound
    | RecoveryFailed
    | CompensationIntended
    | CompensationCompleted
    | CompensationSkipped
    | CompensationRefused
    | TrajectoryAborted
    | TrajectoryCommitted
    | TrajectoryFrozen
    | TrajectoryClosing
    | ApprovalRequested
    | ApprovalDecided
    | ApprovalExpired
    | GatePassed
    | PlanAdopted
    | StepStaged
    | StepReleased
    | StepDeferred
    | IncidentAcknowledged
    | TrajectoryReleased
    | TrajectoryClosed
    | StepResolved
    | NoticesDelivered
    | LoopInterrupted
    | StateReported
    | MetricsReported
    | BudgetTightened
    | UsageReported
    | TaskAccepted
    | TaskEnded
    | ChildOpened
    | ChildSettled
    | ContentBlocked
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Record.__args__}
_FIELDS = {kind: frozenset(f.name for f in fields(kind)) for kind in _KINDS.values()}
_REQUIRED = {
    kind: frozenset(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    for kind in _KINDS.values()
}


def encode(record: Record) -> tuple[str, bytes]:
    """Return the kind and the body of a record, as the journal stores them."""
    # A copy: orjson's own bytes keep a buffer of eight KiB for as long as they live, whatever is in it.
    return type(record).__name__, b"".join((orjson.dumps(record), b""))


def decode(kind: str, data: bytes) -> Record:
    """Return the record that `encode` wrote, in this or any earlier release.

    Raises:
        UnknownRecord: the kind is unknown, or the body is not that of such a record.
    """
    cls = _KINDS.get(kind)
    if cls is None:
        raise UnknownRecord(
            f"record kind {kind!r} is not known to this release; was the journal written by a newer one?"
        )
    try:
        values = orjson.loads(data)
        fields = _FIELDS[cls]
        is_known = values.keys() <= fields
        known = values if is_known else {name: value for name, value in values.items() if name in fields}
        if cls is StepCommitted:
            known["reply"] = RecordedReply(**known["reply"])
            if known.get("leak") is not None:
                known["leak"] = tuple(known["leak"])
        elif cls in (StepIntended, StepStaged) and known.get("request") is not None:
            known["request"] = RecordedRequest(**known["request"])
        elif cls is ReadsObserved:
            known["reads"] = [tuple(read) for read in known["reads"]]
        elif cls is RefusalsObserved:
            known["refusals"] = [tuple(refusal) for refusal in known["refusals"]]
        elif cls is PolicyObserved:
            known["decisions"] = [tuple(decision) for decision in known["decisions"]]
        if known.get("compensator") is not None:
            bound = known["compensator"]
            known["compensator"] = BoundRequest(**{**bound, "headers": tuple(map(tuple, bound["headers"]))})
        if not known.keys() >= _REQUIRED[cls]:
            raise UnknownRecord(f"a {kind} record lacks {', '.join(sorted(_REQUIRED[cls] - known.keys()))}")
        record: Record = cls(**known)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, UnknownRecord):
            raise
        raise UnknownRecord(f"a {kind} record cannot be read: {type(error).__name__}") from error
    return record


_STRUCTURE = frozenset(
    {
        "step",
        "tool",
        "operation",
        "tier",
        "key",
        "fault",
        "agent",
        "by",
        "incident",
        "outcome",
        "on_abandon",
        "occurrence",
        "approval",
        "verdict",
        "to",
        "sink",
        "pattern",
    }
)
"""Text that a fold needs and that names nobody: kept when payloads are erased."""


def redacted(kind: str, data: bytes) -> bytes:
    """Return a record's body without its payloads: it folds to the same states, and says nothing of what was in them.

    Numbers, flags and the names of tools stay; arguments, answers, compensators, targets, labels and reasons go. Repeatable.
    """
    try:
        values = orjson.loads(data)
    except ValueError:
        return b"{}"
    return orjson.dumps({name: value if name in _STRUCTURE else _blank(value) for name, value in values.items()})


def _blank(value: Any) -> Any:
    match value:
        case str():
            return ""
        case list():
            return value if all(isinstance(each, int) for each in value) else []
        case dict() if "status" in value:
            return {"status": value["status"]}
        case dict():
            return None if "method" in value else {}
        case _:
            return value
