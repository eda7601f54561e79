"""The runs API: open, show, commit, abort (design section 7).

Served on the data plane under `/seawall/v1/trajectories` for agents, and by the control plane for operators. Every verb
may be repeated: opening an open run, committing a committed one, aborting an aborted one change nothing.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import orjson

from gateway.clock import Clock
from gateway.core.codes import Code
from gateway.core.message import BytesBody, first_header
from gateway.core.outcome import Refusal
from gateway.core.saga import Abort, Commit, Open
from gateway.core.trajectory import Phase
from gateway.core.views import trajectory_view
from gateway.egress.spool import Spool, TooLarge
from gateway.ingress.http import IncomingRequest, OutgoingResponse, UploadBroken
from gateway.ingress.proxy import refuse
from gateway.journal import Conflict, JournalUnavailable
from gateway.journal.trajectories import Trajectories

__all__ = ["Runs", "Shown"]

ABORT_WAIT_S = 20.0
"""How long an abort call waits for the unwinding before it answers 202; the unwinding goes on."""

_BODY_MAX = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_ABANDON = ("escalate", "unwind", "commit")
_OPEN_KEYS = {"id", "on_abandon", "ttl", "labels"}


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer of the runs API: an HTTP status and a run's view."""

    status: int
    view: dict[str, object]


class Runs:
    """The verbs, free of any framework."""

    def __init__(self, trajectories: Trajectories, spool: Spool, clock: Clock) -> None:
        self._trajectories = trajectories
        self._spool = spool
        self._clock = clock

    async def __call__(self, request: IncomingRequest) -> OutgoingResponse:
        """Answer one data-plane request below `/seawall/`."""
        path = request.target.partition(b"?")[0].decode("latin-1")
        parts = path.strip("/").split("/")
        if parts[:3] != ["seawall", "v1", "trajectories"] or len(parts) > 5:
            return _plain(404, {"detail": "Nothing is served here. The runs API is at /seawall/v1/trajectories."})
        try:
            body = await request.read_all(self._spool, max_bytes=_BODY_MAX, memory_limit=_BODY_MAX)
            arguments = _arguments(body.data if isinstance(body, BytesBody) else b"")
            if isinstance(arguments, Refusal):
                return refuse(arguments)
            agent = (first_header(request.headers, b"seawall-agent") or request.peer.encode() or b"local").decode(
                "latin-1"
            )
            answer = await self._route(request.method, parts[3:], arguments, agent)
        except TooLarge:
            answer = Refusal(code=Code.PAYLOAD_TOO_LARGE, detail=f"The body is larger than {_BODY_MAX} bytes.")
        except UploadBroken as error:
            answer = Refusal(code=Code.INVALID_ARGUMENTS, detail=f"Nothing was done: {error}.")
        except (JournalUnavailable, Conflict) as error:
            answer = Refusal(
                code=Code.JOURNAL_UNAVAILABLE,
                detail=f"The journal cannot be used ({error}). Try again later.",
                retry_after_ms=1000,
            )
        if isinstance(answer, Refusal):
            return refuse(answer)
        return _plain(answer.status, answer.view)

    async def _route(self, method: str, rest: list[str], arguments: dict[str, object], agent: str) -> Shown | Refusal:
        match (method, rest):
            case ("POST", []):
                return await self.open(arguments, agent)
            case ("GET", [name]):
                return await self.show(name)
            case ("POST", [name, "commit"]):
                return await self.commit(name)
            case ("POST", [name, "abort"]):
                return await self.abort(name, str(arguments.get("reason") or "aborted by the agent"))
        return Refusal(
            code=Code.INVALID_ARGUMENTS,
            detail=f"{method} is not served there. Use POST …/trajectories, GET …/trajectories/ID, "
            "POST …/trajectories/ID/commit or POST …/trajectories/ID/abort.",
        )

    async def open(self, arguments: dict[str, object], agent: str) -> Shown | Refusal:
        """Open a run: 201, or 200 if it is open already."""
        opening = _opening(arguments, agent)
        if isinstance(opening, Refusal):
            return opening
        name, command = opening
        run = await self._trajectories.named(name or f"run-{self._clock.token()}", command)
        if isinstance(run, Refusal):
            return run
        if not run.state.is_open:
            return Refusal(
                code=Code.TRAJECTORY_CLOSED,
                detail=f"Run {name} is over ({run.state.phase}). Choose another id.",
                extra={"state": run.state.phase.value},
            )
        is_new = run.state.version == 0
        if is_new:
            await self._trajectories.decided(run, command)
        return Shown(201 if is_new else 200, trajectory_view(run.state))

    async def show(self, name: str) -> Shown | Refusal:
        """Show a run, open or over."""
        self._trajectories.flush_reads()
        run = await self._trajectories.find(name)
        if run is None:
            return _unknown(name)
        run = await self._trajectories.durable(run)
        return Shown(200, trajectory_view(run.state))

    async def commit(self, name: str) -> Shown | Refusal:
        """Close a run as done."""
        run = await self._trajectories.find(name)
        if run is None:
            return _unknown(name)
        refusal = await self._trajectories.decided(run, Commit())
        return refusal or Shown(200, trajectory_view(run.state))

    async def abort(
        self, name: str, reason: str, *, by: str = "agent", wait_s: float = ABORT_WAIT_S
    ) -> Shown | Refusal:
        """Undo a run: 200 once it is undone, 202 while that goes on."""
        run = await self._trajectories.find(name)
        if run is None:
            return _unknown(name)
        refusal = await self._trajectories.decided(run, Abort(reason=reason[:1000], by=by))
        if refusal is not None:
            return refusal
        deadline = self._clock.now() + wait_s
        while run.state.phase is Phase.COMPENSATING and (left := deadline - self._clock.now()) > 0:
            await asyncio.wait((run.changed(),), timeout=left)
            run = await self._trajectories.find(name) or run
        run = await self._trajectories.durable(run)
        if run.state.phase is Phase.FROZEN:
            return await self._trajectories.decided(run, Abort(reason=reason)) or Shown(409, trajectory_view(run.state))
        status = 202 if run.state.phase is Phase.COMPENSATING else 200
        return Shown(status, trajectory_view(run.state))


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
    problems = [f"{key!r} is not known" for key in sorted(arguments.keys() - _OPEN_KEYS - {"budget"})]
    if "budget" in arguments:
        problems.append("budgets are not enforced by this release, so none is accepted")
    name, ttl, labels = arguments.get("id"), arguments.get("ttl"), arguments.get("labels", {})
    abandon = arguments.get("on_abandon", "escalate")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        problems.append("id must be 1 to 128 letters, digits and . _ : -, the first a letter or digit")
    if abandon not in _ABANDON:
        problems.append(f"on_abandon must be one of {', '.join(_ABANDON)}")
    if ttl is not None and not (isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0):
        problems.append("ttl must be a number of seconds above 0")
    if not (isinstance(labels, dict) and len(labels) <= 32 and all(isinstance(v, str) for v in labels.values())):
        problems.append("labels must be an object of at most 32 texts")
    if problems:
        return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"The run was not opened: {'; '.join(problems)}.")
    assert name is None or isinstance(name, str)
    assert ttl is None or isinstance(ttl, int | float)
    assert isinstance(labels, dict)
    return name, Open(agent=agent, on_abandon=str(abandon), ttl_s=None if ttl is None else float(ttl), labels=labels)


def _unknown(name: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_TRAJECTORY,
        detail=f"No run is called {name[:128]!r}. Use the name that the Seawall-Trajectory header of an answer gave.",
    )


def _plain(status: int, view: dict[str, object]) -> OutgoingResponse:
    body = orjson.dumps(view, option=orjson.OPT_APPEND_NEWLINE)
    return OutgoingResponse(status=status, headers=((b"Content-Type", b"application/json"),), body=BytesBody(body))
