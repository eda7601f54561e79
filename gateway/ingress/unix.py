"""A Unix socket to listen on, open to whom its mode lets write it and to nobody else, not even for a moment."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

__all__ = ["bind_unix"]


def bind_unix(path: Path, mode: int) -> socket.socket:
    """Return a bound socket with `mode`; the path is replaced if what is there is a socket on which nobody listens.

    Raises:
        OSError: somebody listens there, it is something else, or the place cannot be used.
    """
    _refuse_living(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        path.unlink(missing_ok=True)
        # Linux gives the file the mode that the socket has when it is bound, less the umask.
        os.fchmod(bound.fileno(), mode)
        bound.bind(str(path))
        path.chmod(mode)
    except BaseException:
        bound.close()
        raise
    return bound


def _refuse_living(path: Path) -> None:
    """Raise if somebody listens on a socket: removing it would leave them deaf."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is no socket", str(path))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except BlockingIOError:
        pass
    raise OSError(errno.EADDRINUSE, "somebody listens there", str(path))
