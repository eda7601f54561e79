"""The control plane: health, metrics, and the operators' API, on a port of its own with aiohttp's server.

/healthz            the process is alive
/readyz             calls are welcome: recovered, journal healthy, not draining
/metrics            Prometheus
/api/v1/...         runs, breakers, domains, journal (JSON; described at /api/v1/openapi.json)

The first three alone may have a second port: they change nothing and name no run, so other machines may reach it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.core.approval import ApprovalState, Verdict
from gateway.core.outcome import Refusal
from gateway.core.problem import problem
from gateway.core.trajectory import Phase
from gateway.ingress.claims import Claims
from gateway.ingress.containment import Containments
from gateway.ingress.desk import Desk
from gateway.ingress.guard import proven, who
from gateway.ingress.mcp_listing import Listings
from gateway.ingress.runs import Runs, Shown
from gateway.journal import Journal, JournalError
from gateway.journal.trajectories import OWN

__all__ = ["Control", "control_app", "health_app"]

Statistics = Callable[[], Mapping[str, object]]

_PRINCIPAL: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")

_ROUTES: dict[str, tuple[str, str, str]] = {
    "trajectories": ("GET", "/api/v1/trajectories", "Runs, last changed first. Query: limit, before, state."),
    "trajectory": ("GET", "/api/v1/trajectories/{id}", "One run with its steps."),
    "abort": ("POST", "/api/v1/trajectories/{id}/abort", "Undo a run. Body: {reason}. 200 undone, 202 going on."),
    "commit": ("POST", "/api/v1/trajectories/{id}/commit", "Close a run as done."),
    "freeze": ("POST", "/api/v1/trajectories/{id}/freeze", "Stop a run for a person. Body: {principal, reason}."),
    "release": ("POST", "/api/v1/trajectories/{id}/release", "Let a frozen run go on. Body: {principal, reason, to?}."),
    "close": ("POST", "/api/v1/trajectories/{id}/close", "End a frozen run as it is. Body: {principal, reason}."),
    "resolve_step": (
        "POST", "/api/v1/trajectories/{id}/steps/{step}/resolve",
        "Say whether a step's effect is in the world. Body: {principal, as: landed|not_landed, evidence}."),
    "approvals": ("GET", "/api/v1/approvals", "What waits for people. Query: state (pending, granted, …, all)."),
    "approval": ("GET", "/api/v1/approvals/{id}", "One approval: exactly what was asked, and who said what."),
    "approve": ("POST", "/api/v1/approvals/{id}/approve", "Vote for it. Body: {principal, reason}."),
    "reject": ("POST", "/api/v1/approvals/{id}/reject", "Vote against it: that is a no. Body: {principal, reason}."),
    "incidents": ("GET", "/api/v1/incidents", "Open incidents, the oldest first."),
    "incident": ("GET", "/api/v1/incidents/{id}", "One incident with everything a person needs to decide."),
    "acknowledge": ("POST", "/api/v1/incidents/{id}/ack", "Look after it. Body: {principal, reason?}."),
    "resolve": (
        "POST", "/api/v1/incidents/{id}/resolve",
        "Release its run, or close it. Body: {principal, reason, to?: phase, close?: true}."),
    "quarantines": ("GET", "/api/v1/quarantine", "Quarantines in force. Query: all=true for those that were lifted, too."),
    "quarantine": ("GET", "/api/v1/quarantine/{id}", "One quarantine: each stage with its latency, what it reaches."),
    "contain": (
        "POST", "/api/v1/quarantine",
        "Quarantine a run or an agent, at once. Body: {trajectory?, agent?, since?, trigger?: operator|detector|watchdog, "
        "principal, reason}."),
    "lift": ("POST", "/api/v1/quarantine/{id}/lift", "End a quarantine. Body: {principal, reason}."),
    "artifacts": ("GET", "/api/v1/artifacts", "Artifacts that are or were marked. Query: all=true for all."),
    "clear": (
        "POST", "/api/v1/artifacts/clear",
        "Clear an artifact, by one's own word or a declared verifier's. Body: {artifact, principal, reason, verifier?}."),
    "graph": ("GET", "/api/v1/trajectories/{id}/taint", "What a run read and made, and what was made from that."),
    "holds": ("GET", "/api/v1/holds", "What is held for want of proof. Query: all=true for all that ever was."),
    "release_hold": ("POST", "/api/v1/holds/{id}/release", "Let it go without proof. Body: {principal, reason}."),
    "breakers": ("GET", "/api/v1/breakers", "Every breaker: state, window, cooldown."),
    "domains": ("GET", "/api/v1/domains", "Every domain: slots, queue."),
    "rules": ("GET", "/api/v1/rules", "How often each rule decided, or would have in shadow."),
    "repairs": ("GET", "/api/v1/repairs", "What became of repairs, by operation and kind of trouble."),
    "journal": ("GET", "/api/v1/journal", "Figures of the journal."),
    "manifest": ("GET", "/api/v1/manifest", "The manifest in force: digest, tools, and the last reload's problem."),
    "tools": (
        "GET",
        "/api/v1/tools",
        "Definitions of MCP tools: how many are pinned, and which changed ones are held.",
    ),
    "accept": ("POST", "/api/v1/tools/{id}/accept", "Agree to a server's changed definitions. Body: {names?}."),
    "status": ("GET", "/api/v1/status", "Everything above in short."),
}  # fmt: skip


class Control:
    """What the control plane can ask for."""

    def __init__(
        self,
        *,
        runs: Runs,
        desk: Desk,
        journal: Journal,
        metrics: Callable[[], bytes],
        readiness: Callable[[], str | None],
        statistics: Mapping[str, Statistics],
        listings: Listings,
        containment: Containments,
        claims: Claims,
        guard: Middleware | None = None,
    ) -> None:
        """`readiness` returns why calls are not welcome, or None. `statistics`: breakers, domains, manifest, status.
        `guard` asks who it is; without one nobody is asked."""
        self.containment = containment
        self.claims = claims
        self.listings = listings
        self.runs = runs
        self.desk = desk
        self.journal = journal
        self.metrics = metrics
        self.readiness = readiness
        self.statistics = statistics
        self.guard = guard

    async def healthz(self, request: web.Request) -> web.Response:
        """Answer while the event loop turns."""
        return _json(200, {"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 when calls are welcome, else 503 and why."""
        why = self.readiness()
        return _json(200, {"status": "ready"}) if why is None else _json(503, {"status": "not ready", "reason": why})

    async def scrape(self, request: web.Request) -> web.Response:
        """Answer a Prometheus scrape."""
        return web.Response(body=self.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def trajectories(self, request: web.Request) -> web.Response:
        """List runs."""
        query = request.query
        try:
            limit = max(1, min(1000, int(query.get("limit", "50"))))
            before = int(query["before"]) if "before" in query else None
            state = Phase(query["state"]).value if "state" in query else None
        except ValueError as error:
            return _json(422, {"detail": f"The query cannot be used: {error}. States: {', '.join(Phase)}."})
        heads = await self.journal.heads(limit=limit, before=before, state=state)
        runs = [
            {
                "id": head.stream,
                "state": head.state,
                "agent": head.agent,
                "records": head.version,
                "opened_at": head.opened_at,
                "changed_at": head.changed_at,
            }
            for head in heads
            if not head.stream.startswith(OWN)
        ]
        return _json(200, {"trajectories": runs})

    async def trajectory(self, request: web.Request) -> web.Response:
        """Show a run."""
        return _answer(await self.runs.show(request.match_info["id"]))

    async def abort(self, request: web.Request) -> web.Response:
        """Undo a run."""
        body = await _body(request)
        if body is None:
            return _json(422, {"detail": 'The body must be a JSON object such as {"reason": "…"}.'})
        reason = str(body.get("reason") or "aborted by an operator")
        return _answer(await self.runs.abort(request.match_info["id"], reason, by=who(request)))

    async def commit(self, request: web.Request) -> web.Response:
        """Close a run."""
        return _answer(await self.runs.commit(request.match_info["id"]))

    # --- what people decide

    async def freeze(self, request: web.Request) -> web.Response:
        """Stop a run for a person."""
        return await self._decided(request, lambda d: self.desk.freeze(_id(request), d.principal, d.reason))

    async def release(self, request: web.Request) -> web.Response:
        """Let a frozen run go on."""
        return await self._decided(
            request, lambda d: self.desk.release(_id(request), d.text("to"), d.principal, d.reason)
        )

    async def close(self, request: web.Request) -> web.Response:
        """End a frozen run as it is."""
        return await self._decided(request, lambda d: self.desk.close(_id(request), d.principal, d.reason))

    async def resolve_step(self, request: web.Request) -> web.Response:
        """Record what a person found out about a step."""
        number = request.match_info["step"]
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            return _json(422, {"detail": f"{number[:40]!r} is not the number of a step."})
        return await self._decided(
            request,
            lambda d: self.desk.resolve_step(
                _id(request), int(number), d.text("as") or "", d.text("evidence") or "", d.principal
            ),
            reason_from="evidence",
        )

    async def approvals(self, request: web.Request) -> web.Response:
        """List approvals."""
        state = request.query.get("state")
        known = [*ApprovalState, "all"]
        if state is not None and state not in known:
            return _json(422, {"detail": f"state must be one of {', '.join(known)}."})
        return _answer(self.desk.approvals(state))

    async def approval(self, request: web.Request) -> web.Response:
        """Show an approval."""
        return _answer(await self.desk.approval(_id(request)))

    async def approve(self, request: web.Request) -> web.Response:
        """Vote for a call."""
        return await self._voted(request, Verdict.APPROVE)

    async def reject(self, request: web.Request) -> web.Response:
        """Vote against a call."""
        return await self._voted(request, Verdict.REJECT)

    async def _voted(self, request: web.Request, verdict: Verdict) -> web.Response:
        return await self._decided(request, lambda d: self.desk.decide(_id(request), verdict, d.principal, d.reason))

    async def incidents(self, request: web.Request) -> web.Response:
        """List the open incidents."""
        return _answer(await self.desk.incidents())

    async def incident(self, request: web.Request) -> web.Response:
        """Show an incident."""
        return _answer(await self.desk.incident(_id(request)))

    async def acknowledge(self, request: web.Request) -> web.Response:
        """Look after an incident."""
        return await self._decided(
            request, lambda d: self.desk.acknowledge(_id(request), d.principal, d.reason), needs_reason=False
        )

    async def resolve(self, request: web.Request) -> web.Response:
        """Resolve an incident."""
        return await self._decided(
            request,
            lambda d: self.desk.resolve(
                _id(request), d.principal, d.reason, to=d.text("to"), is_closing=d.body.get("close") is True
            ),
        )

    async def _decided(
        self,
        request: web.Request,
        decide: Callable[[Decision], Awaitable[Shown | Refusal]],
        *,
        needs_reason: bool = True,
        reason_from: str = "reason",
    ) -> web.Response:
        """Hand a person's decision on; without a name and a reason it is none."""
        body = await _body(request)
        if body is None:
            return _json(422, {"detail": 'The body must be a JSON object such as {"principal": "…", "reason": "…"}.'})
        decision = Decision(principal_of(request, body), body)
        if not _PRINCIPAL.fullmatch(decision.principal):
            return _json(422, {"detail": "`principal` must say who decides: 1 to 128 printable characters."})
        if needs_reason and not (decision.text(reason_from) or "").strip():
            return _json(422, {"detail": f"`{reason_from}` must say why; it is journaled."})
        return _answer(await decide(decision))

    # --- what is contained

    async def quarantines(self, request: web.Request) -> web.Response:
        """List quarantines."""
        return _answer(self.containment.list(is_all=request.query.get("all") == "true"))

    async def quarantine(self, request: web.Request) -> web.Response:
        """Show a quarantine."""
        return _answer(self.containment.show(_id(request)))

    async def contain(self, request: web.Request) -> web.Response:
        """Quarantine a run or an agent."""
        return await self._decided(request, lambda d: self.containment.contain(d.body, d.principal, d.reason))

    async def lift(self, request: web.Request) -> web.Response:
        """End a quarantine."""
        return await self._decided(request, lambda d: self.containment.lift(_id(request), d.principal, d.reason))

    async def artifacts(self, request: web.Request) -> web.Response:
        """List artifacts."""
        return _answer(self.containment.artifacts(is_all=request.query.get("all") == "true"))

    async def clear(self, request: web.Request) -> web.Response:
        """Clear an artifact."""
        return await self._decided(
            request,
            lambda d: self.containment.clear(d.text("artifact") or "", d.text("verifier"), d.principal, d.reason),
        )

    async def holds(self, request: web.Request) -> web.Response:
        """List what is held."""
        return _answer(self.claims.holds(is_all=request.query.get("all") == "true"))

    async def release_hold(self, request: web.Request) -> web.Response:
        """Let something go without proof."""
        return await self._decided(request, lambda d: self.claims.release(_id(request), d.principal, d.reason))

    async def graph(self, request: web.Request) -> web.Response:
        """Show a run's part of the graph."""
        return _answer(self.containment.graph(_id(request)))

    async def journal_stats(self, request: web.Request) -> web.Response:
        """Show the journal's figures."""
        return _json(200, await self.journal.stats())

    async def tools(self, request: web.Request) -> web.Response:
        """Show the definitions that wait."""
        held = [change.view() for change in self.listings.changes()]
        return _json(200, {"pinned": self.listings.pinned(), "held": held})

    async def accept(self, request: web.Request) -> web.Response:
        """Agree to changed definitions."""
        body = await _body(request)
        names = None if body is None else body.get("names")
        if body is None or not (names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names))):
            return _json(422, {"detail": 'The body must be empty or {"names": ["…"]}.'})
        server = request.match_info["id"]
        accepted = await self.listings.accept(server, names)
        if accepted is None:
            known = ", ".join(self.listings.pinned()) or "none"
            return _json(404, {"detail": f"No MCP server {server[:64]!r} has been listed yet. Known: {known}."})
        return _json(200, {"accepted": accepted})

    async def openapi(self, request: web.Request) -> web.Response:
        """Describe this API."""
        return _json(200, _openapi())

    async def figures(self, name: str, request: web.Request) -> web.Response:
        """Show figures by name."""
        return _json(200, self.statistics[name]())


def control_app(control: Control) -> web.Application:
    """Return the application that serves `control`."""
    app = health_app(control)
    if control.guard is not None:
        app.middlewares.append(control.guard)
    app.router.add_get("/api/v1/openapi.json", control.openapi)
    handlers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "trajectories": control.trajectories,
        "trajectory": control.trajectory,
        "abort": control.abort,
        "commit": control.commit,
        "freeze": control.freeze,
        "release": control.release,
        "close": control.close,
        "resolve_step": control.resolve_step,
        "approvals": control.approvals,
        "approval": control.approval,
        "approve": control.approve,
        "reject": control.reject,
        "incidents": control.incidents,
        "incident": control.incident,
        "acknowledge": control.acknowledge,
        "resolve": control.resolve,
        "journal": control.journal_stats,
        "quarantines": control.quarantines,
        "quarantine": control.quarantine,
        "contain": control.contain,
        "lift": control.lift,
        "artifacts": control.artifacts,
        "clear": control.clear,
        "graph": control.graph,
        "holds": control.holds,
        "release_hold": control.release_hold,
        "tools": control.tools,
        "accept": control.accept,
    }
    for name, (method, path, _) in _ROUTES.items():
        app.router.add_route(method, path, handlers.get(name) or partial(control.figures, name))
    return app


def health_app(control: Control) -> web.Application:
    """Return the application that serves health and metrics alone."""
    app = web.Application(middlewares=[_problems])
    app.on_response_prepare.append(_close_after_chunks)
    app.router.add_get("/healthz", control.healthz)
    app.router.add_get("/readyz", control.readyz)
    app.router.add_get("/metrics", control.scrape)
    return app


async def _close_after_chunks(request: web.Request, response: web.StreamResponse) -> None:
    """End the connection with the answer to a chunked request: aiohttp's parser puts the last of its trailers into the head
    of the next request, which may be somebody else's behind a proxy. What was sent behind it goes unread."""
    if "Transfer-Encoding" in request.headers:
        response.headers["Connection"] = "close"
        response.force_close()


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a browser was tricked into, and answer a broken journal with JSON instead of a stack trace."""
    if request.method != "GET" and request.headers.get("Origin") is not None:
        return _json(403, {"detail": "Requests that change something are not taken from web pages."})
    try:
        return await handler(request)
    except JournalError as error:
        return _json(503, {"detail": f"The journal cannot be used: {error}"})


async def _body(request: web.Request) -> dict[str, object] | None:
    data = await request.read()
    if not data.strip():
        return {}
    try:
        value = orjson.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision, as it came."""

    principal: str
    body: Mapping[str, object]

    @property
    def reason(self) -> str:
        """Why."""
        return self.text("reason") or ""

    def text(self, name: str) -> str | None:
        """Return a member of the body that is a text, or None."""
        value = self.body.get(name)
        return value if isinstance(value, str) else None


def principal_of(request: web.Request, body: Mapping[str, object]) -> str:
    """Return who decides: whom the token proves, so that nobody votes twice under two names; where no tokens are in use, as
    the caller says, for whoever reaches this port is trusted to say so."""
    if (name := proven(request)) is not None:
        return name
    value = body.get("principal")
    return value if isinstance(value, str) else ""


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _answer(answer: Shown | Refusal) -> web.Response:
    if isinstance(answer, Refusal):
        told = problem(answer)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told.headers}
        return web.Response(status=told.status, body=told.body, headers=headers)
    return _json(answer.status, answer.view)


def _json(status: int, value: object) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), content_type="application/json"
    )


def _openapi() -> dict[str, object]:
    paths: dict[str, dict[str, object]] = {}
    for name, (method, path, summary) in _ROUTES.items():
        parameters = [
            {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
            for one in ("id", "step")
            if f"{{{one}}}" in path
        ]
        paths.setdefault(path, {})[method.lower()] = {
            "operationId": name,
            "summary": summary,
            "parameters": parameters,
            "responses": {"200": {"description": "JSON"}},
        }
    return {"openapi": "3.1.0", "info": {"title": "Seawall control plane", "version": "1"}, "paths": paths}
