"""Gateways that can be killed hundreds of times: what a start needs is imported and built once, then each start is a fork.

A line of JSON on standard input, the arguments of `seawall serve`, starts one; its process id comes back, then the gateway's
own line with its addresses. Each is a process of its own with a journal of its own; SIGKILL is SIGKILL.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Start gateways until standard input ends; those that still run then are killed."""
    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children = []
    # Not iterating over the file: it would read ahead, and a fork would inherit what it read.
    while line := sys.stdin.readline():
        arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _serve(arguments)
        children.append(pid)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _warm_up() -> None:
    """Import and build what every gateway would import and build anew, and keep it out of each one's first collection."""
    import uvloop  # noqa: F401

    import gateway.app
    import gateway.commands.serve
    import gateway.telemetry.export  # noqa: F401
    from gateway.config.errors import ConfigError
    from gateway.config.server import load_server

    with contextlib.suppress(ConfigError):
        load_server(None, options={})
    gc.collect()
    gc.freeze()


def _serve(arguments: list[str]) -> None:
    from gateway.cli import main as seawall

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    try:
        seawall(["serve", *arguments], standalone_mode=False)
    except SystemExit as leaving:
        os._exit(int(leaving.code or 0))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
