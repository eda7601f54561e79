"""A child is waited for with a bound and never left behind."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from gateway.demo.process import Child, DemoError, free_port

SERVER = "from http.server import *; HTTPServer(('127.0.0.1', {port}), BaseHTTPRequestHandler).serve_forever()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def child(folder: Path, source: str, **options: object) -> Child:
    return Child("tool", (sys.executable, "-c", source), folder=folder, environment={}, **options)  # type: ignore[arg-type]


async def test_a_child_is_ready_once_it_answers_and_gone_once_stopped(tmp_path: Path) -> None:
    port = free_port()
    tool = child(tmp_path, SERVER.format(port=port))
    await tool.start(f"http://127.0.0.1:{port}/")
    pid = tool.pid
    assert pid is not None
    assert await tool.stop()
    assert await tool.stop(), "a second stop does nothing"
    assert not psutil.pid_exists(pid)


async def test_a_child_that_dies_at_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The viewer must learn why, without looking for files."""
    tool = child(tmp_path, "raise SystemExit('no database here')")
    with pytest.raises(DemoError, match=r"(?s)tool ended with 1; its log ends so:.no database here"):
        await tool.start(f"http://127.0.0.1:{free_port()}/")


async def test_a_child_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.demo.process.READY_S", 0.2)
    tool = child(tmp_path, "print('still thinking', flush=True); import time; time.sleep(60)")
    with pytest.raises(DemoError, match=r"tool is not ready after 0 s"):
        await tool.start(f"http://127.0.0.1:{free_port()}/")
    assert await tool.stop()


async def test_a_child_that_ignores_sigterm_is_killed_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.demo.process.STOP_S", 0.2)
    port = free_port()
    tool = child(tmp_path, STUBBORN + SERVER.format(port=port))
    await tool.start(f"http://127.0.0.1:{port}/")
    assert not await tool.stop()
    assert tool.pid is not None
    assert not psutil.pid_exists(tool.pid)


async def test_lines_of_stderr_are_handed_on_and_kept(tmp_path: Path) -> None:
    """The gateway's log is both shown and kept; a line without end does not stop the reading."""
    lines: list[str] = []
    port = free_port()
    noise = "import sys; sys.stderr.write('x' * 3_000_000 + '\\n'); print('hello', file=sys.stderr, flush=True); "
    tool = child(tmp_path, noise + SERVER.format(port=port), on_line=lines.append)
    await tool.start(f"http://127.0.0.1:{port}/")
    await tool.stop()
    assert "hello" in lines
    assert "hello" in tool.log.read_text()


async def test_a_cancelled_stop_still_ends_the_child(tmp_path: Path) -> None:
    """A second Ctrl-C must not leave a server behind."""
    port = free_port()
    tool = child(tmp_path, STUBBORN + SERVER.format(port=port))
    await tool.start(f"http://127.0.0.1:{port}/")
    stopping = asyncio.create_task(tool.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    tool.kill()
    await tool.stop()
    assert tool.pid is not None
    assert not psutil.pid_exists(tool.pid)
