"""nginx, HAProxy and Squid from Debian as oracles: what do careful proxies send on of a request?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.gateway.harness import serving
from tests.suites.rig import TOOL, program

__all__ = ["PROXIES", "proxy"]

PROXIES = ("seawall", "nginx", "haproxy", "squid")

NGINX = """
daemon off; master_process off; worker_processes 1; pid FOLDER/pid; error_log FOLDER/error.log;
events {}
http {
  access_log off; client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
  server {
    listen 127.0.0.1:LISTEN;
    location /tool/ { proxy_pass http://127.0.0.1:PORT/; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
"""
HAPROXY = """
global
  maxconn 100
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend in
  bind 127.0.0.1:LISTEN
  http-request replace-path /tool(/.*) \\1
  default_backend tool
backend tool
  server tool 127.0.0.1:PORT
"""
SQUID = """
http_port 127.0.0.1:LISTEN accel defaultsite=gateway no-vhost
cache_peer 127.0.0.1 parent PORT 0 no-query no-digest originserver name=tool
cache deny all
memory_cache_shared off
http_access allow all
cache_effective_user nobody
pid_filename none
access_log none
cache_store_log none
cache_log /dev/null
forwarded_for transparent
via off
shutdown_lifetime 0 seconds
max_filedescriptors 256
"""
_STARTS = {
    "nginx": (NGINX, "nginx-light", ("-c", "CONFIG", "-p", "FOLDER")),
    "haproxy": (HAPROXY, "haproxy", ("-f", "CONFIG", "-q")),
    "squid": (SQUID, "squid", ("-N", "-n", "seawallLISTEN", "-f", "CONFIG")),
}


@contextlib.asynccontextmanager
async def proxy(name: str, folder: Path, port: int) -> AsyncIterator[int]:
    """Run a proxy that has an origin on `port` under /tool/; yields its own port."""
    folder.mkdir()
    if name == "seawall":
        async with serving(folder, port, TOOL.replace("NAME", "tool")) as running:
            yield running.agent.port
        return
    listen = await _free_port()
    config = folder / "config"
    text, package, arguments = _STARTS[name]
    config.write_text(text.replace("FOLDER", str(folder)).replace("LISTEN", str(listen)).replace("PORT", str(port)))
    filled = [
        one.replace("CONFIG", str(config)).replace("FOLDER", str(folder)).replace("LISTEN", str(listen))
        for one in arguments
    ]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program(name, package), *filled, stdout=log, stderr=log)
    try:
        await _listening(listen, process, folder / "log")
        yield listen
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _listening(port: int, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            assert process.returncode is None, log.read_text()
            await asyncio.sleep(0.02)


async def _free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port
