"""The HTTP interface: toxiproxy's paths and documents, so that its clients work, and a log, resets and scripts.

GET  /version · GET|POST /proxies · POST /populate · GET|POST|PATCH|DELETE /proxies/P · GET|POST /proxies/P/toxics
GET|POST|PATCH|DELETE /proxies/P/toxics/T · POST /reset
GET|DELETE /proxies/P/requests    what was seen     POST /script    faults over time
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from json import JSONDecodeError
from typing import Any

from aiohttp import web

from gateway import __version__
from gateway.storm.faultproxy.proxy import HOST, Proxy
from gateway.storm.faultproxy.script import acts_of, play
from gateway.storm.faultproxy.toxics import Toxic, ToxicError

__all__ = ["FaultProxies", "ProxyExists", "api"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProxyExists(ToxicError):
    """The name is taken."""


class FaultProxies:
    """All links of one process."""

    def __init__(self, seed: int = 0) -> None:
        self.proxies: dict[str, Proxy] = {}
        self._seed = seed
        self._playing: asyncio.Task[None] | None = None

    async def create(
        self, name: str, upstream: str, *, port: int = 0, is_http: bool = True, is_enabled: bool = True
    ) -> Proxy:
        """Make a link and let it listen, unless it is to be down.

        Raises:
            ProxyExists: the name is taken.
            ToxicError: the upstream is not HOST:PORT on this machine.
        """
        host, _, number = upstream.rpartition(":")
        if host not in (HOST, "localhost", "[::1]") or not number.isdigit():
            raise ToxicError(f"`upstream` is 127.0.0.1:PORT, not {upstream!r}: faults are for this machine only")
        if name in self.proxies:
            raise ProxyExists(f"there is a proxy {name!r} already")
        proxy = self.proxies[name] = Proxy(
            name, (host.strip("[]"), int(number)), port=port, seed=self._seed, is_http=is_http
        )
        await proxy.enable()
        if not is_enabled:
            await proxy.disable()
        return proxy

    async def remove(self, name: str) -> None:
        """Take a link away. Raises KeyError if there is none."""
        await self.proxies[name].disable()
        del self.proxies[name]

    async def reset(self) -> None:
        """Enable every link, remove every toxic, end the script."""
        if self._playing is not None:
            self._playing.cancel()
            self._playing = None
        for proxy in self.proxies.values():
            proxy.toxics.clear()
            await proxy.enable()

    def play(self, script: object) -> None:
        """Play a script from now on, instead of one that plays.

        Raises:
            ToxicError: it is none.
        """
        acts = acts_of(script)
        if self._playing is not None:
            self._playing.cancel()
        self._playing = asyncio.get_running_loop().create_task(play(acts, self.proxies))

    async def close(self) -> None:
        """End everything. May be repeated."""
        if self._playing is not None:
            self._playing.cancel()
        for proxy in self.proxies.values():
            await proxy.disable()


def api(proxies: FaultProxies) -> web.Application:
    """Return the application that steers the links."""
    routes = _Routes(proxies)
    app = web.Application(middlewares=[_told])
    app.add_routes(
        [
            web.get("/version", routes.version),
            web.get("/proxies", routes.list),
            web.post("/proxies", routes.create),
            web.post("/populate", routes.populate),
            web.get("/proxies/{proxy}", routes.show),
            web.post("/proxies/{proxy}", routes.update),
            web.patch("/proxies/{proxy}", routes.update),
            web.delete("/proxies/{proxy}", routes.delete),
            web.get("/proxies/{proxy}/toxics", routes.toxics),
            web.post("/proxies/{proxy}/toxics", routes.add),
            web.get("/proxies/{proxy}/toxics/{toxic}", routes.toxic),
            web.post("/proxies/{proxy}/toxics/{toxic}", routes.change),
            web.patch("/proxies/{proxy}/toxics/{toxic}", routes.change),
            web.delete("/proxies/{proxy}/toxics/{toxic}", routes.remove),
            web.get("/proxies/{proxy}/requests", routes.requests),
            web.delete("/proxies/{proxy}/requests", routes.forget),
            web.post("/reset", routes.reset),
            web.post("/script", routes.script),
        ]
    )
    return app


@web.middleware
async def _told(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ProxyExists as error:
        return web.json_response({"error": str(error), "status": 409}, status=409)
    except (ToxicError, JSONDecodeError) as error:
        return web.json_response({"error": str(error), "status": 400}, status=400)
    except KeyError as error:
        return web.json_response({"error": f"there is no {error}", "status": 404}, status=404)


class _Routes:
    def __init__(self, proxies: FaultProxies) -> None:
        self._all = proxies

    def _proxy(self, request: web.Request) -> Proxy:
        return self._all.proxies[request.match_info["proxy"]]

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": f"seawall-{__version__}"})

    async def list(self, request: web.Request) -> web.Response:
        return web.json_response({name: _document(proxy) for name, proxy in self._all.proxies.items()})

    async def create(self, request: web.Request) -> web.Response:
        return web.json_response(_document(await self._create(await _body(request))), status=201)

    async def populate(self, request: web.Request) -> web.Response:
        """Have the links of a list: those that are there already stay, under another upstream or port they are made anew."""
        asked = await request.json()
        if not isinstance(asked, Sequence) or not all(isinstance(one, dict) for one in asked):
            raise ToxicError("a list of proxies is expected")
        made = []
        for one in asked:
            known = self._all.proxies.get(str(one.get("name")))
            if known is not None and not _is_same(known, one):
                await self._all.remove(known.name)
                known = None
            made.append(_document(known or await self._create(one)))
        return web.json_response({"proxies": made}, status=201)

    async def _create(self, asked: dict[str, Any]) -> Proxy:
        port = str(asked.get("listen") or "0").rpartition(":")[2]
        if not port.isdigit() or "name" not in asked:
            raise ToxicError("a proxy needs `name`, `upstream`, and `listen` such as 127.0.0.1:0")
        return await self._all.create(
            str(asked["name"]),
            str(asked.get("upstream")),
            port=int(port),
            is_http=bool(asked.get("http", True)),
            is_enabled=bool(asked.get("enabled", True)),
        )

    async def show(self, request: web.Request) -> web.Response:
        return web.json_response(_document(self._proxy(request)))

    async def update(self, request: web.Request) -> web.Response:
        proxy, asked = self._proxy(request), await _body(request)
        if "enabled" in asked:
            await (proxy.enable() if asked["enabled"] else proxy.disable())
        return web.json_response(_document(proxy))

    async def delete(self, request: web.Request) -> web.Response:
        await self._all.remove(request.match_info["proxy"])
        return web.Response(status=204)

    async def toxics(self, request: web.Request) -> web.Response:
        return web.json_response([toxic.document() for toxic in self._proxy(request).toxics.values()])

    async def add(self, request: web.Request) -> web.Response:
        proxy, toxic = self._proxy(request), Toxic.of(await _body(request))
        proxy.add(toxic)
        return web.json_response(toxic.document())

    async def toxic(self, request: web.Request) -> web.Response:
        return web.json_response(self._proxy(request).toxics[request.match_info["toxic"]].document())

    async def change(self, request: web.Request) -> web.Response:
        proxy, name = self._proxy(request), request.match_info["toxic"]
        before = proxy.toxics[name].document()
        asked = await _body(request)
        attributes = {**before["attributes"], **(asked.get("attributes") or {})}
        toxic = Toxic.of({**before, **asked, "name": name, "attributes": attributes})
        proxy.add(toxic)
        return web.json_response(toxic.document())

    async def remove(self, request: web.Request) -> web.Response:
        del self._proxy(request).toxics[request.match_info["toxic"]]
        return web.Response(status=204)

    async def requests(self, request: web.Request) -> web.Response:
        return web.json_response([asdict(seen) for seen in self._proxy(request).seen])

    async def forget(self, request: web.Request) -> web.Response:
        self._proxy(request).seen.clear()
        return web.Response(status=204)

    async def reset(self, request: web.Request) -> web.Response:
        await self._all.reset()
        return web.Response(status=204)

    async def script(self, request: web.Request) -> web.Response:
        self._all.play(await request.json())
        return web.Response(status=204)


def _is_same(proxy: Proxy, asked: dict[str, Any]) -> bool:
    port = str(asked.get("listen") or "0").rpartition(":")[2]
    known = f"{proxy.upstream[0]}:{proxy.upstream[1]}"
    return known == str(asked.get("upstream")) and port in ("0", str(proxy.port))


async def _body(request: web.Request) -> dict[str, Any]:
    body = await request.json()
    if not isinstance(body, dict):
        raise ToxicError("a JSON object is expected")
    return body


def _document(proxy: Proxy) -> dict[str, Any]:
    return {
        "name": proxy.name,
        "listen": f"{HOST}:{proxy.port}",
        "upstream": f"{proxy.upstream[0]}:{proxy.upstream[1]}",
        "enabled": proxy.is_enabled,
        "http": proxy.is_http,
        "toxics": [toxic.document() for toxic in proxy.toxics.values()],
    }
