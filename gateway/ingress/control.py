"""The control plane: health, metrics, and the operators' API, on a port of its own with aiohttp's server.

/healthz            the process is alive
/readyz             calls are welcome: recovered, journal healthy, not draining
/metrics            Prometheus
/api/v1/...         runs, breakers, domains, journal (JSON; described at /api/v1/openapi.json)

The first three alone may have a second port: they change nothing and name no run, so other machines may reach it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import orjson
from aiohttp import web

from gateway.core.outcome import Refusal
from gateway.core.problem import problem
from gateway.core.trajectory import Phase
from gateway.ingress.mcp_listing import Listings
from gateway.ingress.runs import Runs, Shown
from gateway.journal import Journal, JournalError

__all__ = ["Control", "control_app", "health_app"]

Statistics = Callable[[], Mapping[str, object]]

_ROUTES: dict[str, tuple[str, str, str]] = {
    "trajectories": ("GET", "/api/v1/trajectories", "Runs, last changed first. Query: limit, before, state."),
    "trajectory": ("GET", "/api/v1/trajectories/{id}", "One run with its steps."),
    "abort": ("POST", "/api/v1/trajectories/{id}/abort", "Undo a run. Body: {reason}. 200 undone, 202 going on."),
    "commit": ("POST", "/api/v1/trajectories/{id}/commit", "Close a run as done."),
    "breakers": ("GET", "/api/v1/breakers", "Every breaker: state, window, cooldown."),
    "domains": ("GET", "/api/v1/domains", "Every domain: slots, queue."),
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
}


class Control:
    """What the control plane can ask for."""

    def __init__(
        self,
        *,
        runs: Runs,
        journal: Journal,
        metrics: Callable[[], bytes],
        readiness: Callable[[], str | None],
        statistics: Mapping[str, Statistics],
        listings: Listings,
    ) -> None:
        """`readiness` returns why calls are not welcome, or None. `statistics`: breakers, domains, manifest, status."""
        self.listings = listings
        self.runs = runs
        self.journal = journal
        self.metrics = metrics
        self.readiness = readiness
        self.statistics = statistics

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
        return _answer(await self.runs.abort(request.match_info["id"], reason, by="operator"))

    async def commit(self, request: web.Request) -> web.Response:
        """Close a run."""
        return _answer(await self.runs.commit(request.match_info["id"]))

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
    app.router.add_get("/api/v1/openapi.json", control.openapi)
    handlers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "trajectories": control.trajectories,
        "trajectory": control.trajectory,
        "abort": control.abort,
        "commit": control.commit,
        "journal": control.journal_stats,
        "tools": control.tools,
        "accept": control.accept,
    }
    for name, (method, path, _) in _ROUTES.items():
        app.router.add_route(method, path, handlers.get(name) or partial(control.figures, name))
    return app


def health_app(control: Control) -> web.Application:
    """Return the application that serves health and metrics alone."""
    app = web.Application(middlewares=[_problems])
    app.router.add_get("/healthz", control.healthz)
    app.router.add_get("/readyz", control.readyz)
    app.router.add_get("/metrics", control.scrape)
    return app


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
        parameters = (
            [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}] if "{id}" in path else []
        )
        paths.setdefault(path, {})[method.lower()] = {
            "operationId": name,
            "summary": summary,
            "parameters": parameters,
            "responses": {"200": {"description": "JSON"}},
        }
    return {"openapi": "3.1.0", "info": {"title": "Seawall control plane", "version": "1"}, "paths": paths}
