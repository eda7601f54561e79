"""The command's exit codes, its output's shape, and that it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.demo.checks import Check
from gateway.demo.events import Event
from gateway.demo.main import demo
from gateway.demo.process import DemoError


class ToldStory:
    """A story whose end is known; it keeps the folder it was given and whether it was closed."""

    end: list[Check] | Exception = []  # noqa: RUF012 - set by each test
    folder: Path
    closed: bool

    def __init__(self, folder: Path, show: Callable[[float, Event], None], *, pace_s: float) -> None:
        ToldStory.folder, ToldStory.closed = folder, False
        self.elapsed_s, self._show = 0.5, show

    async def tell(self) -> list[Check]:
        assert ToldStory.folder.is_dir()
        self._show(0.1, Event(actor="demo", kind="scene", text="Once"))
        if isinstance(ToldStory.end, Exception):
            raise ToldStory.end
        return ToldStory.end

    async def close(self) -> None:
        ToldStory.closed = True

    def kill(self) -> None:
        assert ToldStory.closed


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def run(end: list[Check] | Exception, *arguments: str) -> Any:
        ToldStory.end = end
        monkeypatch.setattr("gateway.demo.story.Story", ToldStory)
        result = CliRunner().invoke(demo, arguments)
        assert ToldStory.closed
        return result

    return run


GOOD, BAD = Check(claim="it holds", holds=True), Check(claim="it is whole", holds=False, found="a crack")


def test_exit_code_0_means_that_every_check_held(tell: Callable[..., Any]) -> None:
    result = tell([GOOD, GOOD])
    assert (result.exit_code, "all 2 checks hold" in result.stdout) == (0, True)
    assert not ToldStory.folder.exists()


def test_exit_code_1_comes_with_what_was_not_as_promised(tell: Callable[..., Any]) -> None:
    result = tell([GOOD, BAD])
    assert result.exit_code == 1
    assert "✗ it is whole (found: a crack)" in result.stdout
    assert "1 of 2 checks do not hold" in result.stdout


def test_exit_code_3_says_why_the_demo_could_not_run(tell: Callable[..., Any]) -> None:
    result = tell(DemoError("payments ended with 1"))
    assert result.exit_code == 3
    assert result.stderr == "the demo cannot go on: payments ended with 1\n"
    assert not ToldStory.folder.exists()


def test_a_demo_that_takes_too_long_is_ended(tell: Callable[..., Any]) -> None:
    result = tell(TimeoutError())
    assert result.exit_code == 3
    assert "was not done after 120 s" in result.stderr


def test_json_ends_with_the_verdict(tell: Callable[..., Any]) -> None:
    lines = [json.loads(line) for line in tell([GOOD, BAD], "--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["scene", "verdict"]
    assert lines[-1]["data"] == {
        "ok": False,
        "checks": [
            {"claim": "it holds", "holds": True, "found": ""},
            {"claim": "it is whole", "holds": False, "found": "a crack"},
        ],
    }


def test_keep_keeps_the_folder_and_names_it(tell: Callable[..., Any]) -> None:
    result = tell([GOOD], "--keep")
    assert f"kept: {ToldStory.folder}" in result.stderr
    ToldStory.folder.rmdir()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_signal_ends_everything_that_was_started(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Ctrl-C in the middle leaves no server, no agent and no folder."""
    command = [sys.executable, "-c", "from gateway.demo.main import demo; demo()", "--json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the first scene is told before the servers start"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors.decode().splitlines()[-1:]) == (
        code,
        ["interrupted; everything that was started has been ended"],
    )
    assert list(tmp_path.iterdir()) == []


def test_it_stops_when_nobody_reads_any_more(tmp_path: Path) -> None:
    """`seawall demo | head -1` must not leave servers running for half a minute."""
    command = f"{sys.executable} -c 'from gateway.demo.main import demo; demo()' --json | head -c 1"
    done = subprocess.run(
        command, shell=True, capture_output=True, env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=30
    )
    assert done.stdout == b"{"
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_module_loads_without_its_heavy_parts() -> None:
    """`seawall --help` imports this file and must stay fast."""
    source = "import sys, gateway.demo.main; print(*{'aiohttp', 'rich', 'yaml', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == ""
