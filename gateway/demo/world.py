"""The demo's world: two real tool servers, and what they say when asked directly, past the gateway.

Payments are `localstripe` (Stripe's API; GPL, so a process of its own that is never imported). Volumes, names and
clusters are `moto`'s EFS, S3 and EKS. moto picks the service by the credential scope of the Authorization header and
checks no signature, so a fixed header will do.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from gateway.demo.process import Child, DemoError, free_port
from gateway.demo.snapshot import Snapshot

__all__ = ["PAYMENTS_KEY", "TOOLS", "World", "authorization", "cluster"]

PAYMENTS_KEY = "sk_test_seawall_demo"
REQUEST_S = 10.0
LOOPBACK_FOLDER = Path(__file__).with_name("loopback")
TOOLS = ("payments", "volumes", "storage", "clusters")

_SCOPE = {"volumes": "elasticfilesystem", "storage": "s3", "clusters": "eks"}
_OPEN_HOLDS = frozenset({"requires_capture", "processing", "requires_action", "requires_confirmation"})


class World:
    """The tool servers. Start it, look at it, stop it."""

    def __init__(self, folder: Path) -> None:
        self._ports = {"payments": free_port(), "cloud": free_port()}
        modules = {
            "payments": ("localstripe", "--from-scratch", "--port"),
            "cloud": ("moto.server", "-H127.0.0.1", "-p"),
        }
        self.children = tuple(
            Child(
                name,
                (sys.executable, "-m", *modules[name], str(self._ports[name])),
                folder=folder,
                environment=_tool_environment(folder),
            )
            for name in modules
        )
        self._session: aiohttp.ClientSession | None = None

    def port(self, tool: str) -> int:
        """Where the tool itself listens."""
        return self._ports["payments" if tool == "payments" else "cloud"]

    async def start(self) -> None:
        """Start both servers and wait until they answer.

        Raises:
            DemoError: a server package is missing, or a server did not come up.
        """
        missing = [name for name in ("localstripe", "moto", "flask") if importlib.util.find_spec(name) is None]
        if missing:
            raise DemoError(f"the demo needs {', '.join(missing)}: install them with `pip install 'seawall[demo]'`")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S))
        starts = (child.start(self._ready_url(child.name)) for child in self.children)
        for result in await asyncio.gather(
            *starts, return_exceptions=True
        ):  # all of them have ended, one way or another
            if isinstance(result, BaseException):
                raise result

    async def stop(self) -> None:
        """End both servers. May be called again."""
        if self._session is not None:
            await self._session.close()
        await asyncio.gather(*(child.stop() for child in self.children), return_exceptions=True)

    async def furnish(self, *, card_number: str = "4242424242424242") -> str:
        """Put in what was there before: a neighbour's volume, name, file and cluster, and the customer's card.

        Returns the card's id. Not repeatable in one world.
        """
        await self.call("volumes", "POST", "/2015-02-01/file-systems", send={"CreationToken": "neighbour-volume"})
        await self.call("storage", "PUT", "/neighbour")
        await self.call("storage", "PUT", "/neighbour/config.json", send={"owner": "somebody else"})
        await self.call("clusters", "POST", "/clusters", send=cluster("production"))
        card = {"number": card_number, "exp_month": "12", "exp_year": "2034", "cvc": "123"}
        made = await self.call(
            "payments",
            "POST",
            "/v1/payment_methods",
            form={"type": "card"} | {f"card[{name}]": value for name, value in card.items()},
        )
        return str(made["id"])

    async def look(self) -> Snapshot:
        """Ask the tool servers themselves what they hold."""
        volumes = await self.call("volumes", "GET", "/2015-02-01/file-systems")
        names = _tags("Name", await self.text("storage", "GET", "/"))
        files = {}
        for name in names:
            for key in _tags("Key", await self.text("storage", "GET", f"/{name}?list-type=2")):
                files[f"{name}/{key}"] = await self.text("storage", "GET", f"/{name}/{key}")
        clusters = await self.call("clusters", "GET", "/clusters")
        payments = (await self.call("payments", "GET", "/v1/payment_intents?limit=100"))["data"]
        charges = (await self.call("payments", "GET", "/v1/charges?limit=100"))["data"]
        return Snapshot(
            volumes={volume["FileSystemId"]: volume["CreationToken"] for volume in volumes["FileSystems"]},
            names=frozenset(names),
            files=files,
            clusters=frozenset(clusters["clusters"]),
            holds={payment["id"]: payment["amount"] for payment in payments if payment["status"] in _OPEN_HOLDS},
            taken={
                charge["payment_intent"]: charge["amount"] - charge["amount_refunded"]
                for charge in charges
                if charge["captured"]
            },
            released=frozenset(payment["id"] for payment in payments if payment["status"] == "canceled"),
        )

    async def call(
        self, tool: str, method: str, path: str, *, send: object = None, form: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Make one call straight to a tool and return its JSON object, or an empty one."""
        document = await self._exchange(tool, method, path, send=send, form=form, is_text=False)
        return document if isinstance(document, dict) else {}

    async def text(self, tool: str, method: str, path: str) -> str:
        """Make one call straight to a tool and return the answer as text."""
        return str(await self._exchange(tool, method, path, is_text=True))

    async def _exchange(
        self,
        tool: str,
        method: str,
        path: str,
        *,
        send: object = None,
        form: Mapping[str, str] | None = None,
        is_text: bool,
    ) -> object:
        assert self._session is not None, "start the world first"
        url = f"http://127.0.0.1:{self.port(tool)}{path}"
        headers = {"Authorization": authorization(tool)}
        try:
            async with self._session.request(method, url, headers=headers, json=send, data=form) as response:
                text = await response.text()
                if response.status >= 400:
                    raise DemoError(f"{tool} answered {response.status} to {method} {path}: {text[:200]}")
                if is_text:
                    return text
                return await response.json(content_type=None) if text else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"{tool} did not answer {method} {path}: {error}") from error

    def _ready_url(self, server: str) -> str:
        path = {"payments": "/", "cloud": "/moto-api/"}[server]
        return f"http://127.0.0.1:{self._ports[server]}{path}"


def cluster(name: str) -> dict[str, object]:
    """Return the body that asks EKS for a cluster."""
    return {
        "name": name,
        "roleArn": "arn:aws:iam::123456789012:role/workspace",
        "resourcesVpcConfig": {"subnetIds": ["subnet-1", "subnet-2"]},
    }


def authorization(tool: str) -> str:
    """Return the credential that a tool wants in its Authorization header."""
    if tool == "payments":
        return f"Bearer {PAYMENTS_KEY}"
    scope = f"demo/20260101/us-east-1/{_SCOPE[tool]}/aws4_request"
    return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"


def _tool_environment(folder: Path) -> dict[str, str]:
    search_path = os.pathsep.join(filter(None, (str(LOOPBACK_FOLDER), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": search_path, "SEAWALL_DEMO_FOLDER": str(folder), "TMPDIR": str(folder)}


def _tags(tag: str, xml: str) -> list[str]:
    """Return the text of each `<tag>`; S3's flat lists need no more."""
    return re.findall(rf"<{tag}>([^<]*)</{tag}>", xml)
