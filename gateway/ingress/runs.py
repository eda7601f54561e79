"""The runs API: open, show, plan, commit, abort, and ask what became of an approval (design section 7).

Served on the data plane under `/seawall/v1/trajectories` for agents, and by the control plane for operators. Every verb
may be repeated: opening an open run, committing a committed one, aborting an aborted one change nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import orjson

from gateway.clock import Clock, dated_token, wait_until
from gateway.core.approval import ApprovalState, approval_view, state_at
from gateway.core.budget import caps_from, usage_from
from gateway.core.codes import Code
from gateway.core.message import BytesBody, Headers
from gateway.core.outcome import Refusal
from gateway.core.plan import Arranged, Proposed, adopt, arrange
from gateway.core.records import UsageReported
from gateway.core.saga import Abort, Commit, Open, Rewind, Savepoint
from gateway.core.statehash import state_hash
from gateway.core.tool import Catalog
from gateway.core.trajectory import Phase
from gateway.core.views import trajectory_view
from gateway.egress.spool import Spool, TooLarge
from gateway.ingress.caller import Caller, caller_of
from gateway.ingress.http import IncomingRequest, OutgoingResponse, UploadBroken
from gateway.ingress.proxy import preferred_wait_s, refuse
from gateway.ingress.shown import Shown
from gateway.ingress.tasks import Tasks
from gateway.journal import Conflict, JournalUnavailable, tellable
from gateway.journal.trajectories import Run, Trajectories
from gateway.stages.budget import meter_of, spend
from gateway.stages.watchdog import WatchdogStage

__all__ = ["Runs", "Shown"]

ABORT_WAIT_S = 20.0
"""How long an abort or commit call waits for the unwinding or finishing before it answers 202; that goes on."""

_PLAN_STEPS = 1000

_BODY_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_SHAPE = "1 to 128 letters, digits and . _ : -, the first a letter or digit"
_ABANDON = ("escalate", "unwind", "commit")
_STUCK = ("stop", "continue")
_OPEN_KEYS = {"id", "on_abandon", "on_stuck", "ttl", "labels", "budget"}


ClaimVerb = Callable[[Run, str, dict[str, object]], Awaitable[Shown | Refusal]]
"""Signs or judges a claim for a run of an agent (`ingress/claims.py`)."""


class Runs:
    """The verbs, free of any framework. A run of another agent than a proven `caller` is as good as unknown; without a
    caller (an operator asks) every run is shown."""

    def __init__(
        self,
        trajectories: Trajectories,
        spool: Spool,
        clock: Clock,
        catalog: Callable[[], Catalog] = lambda: Catalog({}, {}),
        watchdog: WatchdogStage | None = None,
        tasks: Tasks | None = None,
    ) -> None:
        self._tasks = tasks
        self.hand_off: ClaimVerb | None = None
        self.receive: ClaimVerb | None = None
        self._trajectories = trajectories
        self._watchdog = watchdog
        self._catalog = catalog
        self._spool = spool
        self._clock = clock

    async def __call__(self, request: IncomingRequest) -> OutgoingResponse:
        """Answer one data-plane request below `/seawall/`."""
        path = request.target.partition(b"?")[0].decode("latin-1")
        parts = path.strip("/").split("/")
        is_approval = parts[:3] == ["seawall", "v1", "approvals"] and len(parts) == 4
        is_task = self._tasks is not None and parts[:2] == ["seawall", "v1"] and parts[2:3] in (["tasks"], ["schemas"])
        if not (is_approval or is_task) and (parts[:3] != ["seawall", "v1", "trajectories"] or len(parts) > 5):
            where = "The runs API is at /seawall/v1/trajectories, tasks are at /seawall/v1/tasks."
            return _plain(404, {"detail": f"Nothing is served here. {where}"})
        try:
            body = await request.read_all(self._spool, max_bytes=_BODY_MAX, memory_limit=_BODY_MAX)
            arguments = _arguments(body.data if isinstance(body, BytesBody) else b"")
            if isinstance(arguments, Refusal):
                return refuse(arguments)
            caller = caller_of(request)
            if isinstance(caller, Refusal):
                return refuse(caller)
            if is_approval:
                answer = await self.approval(request.method, parts[3], preferred_wait_s(request.headers), caller)
            elif is_task and self._tasks is not None:
                answer = await self._tasks.route(request.method, parts[2:], arguments, caller)
            else:
                answer = await self._route(request.method, parts[3:], arguments, caller)
        except TooLarge:
            answer = Refusal(code=Code.PAYLOAD_TOO_LARGE, detail=f"The body is larger than {_BODY_MAX} bytes.")
        except UploadBroken as error:
            answer = Refusal(code=Code.INVALID_ARGUMENTS, detail=f"Nothing was done: {error}.")
        except (JournalUnavailable, Conflict) as error:
            answer = Refusal(
                code=Code.JOURNAL_UNAVAILABLE,
                detail=f"The journal cannot be used ({tellable(error)}). Try again later.",
                retry_after_ms=1000,
            )
        if isinstance(answer, Refusal):
            return refuse(answer)
        return _plain(answer.status, answer.view, answer.retry_after_s)

    async def _route(
        self, method: str, rest: list[str], arguments: dict[str, object], caller: Caller
    ) -> Shown | Refusal:
        match (method, rest):
            case ("POST", []):
                return await self.open(arguments, caller)
            case ("GET", [name]):
                return await self.show(name, caller)
            case ("POST", [name, "plan"]):
                return await self.plan(name, arguments, caller)
            case ("POST", [name, "commit"]):
                return await self.commit(name, caller)
            case ("POST", [name, "abort"]):
                return await self.abort(name, str(arguments.get("reason") or "aborted by the agent"), caller)
            case ("POST", [name, "savepoints"]):
                return await self.savepoint(name, arguments, caller)
            case ("POST", [name, "rewind"]):
                return await self.rewind(name, arguments, caller)
            case ("POST", [name, "state"]):
                return await self.state(name, arguments, caller)
            case ("POST", [name, "usage"]):
                return await self.usage(name, arguments, caller)
            case ("POST", [name, "handoffs"]):
                return await self._claimed(name, caller, arguments, is_inbound=False)
            case ("POST", [name, "claims"]):
                return await self._claimed(name, caller, arguments, is_inbound=True)
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"{method} is not served there. Use POST …/trajectories, GET …/trajectories/ID, "
            "POST …/trajectories/ID/plan, …/commit, …/abort, …/savepoints, …/rewind, …/state, …/usage, …/handoffs "
            "or …/claims.",
        )

    async def _claimed(
        self, name: str, caller: Caller, arguments: dict[str, object], *, is_inbound: bool
    ) -> Shown | Refusal:
        """Sign what a run hands off, or judge what it was told."""
        if not _NAME.fullmatch(name):
            return _unknown(name)
        run = await self._trajectories.named(name, Open(agent=caller.name))
        if isinstance(run, Refusal):
            return run
        if _is_foreign(run, caller):
            return _foreign(name)
        verb = self.receive if is_inbound else self.hand_off
        if verb is None:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail="This gateway knows no claims.")
        try:
            return await verb(run, caller.name, arguments)
        finally:
            self._trajectories.forget(run)

    async def open(self, arguments: dict[str, object], caller: Caller) -> Shown | Refusal:
        """Open a run: 201, or 200 if it is open already."""
        opening = _opening(arguments, caller.name)
        if isinstance(opening, Refusal):
            return opening
        name, command = opening
        run = await self._trajectories.named(name or f"run-{dated_token(self._clock)}", command)
        if isinstance(run, Refusal):
            return run
        if _is_foreign(run, caller):
            return _foreign(run.state.id)
        if run.state.is_over:
            return Refusal(
                code=Code.TRAJECTORY_CLOSED,
                detail=f"Run {name} is over ({run.state.phase}). Choose another id.",
                extra={"state": run.state.phase.value},
            )
        is_new = run.state.version == 0
        if is_new:
            await self._trajectories.decided(run, command)
        return Shown(201 if is_new else 200, trajectory_view(run.state))

    async def show(self, name: str, caller: Caller | None = None) -> Shown | Refusal:
        """Show a run, open or over."""
        self._trajectories.flush_reads()
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        run = await self._trajectories.durable(run)
        view = trajectory_view(run.state)
        if run.state.budget or run.state.usage:
            view["budget"] = meter_of(run).view(self._at(run))
        if run.watch is not None:
            view["watchdog"] = {**_mapping(view.get("watchdog")), **run.watch.view()}
        return Shown(200, view)

    async def state(self, name: str, arguments: dict[str, object], caller: Caller | None = None) -> Shown | Refusal:
        """Take the state of the world as the agent sees it after a change, or its hash, and figures of progress."""
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        if self._watchdog is None or run.state.is_over:
            return Refusal(
                code=Code.TRAJECTORY_CLOSED,
                detail=f"Run {name} is over ({run.state.phase}); its state is of no use any more.",
                extra={"state": run.state.phase.value},
            )
        said = _reported(arguments)
        if isinstance(said, Refusal):
            return said
        state, metrics = said
        waiting = []
        if state is not None:
            waiting.append(self._watchdog.reported(run, state))
        if metrics:
            waiting.append(self._watchdog.measured(run, metrics))
        for future in waiting:
            await asyncio.shield(future)
        return Shown(200, {
            "trajectory": name, "state": None if state is None else f"{state:016x}", "metrics": metrics,
            "watchdog": self._watchdog.dog(run).view()})  # fmt: skip

    async def usage(self, name: str, arguments: dict[str, object], caller: Caller | None = None) -> Shown | Refusal:
        """Take what the run has spent beyond what the gateway sees. One that carries the name of an earlier report is that
        report, and counts once."""
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        report = arguments.get("report")
        values = usage_from({key: value for key, value in arguments.items() if key != "report"})
        if report is not None and not (isinstance(report, str) and _NAME.fullmatch(report)):
            values = [*(values if isinstance(values, list) else []), "report must be " + _SHAPE]
        if values == {}:
            values = ["nothing is reported"]
        if isinstance(values, list):
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail=f"Nothing was counted: {'; '.join(values)}.",
                extra={"problems": values},
            )
        if run.state.is_over:
            return Refusal(
                code=Code.TRAJECTORY_CLOSED,
                detail=f"Run {name} is over ({run.state.phase}); what it spent is settled.",
                extra={"state": run.state.phase.value},
            )
        is_known = report is not None and report in run.state.reports
        if not is_known:
            spend(run, values)
            record = UsageReported(values=values, report=report if isinstance(report, str) else None)
            await asyncio.shield(self._trajectories.record(run, [record]))
        view = meter_of(run).view(self._at(run))
        return Shown(200, {"trajectory": name, "is_new": not is_known, "budget": view})

    def _at(self, run: Run) -> int:
        """The time that a run's seconds are counted to."""
        return run.state.changed_at if run.state.is_over else self._clock.at()

    async def approval(
        self, method: str, identity: str, wait_s: float, caller: Caller | None = None
    ) -> Shown | Refusal:
        """Tell an agent how its held call stands: 202 while it is undecided (or longer, with `Prefer: wait`), else 200."""
        name = identity.partition("~")[0]
        run = await self._trajectories.find(name) if method == "GET" else None
        if run is None or _is_foreign(run, caller) or identity not in run.state.approvals:
            return Refusal(
                code=Code.UNKNOWN_APPROVAL,
                detail=f"No approval is called {identity[:200]!r}. GET the Location that the held call's answer gave.",
            )
        until = self._clock.now() + wait_s
        while state_at(run.state.approvals[identity], self._clock.at()) is ApprovalState.PENDING:
            left_s = (run.state.approvals[identity].asked.expires_at - self._clock.at()) / 1000
            if self._clock.now() >= until:
                break
            await wait_until(self._clock, run.changed(), min(until, self._clock.now() + left_s))
            run = await self._trajectories.find(name) or run
        approval = run.state.approvals[identity]
        stands = state_at(approval, self._clock.at())
        view = approval_view(approval, name, self._clock.at()) | {"next": _NEXT[stands]}
        is_pending = stands is ApprovalState.PENDING
        return Shown(202 if is_pending else 200, view, 2 if is_pending else None)

    async def plan(self, name: str, arguments: dict[str, object], caller: Caller) -> Shown | Refusal:
        """Put a proposed graph of steps in order, or say why it has none; with `enforce` the run has to follow it."""
        enforce = arguments.get("enforce", False)
        proposed = _proposed(arguments, self._catalog())
        if isinstance(proposed, Refusal) or not isinstance(enforce, bool):
            return proposed if isinstance(proposed, Refusal) else _bad_plan(["enforce must be true or false"])
        order = arrange(proposed)
        if order and isinstance(order[0], str):
            problems = [str(problem) for problem in order]
            return Refusal(
                code=Code.PIVOT_ORDER,
                detail=f"There is no safe order: {'; '.join(problems)}.",
                extra={"problems": problems},
            )
        arranged = [one for one in order if isinstance(one, Arranged)]
        if enforce:
            run = (
                await self._trajectories.named(name, Open(agent=caller.name))
                if _NAME.fullmatch(name)
                else _unknown(name)
            )
            if isinstance(run, Refusal):
                return run
            if _is_foreign(run, caller):
                return _foreign(name)
            refusal = await self._trajectories.recorded(run, adopt(run.state, arranged))
            if refusal is not None:
                return refusal
        return Shown(200, _plan_view(name, arranged, is_enforced=enforce))

    async def commit(self, name: str, caller: Caller | None = None, *, wait_s: float = ABORT_WAIT_S) -> Shown | Refusal:
        """Close a run as done: 200, or 202 while what was staged is still being sent."""
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        refusal = await self._trajectories.decided(run, Commit())
        if refusal is not None:
            return refusal
        deadline = self._clock.now() + wait_s
        while run.state.phase is Phase.FINALIZING and self._clock.now() < deadline:
            await wait_until(self._clock, run.changed(), deadline)
            run = await self._trajectories.find(name) or run
        if run.state.phase is Phase.FROZEN:
            return await self._trajectories.decided(run, Commit()) or Shown(200, trajectory_view(run.state))
        return Shown(202 if run.state.phase is Phase.FINALIZING else 200, trajectory_view(run.state))

    async def abort(
        self,
        name: str,
        reason: str,
        caller: Caller | None = None,
        *,
        by: str = "agent",
        wait_s: float = ABORT_WAIT_S,
    ) -> Shown | Refusal:
        """Undo a run: 200 once it is undone, 202 while that goes on."""
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        refusal = await self._trajectories.decided(run, Abort(reason=reason[:1000], by=by))
        if refusal is not None:
            return refusal
        run = await self._trajectories.durable(await self._undone(run, wait_s))
        if run.state.phase is Phase.FROZEN:
            return await self._trajectories.decided(run, Abort(reason=reason)) or Shown(409, trajectory_view(run.state))
        status = 202 if run.state.phase is Phase.COMPENSATING else 200
        return Shown(status, trajectory_view(run.state))

    async def savepoint(
        self, name: str, arguments: dict[str, object], caller: Caller | None = None, *, by: str = "agent"
    ) -> Shown | Refusal:
        """Note where a run stands, to rewind to: 201. The same name again moves it."""
        wanted = arguments.get("name")
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        if wanted is None:
            wanted = f"savepoint-{len(run.state.savepoints) + 1}"
        if not (isinstance(wanted, str) and _NAME.fullmatch(wanted)):
            return Refusal(code=Code.INVALID_ARGUMENTS, detail="The savepoint was not taken: name must be " + _SHAPE)
        refusal = await self._trajectories.decided(run, Savepoint(name=wanted, by=by))
        return refusal or Shown(201, {**trajectory_view(run.state), "savepoint": wanted})

    async def rewind(
        self,
        name: str,
        arguments: dict[str, object],
        caller: Caller | None = None,
        *,
        by: str = "agent",
        wait_s: float = ABORT_WAIT_S,
    ) -> Shown | Refusal:
        """Undo what came after a savepoint: 200 once the run can go on from there, 202 while it is being undone."""
        to, reason = arguments.get("to"), arguments.get("reason")
        run = await self._trajectories.find(name)
        if run is None or _is_foreign(run, caller):
            return _unknown(name)
        if not isinstance(to, str):
            return Refusal(code=Code.INVALID_ARGUMENTS, detail="Nothing was undone: `to` must name a savepoint.")
        why = str(reason or f"rewound to {to}")[:1000]
        refusal = await self._trajectories.decided(run, Rewind(savepoint=to, reason=why, by=by))
        if refusal is not None:
            return refusal
        run = await self._undone(run, wait_s)
        if run.state.phase is Phase.FROZEN:
            return await self._trajectories.decided(run, Abort(reason=why)) or Shown(409, trajectory_view(run.state))
        return Shown(202 if run.state.phase is Phase.COMPENSATING else 200, trajectory_view(run.state))

    async def _undone(self, run: Run, wait_s: float) -> Run:
        """Wait until a run is no longer being undone, but not for ever. Returns it as it stands then."""
        deadline = self._clock.now() + wait_s
        while run.state.phase is Phase.COMPENSATING and (left := deadline - self._clock.now()) > 0:
            await asyncio.wait((run.changed(),), timeout=left)
            run = await self._trajectories.find(run.state.id) or run
        return run


_NEXT = {
    ApprovalState.PENDING: "Wait; ask again after the time that Retry-After gives.",
    ApprovalState.GRANTED: "Send the identical call again before use_until; it will then be sent to the tool.",
    ApprovalState.REJECTED: "Do not send the call again in this run; change what was asked for, or abort the run.",
    ApprovalState.EXPIRED: "Time ran out, which is a no. Do not send the call again in this run; abort it.",
    ApprovalState.USED: "The call was sent. Send it again, unchanged, to collect its answer.",
    ApprovalState.VOID: "The run is over, and the call was never sent.",
}


def _proposed(arguments: dict[str, object], catalog: Catalog) -> list[Proposed] | Refusal:
    """Read the steps of a plan: `{id, tool, operation, after: [id]}`; `operation` may also be `tool.operation`."""
    steps = arguments.get("steps")
    problems = [f"{key!r} is not known" for key in sorted(arguments.keys() - {"steps", "enforce"})]
    if not isinstance(steps, list) or len(steps) > _PLAN_STEPS:
        return _bad_plan([*problems, f"steps must be a list of at most {_PLAN_STEPS}"])
    proposed = []
    for number, step in enumerate(steps, start=1):
        found = _proposed_step(number, step, catalog)
        if isinstance(found, str):
            problems.append(found)
        else:
            proposed.append(found)
    return _bad_plan(problems) if problems else proposed


def _proposed_step(number: int, step: object, catalog: Catalog) -> Proposed | str:
    if not isinstance(step, dict) or step.keys() - {"id", "tool", "operation", "after"}:
        return f"step {number} must be an object of id, tool, operation and after"
    name, tool, operation, after = step.get("id"), step.get("tool"), step.get("operation"), step.get("after", [])
    if tool is None and isinstance(operation, str):
        tool, _, operation = operation.partition(".")
    if not (isinstance(name, str) and 0 < len(name) <= 128 and isinstance(tool, str) and isinstance(operation, str)):
        return f"step {number} needs an id, a tool and an operation, all of them texts"
    if not (isinstance(after, list) and all(isinstance(one, str) for one in after)):
        return f"step {number}: after must be a list of ids"
    spec = catalog.tools.get(tool)
    found = None if spec is None else spec.operations.get(operation)
    if found is None:
        known = (
            sorted(catalog.tools) if spec is None else sorted(n for n, o in spec.operations.items() if o.is_declared)
        )
        what = f"tool {tool}" if spec is None else f"operation {tool}.{operation}"
        return f"step {number}: there is no {what}; known are {', '.join(known) or 'none'}"
    return Proposed(id=name, tool=tool, operation=found, after=tuple(after))


def _bad_plan(problems: list[str]) -> Refusal:
    return Refusal(
        code=Code.INVALID_ARGUMENTS,
        detail=f"The plan cannot be read: {'; '.join(problems)}.",
        extra={"problems": problems},
    )


def _plan_view(name: str, order: list[Arranged], *, is_enforced: bool) -> dict[str, object]:
    return {
        "trajectory": name,
        "is_enforced": is_enforced,
        "pivot": next((one.proposed.id for one in order if one.phase.value == "pivot"), None),
        "order": [
            {"id": one.proposed.id, "tool": one.proposed.tool, "operation": one.proposed.operation.name,
             "tier": one.proposed.operation.tier.value, "phase": one.phase.value, "needs": list(one.needs)}
            for one in order
        ],
        "moved": [{"id": one.proposed.id, "by": one.moved, "why": one.why} for one in order if one.moved],
    }  # fmt: skip


def _arguments(body: bytes) -> dict[str, object] | Refusal:
    if not body.strip():
        return {}
    try:
        value = orjson.loads(body)
    except ValueError as error:
        return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"The body is not JSON: {error}.")
    if not isinstance(value, dict):
        return Refusal(code=Code.INVALID_ARGUMENTS, detail="The body must be a JSON object.")
    return value


def _opening(arguments: dict[str, object], agent: str) -> tuple[str | None, Open] | Refusal:
    problems = [f"{key!r} is not known" for key in sorted(arguments.keys() - _OPEN_KEYS)]
    budget = caps_from(arguments.get("budget") or {})
    if isinstance(budget, list):
        problems += [f"budget: {problem}" for problem in budget]
        budget = {}
    name, ttl, labels = arguments.get("id"), arguments.get("ttl"), arguments.get("labels", {})
    abandon, stuck = arguments.get("on_abandon", "escalate"), arguments.get("on_stuck", "stop")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        problems.append("id must be " + _SHAPE)
    if abandon not in _ABANDON:
        problems.append(f"on_abandon must be one of {', '.join(_ABANDON)}")
    if stuck not in _STUCK:
        problems.append(f"on_stuck must be one of {', '.join(_STUCK)}")
    if ttl is not None and not (isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0):
        problems.append("ttl must be a number of seconds above 0")
    if not (isinstance(labels, dict) and len(labels) <= 32 and all(isinstance(v, str) for v in labels.values())):
        problems.append("labels must be an object of at most 32 texts")
    if problems:
        return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"The run was not opened: {'; '.join(problems)}.")
    assert name is None or isinstance(name, str)
    assert ttl is None or isinstance(ttl, int | float)
    assert isinstance(labels, dict)
    return name, Open(
        agent=agent,
        on_abandon=str(abandon),
        on_stuck=str(stuck),
        ttl_s=None if ttl is None else float(ttl),
        labels=labels,
        budget=budget,
    )


_REPORT_KEYS = ("state", "hash", "ignore", "metrics")


def _reported(arguments: dict[str, object]) -> tuple[int | None, dict[str, float]] | Refusal:
    """Read a report: `state` (any JSON but null; `ignore` names members that change by themselves) or `hash`, `metrics`."""
    problems = [f"{key!r} is not known" for key in sorted(arguments.keys() - set(_REPORT_KEYS))]
    state, digest, ignore = arguments.get("state"), arguments.get("hash"), arguments.get("ignore", [])
    metrics = arguments.get("metrics", {})
    if not (isinstance(ignore, list) and len(ignore) <= _NAMES_MOST and all(isinstance(one, str) for one in ignore)):
        problems.append(f"ignore must be a list of at most {_NAMES_MOST} names of members")
        ignore = []
    if state is not None and digest is not None:
        problems.append("give state or hash, not both")
    if digest is not None and not (isinstance(digest, str) and 0 < len(digest) <= 256):
        problems.append("hash must be a text of at most 256 characters")
    if not (isinstance(metrics, dict) and len(metrics) <= _NAMES_MOST and all(map(_is_number, metrics.values()))):
        problems.append(f"metrics must be an object of at most {_NAMES_MOST} numbers, the larger the better")
    elif state is None and digest is None and not metrics:
        problems.append("nothing is reported")
    if problems:
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"Nothing was taken: {'; '.join(problems)}.",
            extra={"problems": problems},
        )
    assert isinstance(metrics, dict)
    shown = state if digest is None else digest
    value = None if shown is None else state_hash(shown, frozenset(name.lower() for name in ignore))
    return value, {str(name): float(number) for name, number in metrics.items()}


_NAMES_MOST = 64


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _is_foreign(run: Run, caller: Caller | None) -> bool:
    return caller is not None and caller.is_proven and run.state.agent != caller.name


def _foreign(name: str) -> Refusal:
    return Refusal(
        code=Code.FOREIGN_TRAJECTORY,
        detail=f"Run {name} belongs to another agent. Choose another id, or leave it out.",
    )


def _unknown(name: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_TRAJECTORY,
        detail=f"No run is called {name[:128]!r}. Use the name that the Seawall-Trajectory header of an answer gave.",
    )


def _plain(status: int, view: dict[str, object], retry_after_s: int | None = None) -> OutgoingResponse:
    body = orjson.dumps(view, option=orjson.OPT_APPEND_NEWLINE)
    headers: Headers = ((b"Content-Type", b"application/json"),)
    if retry_after_s is not None:
        headers = (*headers, (b"Retry-After", b"%d" % retry_after_s))
    return OutgoingResponse(status=status, headers=headers, body=BytesBody(body))
