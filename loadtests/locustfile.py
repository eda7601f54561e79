"""Agent-like load with Locust: many agents that think, call in runs, read refusals and wait as long as they are told.

    pip install locust
    locust -f loadtests/locustfile.py --headless -u 128 -r 50 -t 60s --host http://127.0.0.1:8080

`SEAWALL_STORM_READ` and `SEAWALL_STORM_WRITE` say what is called (`GET /payments/v1/items`). Locust is a closed loop:
an agent that waits for an answer makes no new call, so an overload looks milder than it is. For numbers use `seawall storm`
or `loadtests/k6/storm.js`, whose calls come when they are due; for how agents live with a gateway, this.
"""
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import uuid

from locust import FastHttpUser, LoadTestShape, between, events, task

_READ = os.environ.get("SEAWALL_STORM_READ", "GET /index/items").split(" ", 1)
_WRITE = os.environ.get("SEAWALL_STORM_WRITE", "")
_LONGEST_WAIT_S = 30.0


class Agent(FastHttpUser):
    """An agent: a run of calls, a pause to think, the next run."""

    abstract = True
    wait_time = between(0.2, 1.0)
    trajectory = ""
    calls = 0

    def on_start(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another run."""
        self.trajectory, self.calls = f"locust-{uuid.uuid4().hex[:12]}", 0

    def call(self, method: str, path: str, body: object = None) -> None:
        """Make a call; a refusal is noted by its code and heeded."""
        self.calls += 1
        headers = {"Seawall-Trajectory": self.trajectory}
        with self.client.request(
            method, path, json=body, headers=headers, name=f"{method} {path}", catch_response=True
        ) as answer:
            code, wait_s = _refusal(answer)
            if code is None:
                return
            answer.failure(code)
        _pause(min(wait_s, _LONGEST_WAIT_S))


class Reader(Agent):
    """Reads, as most agents do most of the time."""

    weight = 4

    @task
    def read(self) -> None:
        self.call(*_READ)
        if self.calls >= 20:
            self.begin()


class Impatient(Agent):
    """Sends what failed again at once, three times, whatever it was told."""

    weight = 1
    wait_time = between(0.0, 0.2)

    @task
    def insist(self) -> None:
        for _ in range(3):
            with self.client.request(
                *_READ, headers={"Seawall-Trajectory": self.trajectory}, name="impatient", catch_response=True
            ) as answer:
                code, _ = _refusal(answer)
                if code is None:
                    return
                answer.failure(code)


class Writer(Agent):
    """Writes, each under a run of its own that it closes."""

    weight = 1 if _WRITE else 0

    @task
    def write(self) -> None:
        if not _WRITE:
            return
        method, path = _WRITE.split(" ", 1)
        self.call(method, path, {"amount": 10, "note": uuid.uuid4().hex})
        if self.calls >= 5:
            self.client.post(f"/seawall/v1/trajectories/{self.trajectory}/commit", name="commit")
            self.begin()


class Wave(LoadTestShape):
    """Eight agents, then all of them at once, then eight again. Used with `--class-picker` or SEAWALL_STORM_WAVE=1."""

    abstract = not os.environ.get("SEAWALL_STORM_WAVE")
    steps = ((20, 8), (40, 128), (60, 8))

    def tick(self) -> tuple[int, float] | None:
        for until, users in self.steps:
            if self.get_run_time() < until:
                return users, 50.0
        return None


def _refusal(answer: object) -> tuple[str | None, float]:
    """Return the code of a refusal and how long to wait, or None."""
    status = answer.status_code
    if 0 < status < 400:
        return None, 0.0
    try:
        told = json.loads(answer.text or "{}")
    except ValueError:
        told = {}
    return str(told.get("code") or f"HTTP {status}"), float(told.get("retry_after_ms") or 0) / 1000


def _pause(seconds: float) -> None:
    import gevent

    gevent.sleep(seconds)


@events.quitting.add_listener
def _fail_on_bugs(environment: object, **_: object) -> None:
    """Refusals are answers; only ERR_INTERNAL and lost connections make the exit code 1."""
    errors = environment.stats.errors.values()
    bad = [error for error in errors if "ERR_INTERNAL" in str(error.error) or "HTTP 0" in str(error.error)]
    environment.process_exit_code = 1 if bad else 0
