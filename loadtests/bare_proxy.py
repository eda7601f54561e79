"""The proxy that ratios are quoted against: a reverse proxy as people write it with aiohttp, and nothing more.

`web.Application` with one catch-all route, one `ClientSession`, bodies streamed both ways. No access log, no limits, no
timeouts beyond the session's own; no journal, no breaker. Run with `--loop uvloop` it has the gateway's event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping

import click
import uvloop
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict

__all__ = ["main"]

_HOP_BY_HOP = frozenset(
    ("connection", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
     "transfer-encoding", "upgrade")
)  # fmt: skip


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in _HOP_BY_HOP:
            kept.add(name, value)
    return kept


def _forward(
    session: ClientSession, upstream: str, tls_upstream: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with session.request(
            request.method,
            (tls_upstream if request.raw_path.startswith("/tls/") else upstream) + request.raw_path,
            headers=_end_to_end(request.headers),
            data=request.content if request.can_read_body else None,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers)
            )
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    return handle


async def _serve(upstream: str, tls_upstream: str, ca: str | None) -> None:
    trust = ssl.create_default_context(cafile=ca)
    async with ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=3600, ssl=trust),
        timeout=ClientTimeout(total=60),
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
    ) as session:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", _forward(session, upstream, tls_upstream))
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        host, port = runner.addresses[0]
        print(json.dumps({"listen": f"{host}:{port}"}), flush=True)
        await asyncio.Event().wait()


@click.command()
@click.option("--upstream", required=True, help="Base URL of the tool.")
@click.option("--tls-upstream", default="", help="Base URL of the tool for paths that begin with /tls/.")
@click.option("--ca", help="Certificate of the authority that the TLS upstream is under.")
@click.option("--loop", type=click.Choice(["asyncio", "uvloop"]), default="asyncio", help="Event loop to run on.")
def main(upstream: str, tls_upstream: str, ca: str | None, loop: str) -> None:
    """Serve until killed; prints where it listens as one line of JSON."""
    (uvloop.run if loop == "uvloop" else asyncio.run)(_serve(upstream, tls_upstream, ca))


if __name__ == "__main__":
    main()
