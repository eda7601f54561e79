"""One call through the whole gateway: unchanged where it should be, at most one effect in every case."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from tests.gateway.harness import read_answer, serving
from tests.origin import Answer, Drop, Feed, Hang, Origin, pattern, pattern_digest

JSON = ((b"Content-Type", b"application/json"),)


async def test_a_call_of_an_unmanaged_tool_goes_through_unchanged(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on(
            "PATCH /a%20b",
            Answer(
                207,
                b"\x00\xff",
                ((b"X-Many", b"1"), (b"X-Many", b"2"), (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2")),
            ),
        )
        answer = await running.agent.send(
            "PATCH", "/plain/a%20b?q=%2F&q=2&empty", b"\x01\x02", headers=[("X-Twice", "one"), ("X-Twice", "two")]
        )
        assert answer.status == 207
        assert answer.body == b"\x00\xff"
        assert [value for name, value in answer.headers if name == "X-Many"] == ["1", "2"]
        assert [value for name, value in answer.headers if name == "Set-Cookie"] == ["a=1", "b=2"]
        (request,) = origin.requests
        assert request.target == b"/a%20b?q=%2F&q=2&empty"
        assert request.method == "PATCH"
        assert request.body == b"\x01\x02"
        assert request.values(b"x-twice") == [b"one", b"two"]
        assert request.values(b"host") == [origin.authority.encode()]
        assert not request.values(b"seawall-trajectory")


async def test_an_answer_names_its_run_and_step(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert (answer["Seawall-Trajectory"], answer["Seawall-Step"]) == ("r1", "1")
        assert answer.get("Seawall-Replayed") is None
        assert len(origin.requests[0].values(b"idempotency-key")[0]) == 32


@pytest.mark.parametrize("tool", ["pay", "keyless"])
async def test_a_lost_answer_never_doubles_the_effect(tmp_path: Path, tool: str) -> None:
    """MCPJam/inspector#3555: the write commits and the answer is lost."""
    async with Origin(honours_keys=True) as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Drop(applies=True), Answer(201, b'{"id": "h1"}', JSON))
        answer = await running.agent.send("POST", f"/{tool}/holds", {"n": 1}, run="r1")
        assert origin.ledger.total == 1
        if tool == "pay":
            assert answer.status == 201, "settled by a repeat under the same key"
            return
        for _ in range(3):
            assert answer.code == "ERR_OUTCOME_UNKNOWN"
            assert answer["x-should-retry"] == "false"
            answer = await running.agent.send("POST", f"/{tool}/holds", {"n": 1}, run="r1")
        assert origin.ledger.total == 1


async def test_a_server_error_to_a_write_is_in_doubt_and_not_repeated(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(500, b"oops", applies=True))
        answer = await running.agent.send("POST", "/keyless/holds", {"n": 1}, run="r1")
        assert answer.code == "ERR_OUTCOME_UNKNOWN"
        assert origin.ledger.total == 1


async def test_a_read_is_repeated_and_its_failures_never_seen(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("GET /x", Drop(), Answer(503, b"busy"), Answer(200, b"fine"))
        answer = await running.agent.send("GET", "/plain/x")
        assert (answer.status, answer.body) == (200, b"fine")
        assert len(origin.requests) == 3


async def test_the_tools_own_error_passes_unchanged(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(402, b'{"declined": true}', JSON))
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert (answer.status, answer.body) == (402, b'{"declined": true}')
        assert len(origin.requests) == 1


async def test_identical_calls_in_flight_are_one_call(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold))
        calls = [asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")) for _ in range(20)]
        await origin.completed()
        hold.set()
        answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {201}
        assert sum(answer.get("Seawall-Replayed") == "true" for answer in answers) == 19
        assert origin.ledger.total == 1


async def test_a_caller_who_leaves_after_the_call_left_finds_its_answer_later(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold))
        call = asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1"))
        await origin.completed()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        hold.set()
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert (answer.status, answer.body, answer.get("Seawall-Replayed")) == (201, b'{"id": "h1"}', "true")
        assert origin.ledger.total == 1
        again = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert again.get("Seawall-Replayed") is None, "delivered: now it is a new step"
        assert origin.ledger.total == 2


async def test_a_caller_who_leaves_while_uploading_sends_nothing(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        _, writer = await running.agent.open()
        writer.write(running.agent.head("POST", "/pay/holds", [("Seawall-Trajectory", "r1")], 100) + b"half")
        await writer.drain()
        writer.transport.abort()
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, run="r1")
        assert answer.status == 200
        assert len(origin.requests) == 1


async def test_a_caller_who_leaves_the_queue_gives_its_place_back(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON, hold=hold))
        busy = [asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": n}, run=f"r{n}")) for n in range(7)]
        await origin.completed(7)
        waiting = asyncio.create_task(running.agent.send("POST", "/pay/holds", {"n": 99}, run="r99"))
        await _until(lambda: _pool(running)["waiting"] == 1)
        waiting.cancel()
        await _until(lambda: _pool(running)["waiting"] == 0)
        hold.set()
        await asyncio.gather(*busy)
        assert _pool(running)["in_flight"] == 0
        assert origin.ledger.total == 7


async def test_a_caller_who_leaves_a_read_cancels_the_tools_work(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("GET /slow", Hang())
        call = asyncio.create_task(running.agent.send("GET", "/plain/slow"))
        request = await origin.received()
        call.cancel()
        await asyncio.wait_for(request.gone.wait(), 5)
        await _until(lambda: _pool(running)["in_flight"] == 0)


async def test_events_stream_through_one_by_one(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        feed = Feed()
        origin.on("GET /events", Answer(200, feed, ((b"Content-Type", b"text/event-stream"),), framing="chunked"))
        reader, writer = await running.agent.open()
        writer.write(running.agent.head("GET", "/plain/events"))
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            feed.send(b"data: %d\n\n" % number)
            assert b"data: %d" % number in await reader.readuntil(b"\n\n")
        feed.end()
        assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")
        writer.close()


async def test_64_mib_both_ways(tmp_path: Path) -> None:
    size = 64 << 20
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /big", Answer(200, lambda: pattern(size), declared_length=size))
        reader, writer = await running.agent.open()
        writer.write(running.agent.head("POST", "/plain/big", length=size))

        async def upload() -> None:
            async for piece in pattern(size):
                writer.write(piece)
                await writer.drain()

        sending = asyncio.create_task(upload())
        head = await reader.readuntil(b"\r\n\r\n")
        await sending
        assert b" 200 " in head
        digest, left = hashlib.sha256(), size
        while left:
            piece = await reader.read(min(left, 1 << 20))
            assert piece
            digest.update(piece)
            left -= len(piece)
        assert digest.hexdigest() == pattern_digest(size)
        assert origin.requests[0].digest == pattern_digest(size)
        writer.close()


async def test_a_larger_body_is_refused_and_names_the_setting(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        reader, writer = await running.agent.open()
        writer.write(running.agent.head("POST", "/plain/big", length=(64 << 20) + 1))
        answer = await read_answer(reader)
        writer.close()
        assert answer.status == 413
        assert "limits.body" in answer.json["detail"]
        assert origin.requests == []


async def test_a_truncated_read_looks_truncated(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("GET /cut", Answer(200, b"x" * 1000, stop_after=10))
        answer = await running.agent.send("GET", "/plain/cut")
        assert answer.is_truncated


async def test_a_truncated_answer_to_a_write_is_in_doubt(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        origin.on("POST /holds", Answer(201, b"x" * 1000, stop_after=10))
        answer = await running.agent.send("POST", "/keyless/holds", {"n": 1}, run="r1")
        assert answer.code == "ERR_OUTCOME_UNKNOWN"
        assert origin.ledger.total == 1


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/pya/holds", 404, "ERR_UNKNOWN_TOOL"),
        ("/pay/holds/../payouts", 422, "ERR_INVALID_ARGUMENTS"),
        ("/pay/holds/%2e%2e/payouts", 422, "ERR_INVALID_ARGUMENTS"),
        ("/pay/hold%2Fs", 422, "ERR_INVALID_ARGUMENTS"),
    ],
)
async def test_bad_targets_are_refused_and_nothing_is_sent(tmp_path: Path, target: str, status: int, code: str) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answer = await running.agent.send("POST", target, {"n": 1})
        assert (answer.status, answer.code) == (status, code)
        assert origin.requests == []
        assert (await running.operator.send("GET", "/api/v1/trajectories")).json == {"trajectories": []}


async def test_a_near_miss_names_the_tool(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answer = await running.agent.send("POST", "/pya/holds", {"n": 1})
        assert "Did you mean pay" in answer.json["detail"]


@pytest.mark.parametrize(
    "headers",
    [
        [("Seawall-Trajectory", "../x")],
        [("Idempotency-Key", "a b")],
        [("Seawall-Agent", "é")],
        [("Seawall-Trajectory", "")],
    ],
)
async def test_bad_headers_are_refused_and_nothing_is_sent(tmp_path: Path, headers: list[tuple[str, str]]) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        answer = await running.agent.send("POST", "/pay/holds", {"n": 1}, headers=headers)
        assert answer.code == "ERR_INVALID_ARGUMENTS"
        assert origin.requests == []


async def test_refusals_carry_every_field_of_the_contract(tmp_path: Path) -> None:
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        await running.agent.send("POST", "/pay/payouts", {"n": 1}, run="r1")
        answer = await running.agent.send("POST", "/pay/payouts", {"n": 2}, run="r1")
        told = answer.json
        assert answer.status == 409
        assert answer["Content-Type"] == "application/problem+json"
        assert told.keys() >= {
            "type", "title", "status", "detail", "code", "class", "retryable", "retry_after_ms",
            "dispatched", "dependency_id", "trajectory", "step", "directive",
        }  # fmt: skip
        assert (told["code"], told["dispatched"], told["trajectory"], told["retryable"]) == (
            "ERR_PIVOT_ORDER",
            "no",
            "r1",
            False,
        )
        assert answer["x-should-retry"] == "false"
        assert len(origin.requests) == 1


async def _until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0)


def _pool(running: object) -> dict[str, object]:
    return running.gateway._stages.admission.statistics()["saas"]  # type: ignore[attr-defined,no-any-return]
