"""Every refusal that Seawall can give, one row each.

A row says what a client library sees (status, retry headers), what a program branches on (code, class, retryable,
dispatched) and what a model reads (one sentence). Ingress, metrics, logs and `docs/errors.md` all read this table, so a
code is added here and nowhere else. Codes and statuses are a contract (design section 7).

Source: RFC 9457 (problem details), RFC 9110 section 15 (status codes), RFC 6585 section 4 (429).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CODES", "Code", "CodeRow", "Directive", "Dispatched", "ErrorClass"]


class Dispatched(StrEnum):
    """Did the request leave for the tool? The fact that makes a repeat safe or not."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class ErrorClass(StrEnum):
    """Who has to act: time, the caller, the run, an operator, or us."""

    CAPACITY = "capacity"
    RATE = "rate"
    TRANSPORT = "transport"
    OUTCOME = "outcome"
    REQUEST = "request"
    RUN = "run"
    POLICY = "policy"
    INTERNAL = "internal"


class Directive(StrEnum):
    """What the run should do next (seed 000, recovery policy). Here the code's usual answer; a policy may know better."""

    TRANSIENT_RETRY = "TRANSIENT_RETRY"
    FORWARD_REPAIR = "FORWARD_REPAIR"
    BACKWARD_ROLLBACK = "BACKWARD_ROLLBACK"
    OPERATOR_ESCALATE = "OPERATOR_ESCALATE"


class Code(StrEnum):
    """The stable names. The string is what goes over the wire."""

    CIRCUIT_OPEN = "ERR_CIRCUIT_OPEN"
    BULKHEAD_FULL = "ERR_BULKHEAD_FULL"
    QUEUE_DEADLINE = "ERR_QUEUE_DEADLINE"
    RESOURCE_EXHAUSTED = "ERR_RESOURCE_EXHAUSTED"
    RATE_LIMITED = "ERR_RATE_LIMITED"
    RETRY_BUDGET = "ERR_RETRY_BUDGET"
    BUDGET_EXHAUSTED = "ERR_BUDGET_EXHAUSTED"
    CONTENT_BLOCKED = "ERR_CONTENT_BLOCKED"
    UPSTREAM_CONNECT = "ERR_UPSTREAM_CONNECT"
    UPSTREAM_PROTOCOL = "ERR_UPSTREAM_PROTOCOL"
    DEADLINE = "ERR_DEADLINE"
    OUTCOME_UNKNOWN = "ERR_OUTCOME_UNKNOWN"
    IDEMPOTENCY_CONFLICT = "ERR_IDEMPOTENCY_CONFLICT"
    IDEMPOTENCY_MISMATCH = "ERR_IDEMPOTENCY_MISMATCH"
    PIVOT_ORDER = "ERR_PIVOT_ORDER"
    PIVOT_GATE = "ERR_PIVOT_GATE"
    HELD_FOR_APPROVAL = "HELD_FOR_APPROVAL"
    ALREADY_DECIDED = "ERR_ALREADY_DECIDED"
    TRAJECTORY_CLOSED = "ERR_TRAJECTORY_CLOSED"
    TRAJECTORY_FROZEN = "ERR_TRAJECTORY_FROZEN"
    QUARANTINED = "ERR_QUARANTINED"
    ARTIFACT_QUARANTINED = "ERR_ARTIFACT_QUARANTINED"
    WATCHDOG_INTERRUPT = "SEMANTIC_WATCHDOG_INTERRUPT"
    SEMANTIC_DEADLOCK = "ERR_SEMANTIC_DEADLOCK"
    POSTCONDITION = "ERR_POSTCONDITION"
    POLICY_DENIED = "ERR_POLICY_DENIED"
    HOLD = "ERR_HOLD"
    JOURNAL_UNAVAILABLE = "ERR_JOURNAL_UNAVAILABLE"
    UNKNOWN_TOOL = "ERR_UNKNOWN_TOOL"
    UNKNOWN_TRAJECTORY = "ERR_UNKNOWN_TRAJECTORY"
    UNKNOWN_APPROVAL = "ERR_UNKNOWN_APPROVAL"
    UNKNOWN_INCIDENT = "ERR_UNKNOWN_INCIDENT"
    UNAUTHENTICATED = "ERR_UNAUTHENTICATED"
    FOREIGN_TRAJECTORY = "ERR_FOREIGN_TRAJECTORY"
    INVALID_ARGUMENTS = "ERR_INVALID_ARGUMENTS"
    PAYLOAD_TOO_LARGE = "ERR_PAYLOAD_TOO_LARGE"
    INTERNAL = "ERR_INTERNAL"


@dataclass(frozen=True, slots=True)
class CodeRow:
    """One refusal.

    Attributes:
        status: HTTP status.
        error_class: who has to act.
        retryable: whether the same call may be sent again as it is, after `retry_after_ms`.
        client_may_retry: whether a client library's automatic retry is welcome; if not, `x-should-retry: false` is sent.
        dispatched: the usual answer to "did it leave?"; a refusal may state a stronger fact.
        title: short name for people.
        when: one sentence for the errors page.
        advice: what the caller should do next, for the model and the errors page.
    """

    status: int
    error_class: ErrorClass
    retryable: bool
    client_may_retry: bool
    dispatched: Dispatched
    title: str
    when: str
    advice: str

    @property
    def directive(self) -> Directive:
        """What the run should do next."""
        if self.retryable and self.error_class is not ErrorClass.POLICY:
            return Directive.TRANSIENT_RETRY
        return _DIRECTIVES[self.error_class]


_DIRECTIVES = {
    ErrorClass.CAPACITY: Directive.TRANSIENT_RETRY,
    ErrorClass.RATE: Directive.TRANSIENT_RETRY,
    ErrorClass.TRANSPORT: Directive.TRANSIENT_RETRY,
    ErrorClass.OUTCOME: Directive.OPERATOR_ESCALATE,
    ErrorClass.REQUEST: Directive.FORWARD_REPAIR,
    ErrorClass.RUN: Directive.BACKWARD_ROLLBACK,
    ErrorClass.POLICY: Directive.OPERATOR_ESCALATE,
    ErrorClass.INTERNAL: Directive.OPERATOR_ESCALATE,
}

_NO, _MAYBE, _YES = Dispatched.NO, Dispatched.MAYBE, Dispatched.YES
_C = ErrorClass

CODES: dict[Code, CodeRow] = {
    Code.CIRCUIT_OPEN: CodeRow(
        503, _C.CAPACITY, True, True, _NO, "Circuit open",
        "The tool's breaker is open, or its single canary is out.",
        "Wait for retry_after_ms, then try once; meanwhile work on something that does not need this tool."),
    Code.BULKHEAD_FULL: CodeRow(
        503, _C.CAPACITY, True, True, _NO, "Bulkhead full",
        "All slots of the domain are taken and its queue is full.",
        "Wait for retry_after_ms; send fewer calls to this domain at the same time."),
    Code.QUEUE_DEADLINE: CodeRow(
        503, _C.CAPACITY, True, True, _NO, "Queue deadline",
        "The domain's queue could not have been passed before the call's deadline.",
        "Wait for retry_after_ms; send fewer calls to this domain at the same time."),
    Code.RESOURCE_EXHAUSTED: CodeRow(
        503, _C.CAPACITY, True, True, _NO, "Gateway busy",
        "The gateway itself sheds load, or is shutting down.",
        "Wait for retry_after_ms and send the call again."),
    Code.RATE_LIMITED: CodeRow(
        429, _C.RATE, True, True, _NO, "Rate limited",
        "The domain's own rate is used up.",
        "Wait for retry_after_ms and send the call again."),
    Code.RETRY_BUDGET: CodeRow(
        429, _C.RATE, True, False, _NO, "Retry budget spent",
        "Repeats of failing calls, the agent's own included, have used up the domain's retry budget.",
        "Stop repeating this call; the tool is failing. Wait for retry_after_ms or go another way."),
    Code.BUDGET_EXHAUSTED: CodeRow(
        429, _C.RUN, False, False, _NO, "Run budget exhausted",
        "The run's own budget is spent.",
        "Finish or abort the run; do not send this call again."),
    Code.CONTENT_BLOCKED: CodeRow(
        422, _C.REQUEST, False, False, _NO, "Content blocked",
        "The tool has blocked the content of these very arguments before, or of every rewording that the step may have.",
        "Do not send the same content again. Reword it if detail says that attempts are left; else leave this step out."),
    Code.UPSTREAM_CONNECT: CodeRow(
        502, _C.TRANSPORT, True, True, _NO, "Tool unreachable",
        "No connection to the tool could be made, so nothing was sent.",
        "Nothing happened at the tool. Try again later."),
    Code.UPSTREAM_PROTOCOL: CodeRow(
        502, _C.TRANSPORT, True, True, _YES, "Broken answer",
        "The tool's answer to a read was cut off or is not HTTP.",
        "The call had no effect. It may be sent again."),
    Code.DEADLINE: CodeRow(
        504, _C.TRANSPORT, True, True, _NO, "Out of time",
        "Time ran out before anything was sent, or while waiting for the answer to a read.",
        "The call had no effect. It may be sent again, with more time if the tool is slow."),
    Code.OUTCOME_UNKNOWN: CodeRow(
        409, _C.OUTCOME, False, False, _MAYBE, "Outcome unknown",
        "The call was sent and its effect is unknown.",
        "Do not repeat it under another name: it may have happened. Read the tool's state to find out, or abort the run."),
    Code.IDEMPOTENCY_CONFLICT: CodeRow(
        409, _C.REQUEST, True, False, _NO, "Still in flight",
        "An identical call is still in flight and did not end within this call's time.",
        "Wait for retry_after_ms, then send the identical call again to collect its result."),
    Code.IDEMPOTENCY_MISMATCH: CodeRow(
        422, _C.REQUEST, False, False, _NO, "Key reused",
        "The idempotency key was used before for a call with other content.",
        "Use a new idempotency key for a new call, or repeat the first call unchanged."),
    Code.PIVOT_ORDER: CodeRow(
        409, _C.RUN, False, False, _NO, "Not legal past the pivot",
        "A second irreversible step, an undoable step after it, an abort past it, or a step against the run's plan.",
        "Open a new run for this step; past its pivot a run can only read, finish idempotent steps, and commit."),
    Code.PIVOT_GATE: CodeRow(
        403, _C.RUN, False, False, _NO, "Pivot gate closed",
        "Something before the step is not settled or cannot be undone, a gate said no, or an approval was denied.",
        "Resolve what detail names, then send the step again; or abort the run."),
    Code.HELD_FOR_APPROVAL: CodeRow(
        202, _C.POLICY, True, False, _NO, "Held for approval",
        "The step waits for a person's decision.",
        "Poll the Location; once it is granted, send the identical call again, and only then it is sent to the tool."),
    Code.ALREADY_DECIDED: CodeRow(
        409, _C.REQUEST, False, False, _NO, "Already decided",
        "What was to be decided is decided, used up, out of time, or was never open.",
        "Look at its present state, which detail names; decide nothing twice."),
    Code.TRAJECTORY_CLOSED: CodeRow(
        409, _C.RUN, False, False, _NO, "Run closed",
        "The run is committed, aborted, or being undone.",
        "Open a new run; this one takes no more steps."),
    Code.TRAJECTORY_FROZEN: CodeRow(
        423, _C.RUN, False, False, _NO, "Run frozen",
        "The run is frozen and waits for an operator.",
        "Stop this run; an operator has to decide. Nothing more will be sent for it."),
    Code.QUARANTINED: CodeRow(
        423, _C.POLICY, False, False, _NO, "Quarantined",
        "The agent or run is quarantined.",
        "Stop; an operator has to lift the quarantine."),
    Code.ARTIFACT_QUARANTINED: CodeRow(
        423, _C.POLICY, False, False, _NO, "Artifact quarantined",
        "The call touches an artifact made by a quarantined run.",
        "Do not use this artifact until it is cleared."),
    Code.WATCHDOG_INTERRUPT: CodeRow(
        409, _C.RUN, False, False, _NO, "Loop interrupted",
        "The run repeats itself without progress.",
        "Do not repeat this action; form another hypothesis."),
    Code.SEMANTIC_DEADLOCK: CodeRow(
        423, _C.RUN, False, False, _NO, "Semantic deadlock",
        "The run was stopped for good after repeated loops.",
        "Stop this run; it will not be continued."),
    Code.POSTCONDITION: CodeRow(
        502, _C.OUTCOME, False, False, _YES, "Postcondition does not hold",
        "The tool answered, but the operation's declared postcondition does not hold.",
        "The step counts as done with a bad result and is undone on abort. Do not repeat it as it is."),
    Code.POLICY_DENIED: CodeRow(
        403, _C.POLICY, False, False, _NO, "Denied by policy",
        "A rule forbids the call.",
        "Do not send this call again; choose an allowed way."),
    Code.HOLD: CodeRow(
        403, _C.POLICY, False, False, _NO, "Held for proof",
        "A claim came without verifiable proof.",
        "Send the claim again with valid proof."),
    Code.JOURNAL_UNAVAILABLE: CodeRow(
        503, _C.INTERNAL, True, True, _NO, "Journal unavailable",
        "The intent cannot be written, so nothing may be sent.",
        "Nothing happened at the tool. Try again later; reads may still work."),
    Code.UNKNOWN_TOOL: CodeRow(
        404, _C.REQUEST, False, False, _NO, "Unknown tool",
        "No tool of that name is in the manifest, or a strict tool does not declare the operation.",
        "Use one of the tools that detail names."),
    Code.UNKNOWN_TRAJECTORY: CodeRow(
        404, _C.REQUEST, False, False, _NO, "Unknown run",
        "No run of that name was ever opened here.",
        "Use the name that the Seawall-Trajectory header of an answer gave, or open a run."),
    Code.UNKNOWN_APPROVAL: CodeRow(
        404, _C.REQUEST, False, False, _NO, "Unknown approval",
        "No approval of that name was ever asked for here.",
        "Use the Location that the held call's answer gave."),
    Code.UNKNOWN_INCIDENT: CodeRow(
        404, _C.REQUEST, False, False, _NO, "Unknown incident",
        "No incident of that name was ever opened here.",
        "List the open ones with `seawall incidents ls`."),
    Code.UNAUTHENTICATED: CodeRow(
        401, _C.POLICY, False, False, _NO, "Unauthenticated",
        "No token was sent, or one that is unknown, expired, revoked, or for something else; 407 towards a proxy client.",
        "Do not repeat the call. Ask the operator for a token (seawall token issue) and send it as Seawall-Agent-Token."),
    Code.FOREIGN_TRAJECTORY: CodeRow(
        403, _C.POLICY, False, False, _NO, "Another agent's run",
        "The run that the call names belongs to another agent.",
        "Use a run of your own: choose another name for it."),
    Code.INVALID_ARGUMENTS: CodeRow(
        422, _C.REQUEST, False, False, _NO, "Invalid request",
        "The request is malformed or does not fit the operation.",
        "Correct what detail names and send it again."),
    Code.PAYLOAD_TOO_LARGE: CodeRow(
        413, _C.REQUEST, False, False, _NO, "Payload too large",
        "The body is larger than the named limit.",
        "Send a smaller body, or ask the operator to raise the named setting."),
    Code.INTERNAL: CodeRow(
        500, _C.INTERNAL, False, False, _MAYBE, "Internal error",
        "A bug in the gateway.",
        "Do not repeat a call that changes something before its state was read. Report the step to the operator."),
}  # fmt: skip
