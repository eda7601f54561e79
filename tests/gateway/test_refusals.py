"""A model that hammers a dead tool: what it reads, and what is written down about it, is the same however it was refused."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ingress.connection import AgentConnection
from gateway.ingress.request import IncomingRequest
from tests.gateway.harness import Answered, Serving, serving
from tests.origin import Origin

DEAD = """
version: 1
domains:
  saas: {timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}, retry: {attempts: 1}, breaker: {cooldown: 10m}}
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    domain: saas
    operations:
      hold: {match: POST /holds, tier: reversible}
      look: {match: GET /holds, tier: read}
"""
VARIES = re.compile(rb"\d+(\.\d)? s;|\"retry_after_ms\":\d+")


@pytest.fixture
def dead_port() -> Iterator[int]:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield nobody.getsockname()[1]


def without_time(answer: Answered) -> tuple[object, ...]:
    fields = [(name, value) for name, value in answer.headers if name not in ("Date", "Retry-After")]
    return answer.status, fields, VARIES.sub(b"", answer.body)


def told(running: Serving) -> list[bool]:
    """Note of each request to a tool that refuses whether it was answered at once."""
    asked: list[bool] = []
    front = running.gateway._front
    answer = front.answer_at_once

    def noted(request: IncomingRequest, connection: AgentConnection) -> bool:
        asked.append(answer(request, connection))
        return asked[-1]

    front.answer_at_once = noted  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("run", ["r1", None])
@pytest.mark.parametrize(("method", "body"), [("POST", {"n": 7}), ("GET", None)])
async def test_a_refusal_at_once_is_word_for_word_the_one_before(
    tmp_path: Path, dead_port: int, run: str | None, method: str, body: object
) -> None:
    async with serving(tmp_path, dead_port, DEAD) as running:
        asked = told(running)
        for number in range(3):
            assert (
                await running.agent.send("POST", "/pay/holds", {"n": number}, run=run)
            ).code == "ERR_UPSTREAM_CONNECT"
        slow = await running.agent.send(method, "/pay/holds", body, run=run)
        assert asked == []
        quick = [await running.agent.send(method, "/pay/holds", body, run=run) for _ in range(3)]
        assert slow.code == "ERR_CIRCUIT_OPEN"
        assert [without_time(one) for one in quick] == [without_time(slow)] * 3
        assert asked == [True] * 3
        page = running.gateway._telemetry.render().decode()
        assert 'gateway_refusals_total{code="ERR_CIRCUIT_OPEN",tool="pay"} 4.0' in page
        running.gateway._trajectories.flush_refusals()
        name = slow["Seawall-Trajectory"]
        state = running.gateway._trajectories.get(name)
        assert state is not None
        assert state.state.refusals == 4


async def test_a_repeat_is_answered_from_the_journal_while_the_tool_is_dead(tmp_path: Path) -> None:
    """What is recorded under the agent's key costs the tool nothing; a new call in between is refused at once."""
    async with Origin() as origin, serving(tmp_path, origin.port, DEAD) as running:
        first = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1", key="k1")
        await origin.close()
        for number in (2, 3, 4, 5):
            await running.agent.send("POST", "/pay/holds", {"n": number}, run="r1")
        asked = told(running)
        for _ in range(2):
            again = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1", key="k1")
            assert (again.status, again.body, again["Seawall-Replayed"]) == (first.status, first.body, "true")
            refused = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
            assert refused.code == "ERR_CIRCUIT_OPEN"
        assert asked == [False, True] * 2
