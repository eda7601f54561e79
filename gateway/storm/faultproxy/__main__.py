"""Run fault proxies as a process of their own; prints where everything listens as one line of JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
import yaml
from aiohttp import web

from gateway.storm.faultproxy.api import FaultProxies, api
from gateway.storm.faultproxy.proxy import HOST

__all__ = ["main"]


@click.command()
@click.option("--proxy", "links", multiple=True, metavar="NAME=HOST:PORT", help="A link to a tool. May be repeated.")
@click.option("--api", "port", default=0, show_default=True, help="Port of the HTTP interface; 0 is any free one.")
@click.option("--seed", default=0, show_default=True, help="Where chance begins.")
@click.option("--script", type=click.Path(exists=True, dir_okay=False), help="YAML list of faults over time.")
def main(links: tuple[str, ...], port: int, seed: int, script: str | None) -> None:
    """Put links that can fail in front of tools on this machine."""
    asyncio.run(_serve(links, port, seed, None if script is None else yaml.safe_load(Path(script).read_text())))


async def _serve(links: tuple[str, ...], port: int, seed: int, script: object) -> None:
    proxies = FaultProxies(seed)
    for link in links:
        name, _, upstream = link.partition("=")
        await proxies.create(name, upstream)
    runner = web.AppRunner(api(proxies), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, port).start()
    where = f"{HOST}:{runner.addresses[0][1]}"
    told = {name: f"{HOST}:{proxy.port}" for name, proxy in proxies.proxies.items()}
    print(json.dumps({"listen": where, "api": where, "proxies": told}), flush=True)
    if script is not None:
        proxies.play(script)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
