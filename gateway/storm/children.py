"""Processes of a live storm: started with this interpreter, told apart by the one line of JSON they print, ended by id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Child", "start_python"]

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 30.0
_LINE_BYTES = 256 << 20


class Child:
    """A process that has said where it listens: `told` is what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, told: Mapping[str, Any]) -> None:
        self._process = process
        self.told = told
        self.pid = process.pid

    async def ask(self, question: object) -> Any:
        """Send a line of JSON and return the line that answers it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the storm has ended before its time")
        return json.loads(line)

    async def kill(self) -> None:
        """End it at once, without a word. May be repeated."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Ask it to end, and end it if it does not. May be repeated."""
        await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> None:
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        try:
            await asyncio.wait_for(self._process.wait(), 10.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def start_python(
    module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None, command: tuple[str, ...] = ()
) -> Child:
    """Start a module of ours and wait until it has said where it listens.

    Raises:
        RuntimeError: it ended, or said nothing in time; holds the end of what it wrote.
    """
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(command or (sys.executable, "-m", module)),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            limit=_LINE_BYTES,
        )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        return Child(process, json.loads(line))
    except (TimeoutError, ValueError):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        raise RuntimeError(f"{module} did not start:\n{_tail(log)}") from None


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
