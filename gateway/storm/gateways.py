"""The gateways of a live storm: one process each, killed and started again where a scenario says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gateway.storm.children import Child, start_python
from gateway.storm.recording import Kills
from gateway.storm.scenario import FaultSettings

__all__ = ["Gateways"]


class Gateways:
    """As many gateways as a storm has, each with a journal of its own. They keep their ports when they are started again."""

    def __init__(self, folder: Path, manifest: str, backend: str) -> None:
        self._folder, self._backend = folder, backend
        (folder / "manifest.yaml").write_text(manifest)
        self._children: list[Child] = []
        self._places: list[tuple[str, str]] = []
        self.kills = Kills()

    @property
    def urls(self) -> list[str]:
        """Base URL of each, in which `{tool}` stands for the tool's name."""
        return [f"{listen}/{{tool}}" for listen, _ in self._places]

    @property
    def controls(self) -> list[str]:
        """Control plane of each."""
        return [control for _, control in self._places]

    async def start(self, count: int) -> None:
        """Start them.

        Raises:
            RuntimeError: one did not start.
        """
        for number in range(count):
            child = await self._start(number, "127.0.0.1:0", "127.0.0.1:0")
            self._children.append(child)
            self._places.append((child.told["listen"], child.told["control"]))

    async def _start(self, number: int, listen: str, control: str) -> Child:
        return await start_python(
            "gateway", "serve", "--manifest", str(self._folder / "manifest.yaml"),
            "--data", str(self._folder / f"data-{number}"), "--listen", listen, "--control", control,
            "--journal-backend", self._backend, log=self._folder / f"gateway-{number}.log",
        )  # fmt: skip

    async def kill_as_told(self, faults: Sequence[FaultSettings], began: float) -> None:
        """Kill each gateway when the faults say so; `began` is the loop's time that they count from.

        Raises:
            RuntimeError: one did not start again.
        """
        kills = [fault for fault in faults if fault.kind == "kill"]
        await asyncio.gather(
            *(self._kill_often(number, fault, began) for number in range(len(self._children)) for fault in kills)
        )

    async def _kill_often(self, number: int, fault: FaultSettings, began: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, began + fault.start - loop.time()))
        while loop.time() < began + fault.end:
            await self._kill(number, began)
            if fault.every is None:
                return
            await asyncio.sleep(fault.every)

    async def _kill(self, number: int, began: float) -> None:
        listen, control = (urlsplit(url).netloc for url in self._places[number])
        at, struck = asyncio.get_running_loop().time() - began, time.monotonic()
        await self._children[number].kill()
        self._children[number] = await self._start(number, listen, control)
        self.kills.add(at, number, time.monotonic() - struck)

    async def stop(self) -> None:
        """End them all. May be repeated."""
        await asyncio.gather(*(child.stop() for child in self._children))
