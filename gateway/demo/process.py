"""A child process of the demo: started, waited for until it answers, and ended by its process id whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

__all__ = ["Child", "DemoError", "free_port"]

READY_S = 30.0
POLL_S = 0.05
STOP_S = 10.0
TAIL_LINES = 15
MAX_LINE_BYTES = 1024 * 1024


class DemoError(Exception):
    """The demo cannot go on; the message says what happened and what to do next."""


class Child:
    """One server process. Its output goes to `{name}.log` in the folder, and stderr line by line to `on_line`, if given."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self._command, self._folder, self._environment = tuple(command), folder, dict(environment)
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def log(self) -> Path:
        """Where its output is."""
        return self._folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Its process id, once started."""
        return self._process.pid if self._process else None

    async def start(self, ready_url: str) -> None:
        """Start it and wait until `ready_url` answers with anything but 503.

        Raises:
            DemoError: it ended, or did not answer within 30 s; the message holds the end of its log.
        """
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.PIPE if self._on_line else log,
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
        if self._on_line:
            self._pump = asyncio.create_task(self._read_lines(self._on_line))
        await self._wait_ready(ready_url)

    async def stop(self) -> bool:
        """End it: SIGTERM, and after 10 s SIGKILL. True if it went in time. May be called again."""
        process = self._process
        if process is None:
            return True
        went = True
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                went = False
            finally:
                self.kill()
                await process.wait()
        if self._pump:
            await self._pump
        return went

    def kill(self) -> None:
        """End it at once, if it runs; the last resort when `stop` was itself broken off."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def tail(self) -> str:
        """Return the last lines of its log."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return "(no output)"
        return "\n".join(lines[-TAIL_LINES:]) or "(no output)"

    async def _wait_ready(self, url: str) -> None:
        assert self._process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_S
        async with aiohttp.ClientSession() as session:
            while not await _answers(session, url):
                if self._process.returncode is not None:
                    raise DemoError(
                        f"{self.name} ended with {self._process.returncode}; its log ends so:\n{self.tail()}"
                    )
                if loop.time() > deadline:
                    raise DemoError(f"{self.name} is not ready after {READY_S:.0f} s; its log ends so:\n{self.tail()}")
                await asyncio.sleep(POLL_S)

    async def _read_lines(self, on_line: Callable[[str], None]) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self.log.open("ab", buffering=0) as log:
            while True:
                try:
                    line = await self._process.stderr.readline()
                except ValueError:
                    continue  # a line past the limit: asyncio has dropped it
                if not line:
                    return
                log.write(line)
                on_line(line.decode("utf-8", "replace").rstrip())


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2.0)) as response:
            return response.status != 503
    except (aiohttp.ClientError, TimeoutError):
        return False


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
