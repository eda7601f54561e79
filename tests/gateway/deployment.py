"""The deployment of seed 000 as a manifest: five steps, two of them irreversible, gates in front of the one that counts."""

from __future__ import annotations

from typing import Any

from tests.gateway.harness import Answered, Client
from tests.origin import Answer, Origin

__all__ = ["DEPLOYMENT", "JSON", "act", "act_all", "scripted"]

JSON = ((b"Content-Type", b"application/json"),)

DEPLOYMENT = """
version: 1
approvals:
  default: {approvers: [ann, bob, carl], required: 2, timeout: 1h, valid: 10m}
  quick: {approvers: [ann], timeout: 200ms}
gates:
  warm: {check: "trajectory.steps.exists(s, s.operation == 'warm' && s.response.json.ok == true)"}
  green:
    verify: {tool: ci, request: GET /status, expect: "response.status == 200 && response.json.state == 'green'"}
  fast: {approval: quick}
incidents:
  ops: {url: "http://127.0.0.1:PORT/hook", secret: whsec_canary}
  pager: {kind: pagerduty, url: "http://127.0.0.1:PORT/v2/enqueue", secret: routing}
  alerts: {kind: alertmanager, url: "http://127.0.0.1:PORT"}
domains:
  saas:
    concurrency: 8
    queue: 16
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1, base: 1ms, cap: 5ms}
    breaker: {cooldown: 200ms, max_cooldown: 1s, consecutive: 20}
tools:
  ci: {upstream: "http://127.0.0.1:PORT", domain: saas}
  cloud:
    upstream: http://127.0.0.1:PORT
    domain: saas
    idempotency: {header: Idempotency-Key, window: 1h}
    operations:
      provision:
        match: POST /instances
        tier: compensable
        compensator: {request: "DELETE /instances/${response.json.id}"}
        leak: {what: 16 H100 instances, amount: 5.5, per: 1m}
      warm: {match: POST /warm, tier: reversible}
      migrate:
        match: POST /migrations
        tier: compensable
        compensator: {request: "DELETE /migrations/${response.json.id}"}
      lock: {match: POST /locks, tier: reversible, lease: {until: response.json.until}}
      activate: {match: POST /routes, tier: pivot, gates: [warm, green]}
      announce: {match: POST /announcements, tier: pivot}
      pay: {match: POST /payouts, tier: pivot, approval: required}
      rush: {match: POST /rush, tier: pivot, gates: [fast]}
      register: {match: PUT /catalog, tier: reversible, idempotent: true}
      audit: {match: POST /audit, tier: pivot, pivot: stage}
      notify: {match: POST /notices, tier: pivot, pivot: stage}
"""

_PATHS = {
    "provision": "POST /instances",
    "warm": "POST /warm",
    "migrate": "POST /migrations",
    "lock": "POST /locks",
    "activate": "POST /routes",
    "announce": "POST /announcements",
    "pay": "POST /payouts",
    "rush": "POST /rush",
    "register": "PUT /catalog",
    "audit": "POST /audit",
    "notify": "POST /notices",
}


def scripted(origin: Origin) -> None:
    """Everything works."""
    origin.default = Answer(200, b"{}", JSON)
    origin.on("POST /instances", Answer(201, b'{"id": "i1"}', JSON))
    origin.on("POST /migrations", Answer(201, b'{"id": "m1"}', JSON))
    origin.on("POST /warm", Answer(200, b'{"ok": true}', JSON))
    origin.on("GET /status", Answer(200, b'{"state": "green"}', JSON))
    origin.on("POST /hook", Answer(204))
    origin.on("POST /v2/enqueue", Answer(202, b"{}", JSON))


async def act(agent: Client, operation: str, run: str = "r1", wait: int | None = None, **body: Any) -> Answered:
    """Have the agent take one step."""
    method, path = _PATHS[operation].split(" ")
    headers = [] if wait is None else [("Prefer", f"wait={wait}")]
    return await agent.send(method, f"/cloud{path}", body or {"n": 1}, run=run, headers=headers)


async def act_all(agent: Client, *operations: str, run: str = "r1") -> None:
    """Have the agent take steps that must work."""
    for operation in operations:
        answer = await act(agent, operation, run)
        assert answer.status < 300, (operation, answer.body)
