"""The guardian of child processes, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.egress.mcp_guardian import Guardian

LIMIT_S = 20


class Group:
    """A process in a group of its own that waits for signals."""

    def __init__(self, *, is_stubborn: bool = False) -> None:
        ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if is_stubborn else ""
        program = f"import signal; {ignore} print('here', flush=True); signal.pause()"
        self.process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"here\n"

    @property
    def ended_by(self) -> int:
        return -self.process.wait(LIMIT_S)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    started: list[Group] = [Group(), Group(is_stubborn=True), Group()]
    yield started
    for group in started:
        group.process.kill()
        group.process.wait()
        assert group.process.stdout is not None
        group.process.stdout.close()


def died(guardian: Guardian) -> None:
    """What the kernel does for a gateway that is killed: nothing holds our end of the pipe any more."""
    assert guardian._process is not None
    assert guardian._process.stdin is not None
    guardian._process.stdin.close()
    guardian._process.wait(LIMIT_S)


def test_what_is_left_is_asked_and_then_killed_and_what_has_gone_is_let_be(groups: list[Group]) -> None:
    """A number that was given back may be another program's by now."""
    polite, stubborn, gone = groups
    guardian = Guardian()
    for group in groups:
        guardian.watch(group.process.pid)
    guardian.leave(gone.process.pid)
    died(guardian)
    assert polite.ended_by == signal.SIGTERM
    assert stubborn.ended_by == signal.SIGKILL
    assert gone.process.poll() is None
    guardian.close()


def test_a_guardian_that_died_is_followed_by_one_that_knows_everything(groups: list[Group]) -> None:
    """The next child that starts finds out."""
    first, second, _ = groups
    guardian = Guardian()
    guardian.watch(first.process.pid)
    before = guardian.pid
    assert before is not None
    assert guardian._process is not None
    os.kill(before, signal.SIGKILL)
    guardian._process.wait(LIMIT_S)
    guardian.watch(second.process.pid)
    assert guardian.pid != before
    died(guardian)
    assert (first.ended_by, second.ended_by) == (signal.SIGTERM, signal.SIGKILL)
    guardian.close()


def test_a_gateway_that_closes_ends_its_guardian(groups: list[Group]) -> None:
    """It ends its children itself, in its own time."""
    guardian = Guardian()
    guardian.watch(groups[0].process.pid)
    guardian.close()
    guardian.close()
    assert guardian.pid is None
    assert groups[0].process.poll() is None


def test_without_a_guardian_the_child_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more processes are allowed, or the interpreter is gone."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    guardian = Guardian()
    guardian.watch(1)
    guardian.leave(1)
    assert guardian.pid is None
    guardian.close()
