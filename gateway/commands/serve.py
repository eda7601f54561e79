"""`seawall serve`: run a gateway until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING
from gateway.commands.options import with_server_options

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.core.server import ServerSettings
    from gateway.telemetry import Telemetry

__all__ = ["LOCK_WAIT_S", "serve"]

LOCK_WAIT_S = 2.0
"""A process that was killed holds its lock until the system has taken it down: milliseconds, more with much memory. Longer
than that it is alive, and starting beside it is a mistake to be told soon."""


@click.command()
@with_server_options
def serve(config: str | None, given: dict[tuple[str, ...], str]) -> None:
    """Run the gateway in front of the tools of a manifest.

    Prints one JSON line with the addresses once it is ready. SIGTERM and SIGINT drain and stop it; SIGHUP loads the
    manifest again.

    Example: seawall serve --manifest manifest.yaml --data var
    """
    from gateway.config.errors import ConfigError
    from gateway.config.server import load_server

    try:
        settings = load_server(config, options=given)
    except ConfigError as error:
        _fail(str(error))
    sys.exit(_run(settings))


def _run(settings: ServerSettings) -> int:
    from gateway.telemetry import Telemetry, TracingUnavailable

    try:
        telemetry = Telemetry.configured(settings.telemetry)
    except TracingUnavailable as error:
        _fail(str(error))
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, telemetry))
    finally:
        telemetry.shutdown()


async def _serve(settings: ServerSettings, telemetry: Telemetry) -> int:
    from gateway.app import Gateway, StartError
    from gateway.config.errors import ConfigError
    from gateway.journal import JournalError
    from gateway.workers.collector import tune

    gateway = Gateway(settings, telemetry=telemetry, lock_wait_s=LOCK_WAIT_S)
    try:
        await gateway.start()
    except (ConfigError, StartError, JournalError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot listen: {error}. Is another gateway running? Choose another --listen or --control.")
    tune()
    return await _until_told(gateway)


async def _until_told(gateway: Gateway) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    reloads: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = loop.create_task(gateway.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    # Only now: who is told that the gateway listens may send it a signal at once.
    _announce(gateway)
    stopping, failing = loop.create_task(stop.wait()), loop.create_task(gateway.failed())
    done, waiting = await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await gateway.stop()
    if failing in done:
        click.echo("seawall: the journal's disk failed; started anew, what is really on it is read", err=True)
        return EXIT_FINDING
    return 0


def _announce(gateway: Gateway) -> None:
    import json

    click.echo(json.dumps({"listen": gateway.listen, "control": gateway.control}))
    sys.stdout.flush()


def _fail(text: str) -> None:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
