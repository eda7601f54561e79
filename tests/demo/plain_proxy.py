"""What stands in the gateway's place in these tests: the same URLs, and nothing of what the gateway does."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from gateway.demo.world import authorization


@asynccontextmanager
async def plain_proxy(ports: Mapping[str, int]) -> AsyncIterator[str]:
    """Forward `/{tool}/{path}` to the tool's port with the tool's credential; yields the base URL."""

    async def forward(request: web.Request) -> web.Response:
        tool = request.match_info["tool"]
        url = f"http://127.0.0.1:{ports[tool]}/{request.match_info['path']}"
        headers = {"Authorization": authorization(tool), "Idempotency-Key": f"key-{request.path}"}
        if "Content-Type" in request.headers:
            headers["Content-Type"] = request.headers["Content-Type"]
        try:
            async with session.request(request.method, url, headers=headers, data=await request.read()) as answer:
                return web.Response(status=answer.status, body=await answer.read())
        except aiohttp.ClientError:
            return web.json_response({"code": "ERR_CIRCUIT_OPEN", "retry_after_ms": 10, "dispatched": "no"}, status=503)

    application = web.Application()
    application.router.add_route("*", "/{tool}/{path:.*}", forward)
    runner = web.AppRunner(application)
    async with aiohttp.ClientSession() as session:
        session._retry_connection = False  # aiohttp would repeat idempotent calls on its own
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
