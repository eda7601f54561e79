"""The gateway as the demo runs it: `seawall serve` in a process of its own, and its runs API."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gateway.demo.process import Child, DemoError, free_port
from gateway.demo.world import PAYMENTS_KEY, TOOLS, authorization

__all__ = ["Sidecar", "demo_manifest", "gateway_environment"]

COMMAND = ("-m", "gateway", "serve")
REQUEST_S = 30.0
UNWIND_S = 30.0
POLL_S = 0.1
SOURCE_ROOT = Path(__file__).resolve().parents[2]
_MANIFEST_PLACES = (SOURCE_ROOT / "config" / "demo.yaml", Path(__file__).with_name("demo.yaml"))
_SETTLING = frozenset({"preparing", "finalizing", "compensating", "running"})


def demo_manifest(ports: Mapping[str, int]) -> str:
    """Return the demo's manifest with each tool's upstream moved to the given port of loopback.

    Raises:
        DemoError: the manifest is not where it should be.
    """
    for place in _MANIFEST_PLACES:
        if place.exists():
            manifest = yaml.safe_load(place.read_text("utf-8"))
            break
    else:
        raise DemoError(f"the demo's manifest is missing; looked for {' and '.join(map(str, _MANIFEST_PLACES))}")
    for tool, port in ports.items():
        manifest["tools"][tool]["upstream"] = f"http://127.0.0.1:{port}"
    return yaml.safe_dump(manifest, sort_keys=False, allow_unicode=True)


class Sidecar:
    """The gateway's process and the few of its interfaces that whoever runs an agent uses."""

    def __init__(self, folder: Path, tool_ports: Mapping[str, int], on_log: Callable[[str], None]) -> None:
        listen, self._control = free_port(), free_port()
        self.base_url = f"http://127.0.0.1:{listen}"
        manifest, data = folder / "manifest.yaml", folder / "data"
        manifest.write_text(demo_manifest(tool_ports), "utf-8")
        data.mkdir(mode=0o700)
        command = (
            *(sys.executable, *COMMAND),
            *("--manifest", str(manifest), "--data", str(data)),
            *("--listen", f"127.0.0.1:{listen}", "--control", f"127.0.0.1:{self._control}"),
        )
        self.child = Child("gateway", command, folder=folder, environment=gateway_environment(), on_line=on_log)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            DemoError: it did not come up.
        """
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S))
        await self.child.start(f"http://127.0.0.1:{self._control}/readyz")

    async def stop(self) -> bool:
        """Let it drain and end it; True if it went by itself in time. May be called again."""
        if self._session is not None:
            await self._session.close()
        return await self.child.stop()

    async def run(self, name: str) -> dict[str, Any]:
        """Return the run as the gateway tells it."""
        return (await self._call("GET", f"/{name}"))[1]

    async def commit(self, name: str) -> str:
        """Close the run as done; return its state."""
        await self._call("POST", f"/{name}/commit", send={})
        return await self._settled(name)

    async def abort(self, name: str, reason: str) -> str:
        """Have the run undone; return its state once nothing moves any more."""
        await self._call("POST", f"/{name}/abort", send={"reason": reason})
        return await self._settled(name)

    async def _settled(self, name: str) -> str:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNWIND_S
        state = str((await self.run(name)).get("state"))
        while state in _SETTLING and loop.time() < deadline:
            await asyncio.sleep(POLL_S)
            state = str((await self.run(name)).get("state"))
        return state

    async def _call(self, method: str, path: str, *, send: object = None) -> tuple[int, dict[str, Any]]:
        assert self._session is not None, "start the gateway first"
        url = f"{self.base_url}/seawall/v1/trajectories{path}"
        try:
            async with self._session.request(method, url, json=send) as response:
                text = await response.text()
                if response.status >= 500 or response.status == 404:
                    raise DemoError(f"the gateway answered {response.status} to {method} {path}: {text[:300]}")
                document = await response.json(content_type=None) if text else {}
                return response.status, document if isinstance(document, dict) else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            tail = self.child.tail()
            raise DemoError(f"the gateway did not answer {method} {path}: {error}; its log ends so:\n{tail}") from error


def gateway_environment() -> dict[str, str]:
    """Return the parent's environment without its Seawall settings, with the tools' credentials and this very code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEAWALL_")}
    search_path = os.pathsep.join(filter(None, (str(SOURCE_ROOT), kept.get("PYTHONPATH"))))
    secrets = {f"SEAWALL_SECRET_{tool.upper()}": authorization(tool) for tool in TOOLS}
    return (
        kept
        | secrets
        | {
            "PYTHONPATH": search_path,
            "PYTHONUNBUFFERED": "1",
            "SEAWALL_SECRET_PAYMENTS": PAYMENTS_KEY,
            "SEAWALL_TELEMETRY_LOG_FORMAT": "json",
            "SEAWALL_TELEMETRY_LOG_LEVEL": "debug",
        }
    )
