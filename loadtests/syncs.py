"""How often a process has the disk synced, by the kernel's own word (strace), so that no gateway is asked about itself."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

__all__ = ["CountedSyncs", "syncs_can_be_counted"]

_SYNC = re.compile(r"\b(?:fsync|fdatasync|sync_file_range)(?:\(| resumed).*= 0$", re.MULTILINE)


def syncs_can_be_counted() -> bool:
    """Return whether strace is installed."""
    return shutil.which("strace") is not None


class CountedSyncs:
    """Counts the successful syncs of a process and its threads between `with` and its end.

    Attributes:
        syncs: how many there were; known at the end.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self.syncs = 0
        self._pid, self._file = pid, folder / f"syncs-{pid}"

    def __enter__(self) -> CountedSyncs:
        command = [
            "strace",
            "-f",
            "-e",
            "trace=fsync,fdatasync,sync_file_range",
            "-o",
            str(self._file),
            "-p",
            str(self._pid),
        ]
        self._strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self._strace.stderr is not None
        self._strace.stderr.readline()  # "Process N attached": only now is everything counted
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._strace.send_signal(signal.SIGINT)
        self._strace.communicate()
        self.syncs = len(_SYNC.findall(self._file.read_text()))
