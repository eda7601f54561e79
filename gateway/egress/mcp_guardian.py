"""Ends what a killed gateway leaves behind: its child processes, and what those have started.

Some servers go on when their stdin is closed, and a program that starts another one (`npx`) may leave that behind. So with
the first child comes a *guardian*: a small process at the other end of a pipe, on which it is told of each child that starts
and ends. However the gateway dies, the kernel closes our end; the guardian then asks the process groups left to end,
kills them a moment later, and ends itself.

Considered: `PR_SET_PDEATHSIG` is Linux's own, reaches the direct child alone, and has to be set between fork and exec.

This file is also the guardian's program. It is run by its path, isolated, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Final

__all__ = ["Guardian"]

GRACE_S: Final = 2.0
_STEP_S: Final = 0.05


class Guardian:
    """The gateway's side. Its process is started with the first child, and again should it have died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    @property
    def pid(self) -> int | None:
        """Of its process, if there is one."""
        return None if self._process is None else self._process.pid

    def watch(self, group: int) -> None:
        """Have a process group ended should we die. Where no guardian can be had, the child runs without."""
        self._groups.add(group)
        if not self._told(f"+{group}\n"):
            self.close()
            self._start()

    def leave(self, group: int) -> None:
        """A process group is gone: its number may be another one's from now on."""
        self._groups.discard(group)
        self._told(f"-{group}\n")

    def close(self) -> None:
        """End the guardian, which has nothing left to do. May be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.kill()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and file
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0
            )
            self._told("".join(f"+{group}\n" for group in self._groups))

    def _told(self, text: str) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(text.encode())
        except OSError:
            return False
        return True


# --- the guardian's own side


def guard() -> None:
    """Take down what is told, and once nobody can tell any more, end what is left."""
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for number in (signal.SIGTERM, signal.SIGKILL):
        groups = {group for group in groups if _signalled(group, number)}
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(_signalled(group, 0) for group in groups):
            time.sleep(_STEP_S)


def _signalled(group: int, number: int) -> bool:
    """Send a signal. Returns whether there is such a group still."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guard()
