"""The agent's process, seen from outside: its lines come as records, and it goes on when told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["AgentProcess"]

AGENT_FILE = Path(__file__).with_name("agent.py")
END_S = 5.0


class AgentProcess:
    """One run of the agent: an isolated Python with the standard library, a base URL and a task."""

    def __init__(self, base_url: str, headers: Mapping[str, str], task: Mapping[str, str], log: Path) -> None:
        arguments = [f"--{name}={value}" for name, value in task.items()]
        arguments += [f"--header={name}:{value}" for name, value in headers.items()]
        self._command = (sys.executable, "-IS", str(AGENT_FILE), f"--base-url={base_url}", "--paced", *arguments)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        """Start it and yield what it tells, until it ends. After each `step` it waits for `go`."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def go(self) -> None:
        """Let it take the step that it has announced."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def end(self) -> int:
        """Return its exit code, once it has ended; one that has closed its output and still runs after 5 s is killed."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._process.wait(), END_S)
        await self.close()
        return -9

    async def close(self) -> None:
        """End it at once, if it runs. May be called again."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
