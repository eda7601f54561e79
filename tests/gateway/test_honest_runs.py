"""Honest runs are never called loops: a corpus of traces, each sent through the whole gateway with the watchdog as it is.

A trace is what an agent sends and what its tool answers, in order. Add one for every false alarm that anybody meets. Beside
it stand dishonest ones, which must be seen, and how many calls of theirs may leave before.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import serving
from tests.origin import Answer, Exchange, Origin

MANIFEST = """
version: 1
domains:
  lab:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 1}
    breaker: {consecutive: 1000, window: 1000}
tools:
  lab:
    upstream: http://127.0.0.1:PORT
    domain: lab
    operations:
      make:
        match: POST /things
        tier: compensable
        compensator: {request: "DELETE /things/${response.json.id}"}
      remove: {match: "DELETE /things/{id}", tier: reversible, idempotent: true}
      put: {match: "PUT /files/{name}", tier: reversible, idempotent: true}
      renew: {match: "PUT /leases/{name}", tier: reversible, idempotent: true}
      run: {match: POST /tests, tier: reversible, watch: {metrics: {passing: response.json.passing}}}
      start: {match: "POST /jobs/{id}/start", tier: reversible, watch: {poll: 400}}
      job: {match: "GET /jobs/{id}", tier: read, watch: {poll: 400}}
"""

JSON = ((b"Content-Type", b"application/json"),)


@dataclass(frozen=True)
class Turn:
    """One call, and what the tool answers to it. After one with `reports` the agent reports its state or metrics."""

    line: str
    body: object = None
    status: int = 200
    answer: object = None
    reports: dict[str, Any] | None = None


def _polls(count: int, path: str, answers: Callable[[int], Any], status: int = 200) -> list[Turn]:
    return [Turn(f"GET {path}", None, status, answers(n)) for n in range(count)]


def polling_a_job_that_takes_long() -> Iterable[Turn]:
    yield Turn("POST /things", {"job": 1}, 201, {"id": "j1"})
    yield from _polls(300, "/jobs/j1", lambda n: {"state": "running"})
    yield Turn("GET /jobs/j1", None, 200, {"state": "done"})


def polling_undeclared_with_progress() -> Iterable[Turn]:
    yield from _polls(300, "/progress", lambda n: {"percent": n // 3})


def waiting_for_something_to_appear() -> Iterable[Turn]:
    yield from _polls(60, "/reports/7", lambda n: {"error": "not found"}, 404)
    yield Turn("GET /reports/7", None, 200, {"rows": 3})


def pagination() -> Iterable[Turn]:
    for page in range(150):
        yield Turn(f"GET /rows?page={page}", None, 200, {"rows": []})


def the_same_page_read_again_between_steps() -> Iterable[Turn]:
    for number in range(80):
        yield Turn("GET /config", None, 200, {"v": 1})
        yield Turn(f"PUT /files/f{number}", {"text": number})


def retries_after_a_fix() -> Iterable[Turn]:
    for fix in range(8):
        yield Turn("POST /tests", {}, 422, {"error": "AssertionError in test_port", "request_id": f"r{fix}"})
        yield Turn("PUT /files/a.py", {"text": f"attempt {fix}"})
    yield Turn("POST /tests", {}, 200, {"passing": 12})


def a_fix_that_is_taken_back_each_time() -> Iterable[Turn]:
    """Try one, see it fail, take it back, try another: the first state returns every time."""
    for fix in range(8):
        yield Turn("PUT /files/a.py", {"text": f"attempt {fix}"}, reports={"state": f"attempt {fix}"})
        yield Turn("POST /tests", {"fix": fix}, 422, {"error": f"{fix} failed"})
        yield Turn("PUT /files/a.py", {"text": "original"}, reports={"state": "original"})


def two_noes_and_a_correction_over_and_over() -> Iterable[Turn]:
    for number in range(20):
        for _ in range(2):
            yield Turn("POST /things", {"port": str(number)}, 422, {"error": "port must be a number"})
        yield Turn("POST /things", {"port": number}, 201, {"id": f"t{number}"})


def the_same_thing_made_many_times() -> Iterable[Turn]:
    for number in range(60):
        yield Turn("POST /things", {"kind": "worker"}, 201, {"id": f"w{number}"})


def a_lease_that_is_renewed() -> Iterable[Turn]:
    for number in range(80):
        yield Turn("PUT /leases/l1", {"ttl": 30})
        if number % 4 == 0:
            yield Turn(f"GET /rows?page={number}", None, 200, {})


def a_lock_around_each_piece_of_work() -> Iterable[Turn]:
    for number in range(15):
        yield Turn("POST /things", {"lock": "x"}, 201, {"id": f"lock{number}"})
        yield Turn(f"PUT /files/f{number}", {"text": "work"})
        yield Turn(f"DELETE /things/lock{number}")


def a_lock_around_each_page() -> Iterable[Turn]:
    for number in range(15):
        yield Turn("POST /things", {"lock": "x"}, 201, {"id": f"lock{number}"})
        yield Turn(f"GET /rows?page={number}", None, 200, {})
        yield Turn(f"DELETE /things/lock{number}")


def a_temporary_thing_used_twice() -> Iterable[Turn]:
    for number in range(2):
        yield Turn("POST /things", {"tmp": True}, 201, {"id": f"tmp{number}"})
        yield Turn("GET /scratch", None, 200, {})
        yield Turn(f"DELETE /things/tmp{number}")


def waiting_to_be_let_in() -> Iterable[Turn]:
    """A write that is declared to be asked until it is taken."""
    for _ in range(40):
        yield Turn("POST /jobs/j1/start", {}, 409, {"error": "the database is not ready"})
    yield Turn("POST /jobs/j1/start", {})


def a_tool_that_is_down_for_a_while() -> Iterable[Turn]:
    for _ in range(8):
        yield Turn("GET /rows", None, 503, {"error": "down"})
    yield Turn("GET /rows", None, 200, {})


def slow_but_real_progress() -> Iterable[Turn]:
    for number in range(60):
        yield Turn(f"PUT /files/f{number % 7}", {"text": number})
        if number % 10 == 9:
            yield Turn("POST /tests", {"n": number}, 200, {"passing": number // 10})


def a_metric_that_dips_before_it_climbs() -> Iterable[Turn]:
    for number, passing in enumerate([10, 4, 5, 6, 7, 8, 9, 9, 10, 11, 3, 6, 9, 12]):
        yield Turn("PUT /files/a.py", {"text": number})
        yield Turn("POST /tests", {"n": number}, 200, {"passing": passing})


def looking_for_a_file_in_many_places() -> Iterable[Turn]:
    for number in range(60):
        yield Turn(f"GET /tree/{number}", None, 404, {"error": "not found"})


def a_long_debugging_session_with_counts() -> Iterable[Turn]:
    """The same command each time; how many tests fail is what tells its answers apart."""
    for failing in range(30, 0, -1):
        yield Turn("POST /tests", {}, 422, {"error": f"{failing} tests failed"})
        yield Turn(f"PUT /files/m{failing}.py", {"text": "fix"})


HONEST = [
    polling_a_job_that_takes_long, polling_undeclared_with_progress, waiting_for_something_to_appear, pagination,
    the_same_page_read_again_between_steps, retries_after_a_fix, a_fix_that_is_taken_back_each_time,
    two_noes_and_a_correction_over_and_over, the_same_thing_made_many_times, a_lease_that_is_renewed,
    a_lock_around_each_piece_of_work, a_lock_around_each_page, a_temporary_thing_used_twice, waiting_to_be_let_in,
    a_tool_that_is_down_for_a_while, slow_but_real_progress, a_metric_that_dips_before_it_climbs,
    looking_for_a_file_in_many_places, a_long_debugging_session_with_counts,
]  # fmt: skip


# --- runs that go in circles


def the_same_invalid_call() -> Iterable[Turn]:
    for number in range(85):
        yield Turn("POST /things", {"port": "x"}, 422, {"error": "port must be a number", "request_id": f"r{number}"})


def forbidden_and_asked_again() -> Iterable[Turn]:
    for _ in range(30):
        yield Turn("GET /secret", None, 403, {"error": "no"})


def line_42_back_and_forth() -> Iterable[Turn]:
    for number in range(30):
        text = ("new", "old")[number % 2]
        yield Turn("PUT /files/a.py", {"text": text}, reports={"state": text})


def made_and_removed_for_ever() -> Iterable[Turn]:
    for number in range(30):
        yield Turn("POST /things", {"tmp": True}, 201, {"id": f"tmp{number}"})
        yield Turn(f"DELETE /things/tmp{number}")


def edits_that_help_nothing() -> Iterable[Turn]:
    for number in range(60):
        yield Turn("PUT /files/a.py", {"text": number})
        yield Turn("POST /tests", {"n": number}, 200, {"passing": 3 + number % 2})


def the_same_fix_announced_as_another() -> Iterable[Turn]:
    for number in range(40):
        yield Turn("POST /tests", {}, 422, {"error": "AssertionError"})
        yield Turn("PUT /files/a.py", {"text": f"{number}"})


DISHONEST = [
    (the_same_invalid_call, 3), (forbidden_and_asked_again, 3), (line_42_back_and_forth, 4),
    (made_and_removed_for_ever, 6), (edits_that_help_nothing, 24), (the_same_fix_announced_as_another, 24),
]  # fmt: skip


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as made:
        yield made


async def play(folder: Path, origin: Origin, trace: Iterable[Turn], *, named: bool = True) -> list[dict[str, Any]]:
    """Send a trace to its end, or to the first loop. Returns the problems that were answered in place of the tool."""
    current: list[Turn] = []

    async def answer(exchange: Exchange) -> None:
        turn = current[-1]
        await Answer(turn.status, json.dumps(turn.answer if turn.answer is not None else {}).encode(), JSON)(exchange)

    problems: list[dict[str, Any]] = []
    async with serving(folder, origin.port, MANIFEST) as running:
        for turn in trace:
            current.append(turn)
            method, _, target = turn.line.partition(" ")
            origin.on(f"{method} {target.partition('?')[0]}", answer)
            run = "r1" if named else None
            said = await running.agent.send(method, f"/lab{target}", turn.body, run=run)
            if (said.get("content-type") or "").startswith("application/problem"):
                problems.append(said.json)
            if turn.reports is not None and named:
                told = await running.agent.send("POST", "/seawall/v1/trajectories/r1/state", turn.reports)
                assert told.status == 200
            if any(one["code"] == "SEMANTIC_WATCHDOG_INTERRUPT" for one in problems):
                break
    return problems


@pytest.mark.parametrize("trace", HONEST, ids=lambda trace: trace.__name__)
@pytest.mark.parametrize("named", [True, False], ids=["named", "implicit"])
async def test_an_honest_run_is_never_called_a_loop(
    tmp_path: Path, origin: Origin, trace: Callable[[], Iterable[Turn]], named: bool
) -> None:
    problems = await play(tmp_path, origin, trace(), named=named)
    assert [one for one in problems if one["code"] == "SEMANTIC_WATCHDOG_INTERRUPT"] == []


@pytest.mark.parametrize(("trace", "most"), DISHONEST, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_run_that_goes_in_circles_is_seen_in_time(
    tmp_path: Path, origin: Origin, trace: Callable[[], Iterable[Turn]], most: int
) -> None:
    problems = await play(tmp_path, origin, trace())
    assert problems, "it was never seen"
    assert problems[-1]["code"] == "SEMANTIC_WATCHDOG_INTERRUPT"
    assert len(origin.requests) == most
