"""Keeps the demo's tool servers on this machine; Python imports it by itself at their start (found through PYTHONPATH).

One of them listens on every interface and pickles its state to a fixed path in /tmp. Here any address that means "all"
becomes loopback, and files written straight into /tmp go to the demo's own folder, named by `SEAWALL_DEMO_FOLDER`.
"""

from __future__ import annotations

import builtins
import os
import socket
from typing import Any

_EVERY_INTERFACE = {"", "0.0.0.0", "::"}  # noqa: S104 - the addresses we avoid
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::ffff:127.0.0.1"}
_bind, _open = socket.socket.bind, builtins.open


def _bind_to_loopback(self: socket.socket, address: Any) -> None:
    if self.family in _LOOPBACK and address[0] in _EVERY_INTERFACE:
        address = (_LOOPBACK[socket.AddressFamily(self.family)], *address[1:])
    _bind(self, address)


def _open_in_folder(file: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(file, str) and os.path.dirname(file) == "/tmp":  # noqa: S108 - the path we avoid
        file = os.path.join(os.environ["SEAWALL_DEMO_FOLDER"], os.path.basename(file))
    return _open(file, *args, **kwargs)


socket.socket.bind = _bind_to_loopback  # type: ignore[assignment]
builtins.open = _open_in_folder
