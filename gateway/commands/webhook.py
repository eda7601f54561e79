"""`seawall webhook`: the admission webhook that puts the sidecar into pods as they are created."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import click

from gateway.commands import EXIT_FINDING

if TYPE_CHECKING:
    from gateway.core.server import Address
    from gateway.kubernetes.settings import InjectSettings
    from gateway.kubernetes.webhook import Certificate

__all__ = ["webhook"]


@click.command()
@click.option("--settings", "file", type=click.Path(), help="How the sidecar is put in; see docs/kubernetes.md.")
@click.option("--tls", type=click.Path(), required=True, help="Folder with tls.crt and tls.key.")
@click.option("--listen", default="127.0.0.1:8443", show_default=True, help="HOST:PORT.")
def webhook(file: str | None, tls: str, listen: str) -> None:
    """Answer an API server's AdmissionReviews over TLS until told to stop. The chart installs it.

    Prints one JSON line with the address once it listens.
    """
    import asyncio
    import ssl
    from pathlib import Path

    from gateway.config.errors import ConfigError
    from gateway.core.server import Address
    from gateway.kubernetes.options import inject_settings
    from gateway.kubernetes.webhook import Certificate

    try:
        settings = inject_settings(None if file is None else Path(file))
        certificate = Certificate(Path(tls))
        address = Address.parse(listen)
    except ConfigError as error:
        _fail(str(error))
    except ssl.SSLError as error:
        _fail(f"--tls {tls}: the certificate and the key cannot be used: {error}")
    except OSError as error:
        _fail(f"--tls {tls}: {error}. Mount a kubernetes.io/tls Secret there.")
    except ValueError as error:
        _fail(f"--listen {listen}: {error}")
    asyncio.run(_serve(settings, certificate, address))


async def _serve(settings: InjectSettings, certificate: Certificate, address: Address) -> None:
    import asyncio
    import json
    import signal

    from aiohttp import web

    from gateway.kubernetes.webhook import webhook_app

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(webhook_app(settings), access_log=None, handle_signals=False, shutdown_timeout=10.0)
    await runner.setup()
    fresh = asyncio.create_task(certificate.keep_fresh())
    try:
        await web.TCPSite(runner, address.host or None, address.port, ssl_context=certificate.context).start()
        click.echo(json.dumps({"listen": f"https://{address.host or '127.0.0.1'}:{runner.addresses[0][1]}"}))
        sys.stdout.flush()
        await stop.wait()
    finally:
        fresh.cancel()
        await runner.cleanup()


def _fail(text: str) -> NoReturn:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
