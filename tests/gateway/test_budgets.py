"""What a run may spend, through the whole gateway: metered, reported, warned of, and never exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Child, serving
from tests.origin import Answer, Exchange, Origin

JSON = ((b"Content-Type", b"application/json"),)
RUNS = "/seawall/v1/trajectories"
MANIFEST = """
version: 1
domains:
  lab:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 4, base: 1ms, cap: 5ms, budget_floor: 1000}
    breaker: {consecutive: 1000, window: 1000}
tools:
  lab:
    upstream: http://127.0.0.1:PORT
    domain: lab
    recovery: {mode: MODE, repair_tokens: 3000, repair_usd: 0}
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel", duration: 60s}
        duration: 60s
        usage: {price: 0.04}
      ask:
        match: POST /ask
        tier: reversible
        idempotent: true
        usage: {tokens: response.json.usage.total, usd: response.json.cost}
      look: {match: GET /rows, tier: read, usage: {tokens: response.json.tokens}}
      flaky: {match: "PUT /flaky/{n}", tier: reversible, idempotent: true, fails_cleanly: true}
"""


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        made.on("POST /holds", *(Answer(201, b'{"id": "h%d"}' % n, JSON) for n in range(1, 90)))
        made.on("POST /ask", Answer(200, b'{"usage": {"total": 40}, "cost": 0.1}', JSON))
        made.on("GET /rows", Answer(200, b'{"tokens": 25}', JSON))
        yield made


def manifest(mode: str = "advise") -> str:
    return MANIFEST.replace("MODE", mode)


async def opened(running: Any, **budget: float) -> None:
    answer = await running.agent.send("POST", RUNS, {"id": "r1", "budget": budget})
    assert answer.status == 201, answer.body


async def hold(running: Any, n: int, **more: Any) -> Any:
    return await running.agent.send("POST", "/lab/holds", {"n": n}, run="r1", **more)


async def budget(running: Any) -> dict[str, Any]:
    shown: dict[str, Any] = (await running.agent.send("GET", f"{RUNS}/r1")).json["budget"]
    return shown


async def test_at_four_fifths_the_answer_says_so_and_at_the_cap_calls_are_refused(
    tmp_path: Path, origin: Origin
) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, calls=5)
        told = [(await hold(running, n)).get("seawall-budget") for n in range(5)]
        assert told == [None, None, None, "calls=4/5", "calls=5/5"]
        refused = await hold(running, 9)
        assert (refused.status, refused.code, refused.json["retryable"]) == (429, "ERR_BUDGET_EXHAUSTED", False)
        assert refused.json["budget"]["spent"] == "calls"
        assert "5 of 5 calls" in refused.json["detail"]
        assert len(origin.requests) == 5
        assert refused.json["directive"] == "BACKWARD_ROLLBACK"


async def test_a_declared_price_is_metered_and_given_back_where_nothing_happened(
    tmp_path: Path, origin: Origin
) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, usd=0.10)
        await hold(running, 1)
        origin.on("POST /holds", Answer(422, b"{}", JSON), Answer(201, b'{"id": "h2"}', JSON))
        assert (await hold(running, 2)).status == 422
        assert (await budget(running))["used"]["usd"] == pytest.approx(0.04)
        await hold(running, 3)
        last = await hold(running, 4)
        assert last.status == 201, "0.08 of 0.10 are spent: one more may be in flight"
        assert (await hold(running, 5)).code == "ERR_BUDGET_EXHAUSTED"
        assert (await budget(running))["used"]["usd"] == pytest.approx(0.12)


async def test_tokens_and_money_are_read_from_answers_of_writes_and_reads(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, tokens=100)
        await running.agent.send("POST", "/lab/ask", {"q": 1}, run="r1")
        looked = await running.agent.send("GET", "/lab/rows", run="r1")
        assert looked.json == {"tokens": 25}, "the answer comes unchanged"
        used = (await budget(running))["used"]
        assert (used["tokens"], used["usd"], used["calls"], used["steps"]) == (65, 0.1, 2, 1)
        await running.agent.send("POST", "/lab/ask", {"q": 2}, run="r1")
        assert (await running.agent.send("GET", "/lab/rows", run="r1")).code == "ERR_BUDGET_EXHAUSTED"


async def test_agents_report_what_the_gateway_cannot_see_and_a_named_report_counts_once(
    tmp_path: Path, origin: Origin
) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, tokens=1000)
        for _ in range(3):
            told = await running.agent.send("POST", f"{RUNS}/r1/usage", {"tokens": 850, "report": "turn-1"})
        assert (told.status, told.json["is_new"]) == (200, False)
        assert told.json["budget"]["used"]["tokens"] == 850
        assert told.json["budget"]["warnings"] == ["tokens"]
        assert (await hold(running, 1)).get("seawall-budget") == "tokens=850/1000"
        await running.agent.send("POST", f"{RUNS}/r1/usage", {"tokens": 200})
        assert (await hold(running, 2)).code == "ERR_BUDGET_EXHAUSTED"


@pytest.mark.parametrize(
    "body", [{}, {"tokens": -1}, {"tokens": "x"}, {"seconds": 5}, {"tokens": 1, "report": "a b"}, {"x": 1}]
)
async def test_a_report_that_cannot_be_read_counts_nothing(tmp_path: Path, origin: Origin, body: Any) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, tokens=10)
        refused = await running.agent.send("POST", f"{RUNS}/r1/usage", body)
        assert (refused.status, refused.code) == (422, "ERR_INVALID_ARGUMENTS")
        assert (await budget(running))["used"]["tokens"] == 0


async def test_a_header_opens_a_run_with_its_caps_and_later_only_lowers_them(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await hold(running, 1, headers=[("Seawall-Budget", "calls=4, usd=1")])
        assert (await budget(running))["caps"] == {"calls": 4, "usd": 1}
        await hold(running, 2, headers=[("Seawall-Budget", "calls=400, usd=0.5")])
        assert (await budget(running))["caps"] == {"calls": 4, "usd": 0.5}
        for n in range(3, 8):
            last = await hold(running, n)
        assert last.code == "ERR_BUDGET_EXHAUSTED"
        assert len(origin.requests) == 4
        for value in ("calls", "calls=x", "euro=4"):
            assert (await hold(running, 9, headers=[("Seawall-Budget", value)])).code == "ERR_INVALID_ARGUMENTS"
        nameless = await running.agent.send("POST", "/lab/holds", {}, headers=[("Seawall-Budget", "calls=4")])
        assert nameless.code == "ERR_INVALID_ARGUMENTS"
        nothing = await running.agent.send("POST", "/lab/holds", {}, run="r9", headers=[("Seawall-Budget", "calls=0")])
        assert nothing.code == "ERR_BUDGET_EXHAUSTED"


async def test_calls_at_once_never_exceed_the_cap(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, calls=7)
        answers = await asyncio.gather(*(hold(running, n) for n in range(25)))
        assert sorted(answer.status for answer in answers) == [201] * 7 + [429] * 18
        assert len(origin.requests) == 7


async def test_seconds_end_a_run_and_cut_its_calls(tmp_path: Path, origin: Origin) -> None:
    release = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await release.wait()
        await Answer(200, b"{}", JSON)(exchange)

    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, seconds=1)
        origin.on("GET /rows", slow)
        cut = await running.agent.send("GET", "/lab/rows", run="r1")
        assert cut.code == "ERR_DEADLINE", "the call had five seconds of its own, and the run one"
        while (await hold(running, 1)).status == 201:  # the run's clock is its own; the last milliseconds may be left
            pass
        assert (await hold(running, 2)).code == "ERR_BUDGET_EXHAUSTED"
        release.set()


async def test_retries_are_counted_and_then_no_more_are_made(tmp_path: Path, origin: Origin) -> None:
    origin.on("PUT /flaky/1", Answer(500, b"{}", JSON))
    origin.on("PUT /flaky/2", Answer(500, b"{}", JSON))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, retries=4)
        await running.agent.send("PUT", "/lab/flaky/1", {}, run="r1")
        assert len(origin.requests) == 4, "one call, three repeats"
        await running.agent.send("PUT", "/lab/flaky/2", {}, run="r1")
        assert len(origin.requests) == 6, "one repeat is left"
        again = await running.agent.send("PUT", "/lab/flaky/1", {}, run="r1")
        assert (again.code, again.json["budget"]["spent"]) == ("ERR_BUDGET_EXHAUSTED", "retries")
        assert (await hold(running, 1)).status == 201, "what is no repeat goes on"


async def test_a_spent_budget_undoes_the_run_where_the_policy_is_enforced(tmp_path: Path, origin: Origin) -> None:
    async with serving(tmp_path, origin.port, manifest("enforce")) as running:
        await opened(running, steps=2)
        for n in range(3):
            last = await hold(running, n)
        assert last.code == "ERR_BUDGET_EXHAUSTED"
        await running.agent.send("POST", f"{RUNS}/r1/abort")
        assert (await running.agent.send("GET", f"{RUNS}/r1")).json["state"] == "aborted_clean"
        undone = [request.path for request in origin.requests if request.path.endswith("cancel")]
        assert undone == ["/holds/h2/cancel", "/holds/h1/cancel"], "undoing is never refused for want of budget"


async def test_a_repair_must_leave_a_reserve(tmp_path: Path, origin: Origin) -> None:
    """Gate 2: the repair would fit, but not with what is kept back for the case that it fails."""
    told = (b'{"error": "no such port"}', b'{"error": "no such name"}')
    origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON), *(Answer(422, text, JSON) for text in told))
    async with serving(tmp_path, origin.port, manifest()) as running:
        await opened(running, tokens=10_000)
        await hold(running, 1)
        assert (await hold(running, 2))["seawall-directive"] == "FORWARD_REPAIR"
        await running.agent.send("POST", f"{RUNS}/r1/usage", {"tokens": 6_800})
        assert (await hold(running, 3))["seawall-directive"] == "BACKWARD_ROLLBACK"


async def test_what_was_spent_survives_a_kill(tmp_path: Path, origin: Origin, make_child: Callable[..., Child]) -> None:
    child = make_child(tmp_path, origin.port, manifest())
    client = await child.start()
    await client.send("POST", RUNS, {"id": "r1", "budget": {"tokens": 100, "calls": 50, "usd": 1}})
    await client.send("POST", "/lab/ask", {"q": 1}, run="r1")
    await client.send("POST", "/lab/holds", {"n": 1}, run="r1")
    await client.send("POST", f"{RUNS}/r1/usage", {"tokens": 30, "report": "t1"})
    await child.kill()
    client = await child.start()
    again = await client.send("POST", f"{RUNS}/r1/usage", {"tokens": 30, "report": "t1"})
    assert again.json["is_new"] is False
    view = again.json["budget"]
    assert view["caps"] == {"tokens": 100, "calls": 50, "usd": 1}
    assert (view["used"]["tokens"], view["used"]["calls"], view["used"]["steps"]) == (70, 2, 2)
    assert view["used"]["usd"] == pytest.approx(0.14)


@pytest.mark.parametrize("wrong", [{"calls": -1}, {"calls": "5"}, {"euro": 1}, 5, ["calls"]])
async def test_a_run_is_not_opened_with_caps_that_cannot_be_read(tmp_path: Path, origin: Origin, wrong: Any) -> None:
    async with serving(tmp_path, origin.port, manifest()) as running:
        refused = await running.agent.send("POST", RUNS, {"id": "r1", "budget": wrong})
        assert (refused.status, refused.code) == (422, "ERR_INVALID_ARGUMENTS")
        assert (await running.agent.send("GET", f"{RUNS}/r1")).status == 404


async def test_in_shadow_nothing_is_refused_and_it_is_counted(tmp_path: Path, origin: Origin) -> None:
    origin.on("POST /ask", Answer(422, b'{"error": "no"}', JSON))
    async with serving(tmp_path, origin.port, manifest(), shadow=True) as running:
        await opened(running, steps=2)
        for _ in range(6):
            assert (await running.agent.send("POST", "/lab/ask", {"q": 1}, run="r1")).status == 422
        told = str((await running.operator.send("GET", "/api/v1/rules")).json)
        assert "(budget)" in told
        assert "(watchdog)" in told


async def test_a_cap_that_comes_with_a_later_call_holds_for_those_that_carry_none(
    tmp_path: Path, origin: Origin
) -> None:
    """In a gateway in which no run was opened with caps."""
    async with serving(tmp_path, origin.port, manifest()) as running:
        flaky = ("PUT", "/lab/flaky/1", {})
        origin.on("PUT /flaky/1", Answer(200, b"{}", JSON))
        await running.agent.send(*flaky, run="r1")
        await running.agent.send(*flaky, run="r1", headers=[("Seawall-Budget", "calls=3")])
        codes = [(await running.agent.send(*flaky, run="r1")).status for _ in range(3)]
        assert codes == [200, 429, 429]
        assert (await budget(running))["used"]["calls"] == 3
