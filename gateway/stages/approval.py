"""The gate in front of what cannot be undone: checks over the run, verifiers, leases, and people.

What each of them said is recorded with a snapshot of the run, and the intent of the step is admitted on exactly that
(`core/gate.py`). A call that waits for people is answered 202 with a place to ask, or waits itself where the agent said so
(`Prefer: wait`); it holds no slot, no rate and no breaker while it does. Nothing that fails here lets anything through.
"""

from __future__ import annotations

import hashlib

from gateway.clock import Clock, wait_until
from gateway.core.approval import Approval, ApprovalState, state_at
from gateway.core.call import Call, Handler, Lane
from gateway.core.codes import Code
from gateway.core.coding import decoded
from gateway.core.environment import EVALUATED_LIMIT, request_env, response_env
from gateway.core.expression import Environment, ExpressionError
from gateway.core.gate import closed_gate, lease_problems, run_env, snapshot
from gateway.core.manifest import ApprovalPolicy, Tier
from gateway.core.message import Body, body_bytes, first_header
from gateway.core.outcome import Outcome, Refusal, Rejected
from gateway.core.plan import against_plan
from gateway.core.records import ApprovalRequested, GatePassed, StepCommitted, decode
from gateway.core.saga import admits
from gateway.core.tool import Gate, Operation, ToolSpec
from gateway.core.trajectory import Trajectory
from gateway.journal import Conflict, JournalError, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.probes.verifier import HttpVerifier
from gateway.telemetry import Telemetry

__all__ = ["ApprovalStage", "is_gated"]

SHOWN_BYTES = 16 * 1024
"""A body up to this size is shown to those who decide; of a larger one they see its size and SHA-256."""

POLL_MS = 2000


class ApprovalStage:
    """Lets a call pass once all its gates do."""

    def __init__(self, trajectories: Trajectories, verifier: HttpVerifier, clock: Clock, telemetry: Telemetry) -> None:
        self._trajectories = trajectories
        self._verifier = verifier
        self._clock = clock
        self._telemetry = telemetry

    async def __call__(self, call: Call, proceed: Handler) -> Outcome:
        """Ask every gate; go on, refuse, or hold."""
        if call.lane is not Lane.FORWARD or call.step is not None or not is_gated(call.tool, call.operation):
            return await proceed(call)
        try:
            refusal = await self._asked(call)
        except (JournalError, Conflict) as error:
            return Rejected(_unavailable(call, error))
        return Rejected(refusal) if refusal is not None else await proceed(call)

    async def _asked(self, call: Call) -> Refusal | None:
        run = await self._run(call)
        if (refusal := self._hopeless(run.state, call)) is not None:
            return refusal
        seen = snapshot(run.state)
        findings = await self._gates(run, call)
        if isinstance(findings, Refusal):
            return findings
        approval: Approval | None = None
        if call.operation.approval is ApprovalPolicy.REQUIRED:
            known = self._latest(run.state, call)
            had_to_wait = known is None or state_at(known, self._clock.at()) is not ApprovalState.GRANTED
            decided = await self._decided(run, call)
            if isinstance(decided, Refusal):
                return decided
            approval = decided
            if had_to_wait:
                # People take their time: it is not the call's, and what was true before may not be any more.
                call.deadline = self._clock.now() + call.operation.timeouts.total
                run = await self._run(call)
                if (refusal := self._hopeless(run.state, call)) is not None:
                    return refusal
                seen = snapshot(run.state)
                findings = await self._gates(run, call)
                if isinstance(findings, Refusal):
                    return findings
        self._trajectories.record(
            run,
            [
                GatePassed(
                    action=call.action.hex(),
                    operation=f"{call.tool.name}.{call.operation.name}",
                    snapshot=seen,
                    approval=None if approval is None else approval.id,
                    gates=[[name, said] for name, said in findings],
                )
            ],
        )
        return None

    def _hopeless(self, state: Trajectory, call: Call) -> Refusal | None:
        """Return why no gate and nobody has to be asked, because the step would not be legal all the same."""
        operation = call.operation
        refusal = admits(state, operation) or against_plan(state, call.tool.name, operation)
        if refusal is None and operation.tier is Tier.PIVOT and not operation.is_staged:
            problems = lease_problems(state, self._clock.at())
            refusal = closed_gate(operation.name, problems) if problems else None
        return refusal

    async def _run(self, call: Call) -> Run:
        run = self._trajectories.get(call.trajectory)
        if run is None or run.is_lost:
            run = await self._trajectories.find(call.trajectory)
        if run is None:
            raise JournalUnavailable(f"run {call.trajectory} has to be read again")
        return run

    # --- machines

    async def _gates(self, run: Run, call: Call) -> list[tuple[str, str]] | Refusal:
        """Return what each gate found, or the refusal that names every one that is closed."""
        gates = call.operation.gates
        needs_env = any(gate.margin_s is None for gate in gates)
        env = await self._environment(run, call) if needs_env else {}
        findings = [(gate.name, *await self._gate(gate, run, call, env)) for gate in gates]
        closed = [f"gate {name}: {said}" for name, is_open, said in findings if not is_open]
        if closed:
            return closed_gate(f"{call.tool.name}.{call.operation.name}", closed)
        return [(name, said) for name, _, said in findings]

    async def _gate(self, gate: Gate, run: Run, call: Call, env: Environment) -> tuple[bool, str]:
        if gate.margin_s is not None:
            problems = lease_problems(run.state, self._clock.at(), gate.margin_s)
            return not problems, "; ".join(problems) or "all leases last"
        if gate.check is not None:
            try:
                holds = gate.check(env) is True
            except ExpressionError as error:
                return False, f"it cannot be evaluated: {error}"
            return holds, gate.check.source if holds else f"it does not hold: {gate.check.source}"
        if gate.verify is not None:
            why = await self._verifier.ask(
                gate.verify, env, agent=call.agent, run=call.trajectory, deadline=call.deadline
            )
            return why is None, why or f"{gate.verify.tool} answered as expected"
        return False, "it says nothing that could be asked"

    async def _environment(self, run: Run, call: Call) -> dict[str, object]:
        request = call.request
        asked = b"" if request.body is None else await body_bytes(request.body, EVALUATED_LIMIT) or b""
        target = request.target.decode("latin-1")
        return {
            "request": request_env(request.method, target, request.headers, asked, call.params),
            "params": dict(call.params),
            "trajectory": run_env(run.state, self._clock.at(), await self._replies(run)),
        }

    async def _replies(self, run: Run) -> dict[int, object]:
        """Return what the tools answered, by step, from the journal: evidence, not memory."""
        await self._trajectories.recorded(run, [])
        replies: dict[int, object] = {}
        for entry in await self._trajectories.journal.read(run.state.id):
            if entry.kind == StepCommitted.__name__:
                record = decode(entry.kind, entry.data)
                assert isinstance(record, StepCommitted)
                data = record.reply.inline_body()
                if data is not None:
                    headers = record.reply.raw_headers()
                    data = decoded(headers, data, EVALUATED_LIMIT)
                    replies[record.step] = response_env(record.reply.status, headers, data).whole()
        return replies

    # --- people

    async def _decided(self, run: Run, call: Call) -> Approval | Refusal:
        approval = self._latest(run.state, call)
        if approval is None:
            approval = await self._request(run, call)
        until = self._clock.now() + call.wait_s
        while (stands := state_at(approval, self._clock.at())) is ApprovalState.PENDING:
            left_ms = approval.asked.expires_at - self._clock.at()
            when = min(until, self._clock.now() + left_ms / 1000)
            if self._clock.now() >= until:
                return _held(call, approval)
            await wait_until(self._clock, run.changed(), when)
            run = await self._run(call)
            approval = run.state.approvals.get(approval.id, approval)
        return approval if stands is ApprovalState.GRANTED else _denied(call, approval, stands)

    def _latest(self, state: Trajectory, call: Call) -> Approval | None:
        """Return the last approval that was asked for exactly this, if it was not used up since."""
        policy, action = call.operation.approved_by, call.action.hex()
        for approval in reversed(state.approvals.values()):
            asked = approval.asked
            is_same = (asked.action, asked.fingerprint, asked.origin, asked.required, asked.approvers) == (
                action, call.fingerprint.hex(), _origin(call), policy.required, list(policy.approvers))  # fmt: skip
            if is_same:
                return None if approval.state is ApprovalState.USED else approval
        return None

    async def _request(self, run: Run, call: Call) -> Approval:
        policy, request, at = call.operation.approved_by, call.request, self._clock.at()
        digest, size, shown = await _described(request.body)
        # From here to the record nothing may come in between, so that the name is that of the record's own position.
        position = run.state.version + (1 if run.state.version else 2)
        asked = ApprovalRequested(
            approval=f"{run.state.id}~{position}",
            agent=call.agent,
            tool=call.tool.name,
            operation=call.operation.name,
            tier=call.operation.tier.value,
            action=call.action.hex(),
            fingerprint=call.fingerprint.hex(),
            origin=_origin(call),
            method=request.method,
            target=request.target.decode("latin-1"),
            required=policy.required,
            expires_at=at + round(policy.timeout * 1000),
            valid_ms=round(policy.valid * 1000),
            content_type=(first_header(request.headers, b"content-type") or b"").decode("latin-1"),
            body=shown,
            body_bytes=size,
            body_digest=digest,
            approvers=list(policy.approvers),
        )
        refusal = await self._trajectories.recorded(run, [asked])
        assert refusal is None
        return run.state.approvals[asked.approval]


def is_gated(tool: ToolSpec, operation: Operation) -> bool:
    """Whether something has to be asked before calls of an operation may leave."""
    return bool(operation.gates) or operation.approval is ApprovalPolicy.REQUIRED


def _origin(call: Call) -> str:
    return call.tool.upstream.origin + call.tool.upstream.prefix


async def _described(body: Body | None) -> tuple[str | None, int, str | None]:
    """Return a body's SHA-256, its size, and its text if that is short enough to be read."""
    if body is None:
        return None, 0, None
    digest, size, start = hashlib.sha256(), 0, b""
    async for chunk in body.chunks():
        digest.update(chunk)
        size += len(chunk)
        if len(start) <= SHOWN_BYTES:
            start += chunk
    try:
        shown = start.decode() if size <= SHOWN_BYTES else None
    except UnicodeDecodeError:
        shown = None
    return digest.hexdigest(), size, shown


def _held(call: Call, approval: Approval) -> Refusal:
    asked = approval.asked
    location = f"/seawall/v1/approvals/{approval.id}"
    who = ", ".join(asked.approvers) or "a person"
    return Refusal(
        code=Code.HELD_FOR_APPROVAL,
        dependency=call.tool.name,
        detail=f"{call.operation.name} waits for {asked.required} of {who} to approve exactly this call; nothing was sent. "
        f"Ask GET {location}, and once it is granted send the identical call again.",
        retry_after_ms=POLL_MS,
        location=location,
        extra={
            "approval": approval.id,
            "poll": location,
            "expires_at": asked.expires_at,
            "approved_by": approval.approved_by,
        },
    )


def _denied(call: Call, approval: Approval, stands: ApprovalState) -> Refusal:
    reasons = [f"{name}: {cast.reason}" for name, cast in approval.votes.items() if cast.verdict == "reject"]
    how = f"was rejected by {'; '.join(reasons)}" if reasons else f"is {stands.value}, which is a no"
    return Refusal(
        code=Code.PIVOT_GATE,
        dependency=call.tool.name,
        detail=f"{call.operation.name} was not sent: its approval {approval.id} {how}. Do not send this call again in this "
        "run; change what was asked for, or abort the run.",
        extra={"approval": approval.id, "state": stands.value},
    )


def _unavailable(call: Call, error: Exception) -> Refusal:
    return Refusal(
        code=Code.JOURNAL_UNAVAILABLE,
        dependency=call.tool.name,
        detail=f"The gates of this call could not be asked ({tellable(error)}), so nothing was sent to {call.tool.name}. "
        "Try again later.",
        retry_after_ms=1000,
    )
