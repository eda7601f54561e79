"""What the servers offer, as far as it was agreed to: listings, kept for a while, and the pins that guard them.

A listing is read when a client asks for it and when a call needs it; a server that says that its list has changed, or
whose listing is older than `FRESH_S`, is asked again. A server that cannot be asked is left alone for a moment, and its
last listing stands meanwhile: one dead server takes away only its own tools, and calls of them still reach the breaker.

Pins lie in the journal's small memory, by server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.clock import Clock
from gateway.core.fault import Broken
from gateway.core.mcp import Message, members, replaced
from gateway.core.mcp_operations import described
from gateway.core.mcp_tools import Change, Definition, Pins, definitions
from gateway.core.message import Reply
from gateway.core.tool import Catalog, ToolSpec
from gateway.egress import Timings
from gateway.egress.mcp import McpEgress
from gateway.egress.mcp_link import Answer, Exchange
from gateway.journal import Journal

__all__ = ["Listed", "Listings"]

FRESH_S = 300.0
REST_S = 2.0
SOON_S = 5.0
PAGES_MAX = 100
TIMINGS = Timings(connect_s=5.0, first_byte_s=15.0, idle_s=15.0, total_s=15.0)
_PINS = "mcp-pins/"


@dataclass(slots=True)
class Listed:
    """What a server offers. `problem` says why it could not be asked."""

    tools: dict[str, Definition] = field(default_factory=dict)
    at: float = 0.0
    problem: str | None = None
    is_complete: bool = False


class Listings:
    """All servers' tools."""

    def __init__(self, catalog: Callable[[], Catalog], egress: McpEgress, journal: Journal, clock: Clock) -> None:
        self._catalog = catalog
        self._egress = egress
        self._journal = journal
        self._clock = clock
        self._listed: dict[str, tuple[str, Listed]] = {}
        self._pins: dict[str, Pins] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._asking: set[asyncio.Task[Listed]] = set()

    async def load(self) -> None:
        """Read the pins."""
        for name, data in (await self._journal.recall(_PINS)).items():
            tool = name.removeprefix(_PINS)
            self._pins[tool] = Pins.loaded(tool, data)

    def changed(self, tool: str) -> None:
        """A server says that its list has changed."""
        self._listed.pop(tool, None)

    def held(self, tool: str, name: str) -> bool:
        """Whether a tool waits for an operator."""
        pins = self._pins.get(tool)
        return pins is not None and name in pins.held

    async def of(self, tool: ToolSpec, exchange: Exchange) -> Listed:
        """Return what a server offers, asked again if that is due. Never raises for a server that cannot be asked."""
        if tool.mcp is None:
            return Listed({one.name: one for one in described(tool)}, is_complete=True)
        async with self._locks.setdefault(tool.name, asyncio.Lock()):
            digest, listed = self._listed.get(tool.name, ("", Listed()))
            if digest == tool.digest and self._is_fresh(listed):
                return listed
            fresh = await self._ask(tool, exchange)
            if fresh.problem is not None and digest == tool.digest:
                fresh.tools = listed.tools
            self._listed[tool.name] = (tool.digest, fresh)
            return fresh

    async def soon(self, tool: ToolSpec, exchange: Exchange) -> Listed:
        """Return what a server offers, or what is known of it if it takes too long: it must not hold up the others."""
        task = asyncio.get_running_loop().create_task(self.of(tool, exchange))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        await asyncio.wait((task,), timeout=SOON_S)
        if task.done():
            return task.result()
        digest, known = self._listed.get(tool.name, ("", Listed()))
        tools = known.tools if digest == tool.digest else {}
        return Listed(tools, problem=f"it did not list its tools within {SOON_S:g} s")

    async def close(self) -> None:
        """Stop asking. May be repeated."""
        tasks = list(self._asking)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_fresh(self, listed: Listed) -> bool:
        age_s = self._clock.now() - listed.at
        return age_s < REST_S if listed.problem is not None else listed.is_complete and age_s < FRESH_S

    async def find(self, tool: ToolSpec, name: str, exchange: Exchange) -> tuple[Definition | None, Listed]:
        """Return a tool's definition, None if its server does not list it (or cannot be asked: see `problem`)."""
        digest, listed = self._listed.get(tool.name, ("", Listed()))
        if digest != tool.digest or name not in listed.tools or self._clock.now() - listed.at >= FRESH_S:
            listed = await self.of(tool, exchange)
        return listed.tools.get(name), listed

    async def _ask(self, tool: ToolSpec, exchange: Exchange) -> Listed:
        found: dict[str, Definition] = {}
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            params = None if cursor is None else f'{{"cursor":{json.dumps(cursor)}}}'
            answer = await self._egress.request(tool, "tools/list", params, Exchange(client=exchange.client), TIMINGS)
            if (problem := _problem(answer)) is not None:
                return Listed(found, self._clock.now(), problem)
            assert isinstance(answer, Message)
            try:
                page = definitions(answer.result or "{}")
            except ValueError as error:
                return Listed(found, self._clock.now(), f"its answer is not a list of tools: {error}")
            found.update({one.name: one for one in page})
            following = answer.value.get("nextCursor")
            if not isinstance(following, str) or following == cursor:
                break
            cursor = following
        self._see(tool.name, list(found.values()))
        self._egress.task_alone[tool.name] = frozenset(name for name, one in found.items() if one.is_task_alone)
        return Listed(found, self._clock.now(), is_complete=True)

    def page(self, tool: ToolSpec, answer: Message) -> str:
        """Return a page of a server's own listing without what is held; the very text if nothing is.

        Raises:
            ValueError: it is no listing.
        """
        result = answer.result or "{}"
        offered = definitions(result)
        self._see(tool.name, offered)
        known = self._listed.setdefault(tool.name, (tool.digest, Listed(at=self._clock.now())))[1]
        known.tools.update({one.name: one for one in offered})
        if not any(self.held(tool.name, one.name) for one in offered):
            return result
        kept = [one.value for one in offered if not self.held(tool.name, one.name)]
        return replaced(result, {"tools": json.dumps(kept)})

    def visible(self, tool: ToolSpec, listed: Listed) -> list[Definition]:
        """Return the tools that are not held, in order of name."""
        return [one for name, one in sorted(listed.tools.items()) if not self.held(tool.name, name)]

    def _see(self, tool: str, offered: Sequence[Definition]) -> None:
        pins = self._pins.setdefault(tool, Pins(tool))
        if pins.see(offered):
            self._journal.remember(_PINS + tool, pins.dumped())

    # --- for operators

    def changes(self) -> list[Change]:
        """Return every definition that waits."""
        return [change for tool in sorted(self._pins) for change in self._pins[tool].changes()]

    def pinned(self) -> dict[str, int]:
        """Return how many tools of each server are pinned."""
        return {tool: len(pins.agreed) for tool, pins in sorted(self._pins.items())}

    async def accept(self, tool: str, names: Sequence[str] | None) -> list[str] | None:
        """Agree to what a server offers now; durable when this returns. Returns the names, None for an unknown server."""
        pins = self._pins.get(tool)
        if pins is None:
            return None
        accepted = pins.accept(names)
        if accepted:
            self._journal.remember(_PINS + tool, pins.dumped())
            await self._journal.flush()
        return accepted


def _problem(answer: Answer) -> str | None:
    if isinstance(answer, Broken):
        return answer.detail
    if isinstance(answer, Reply):
        return f"it answered {answer.status}"
    if answer.result is None:
        return str(answer.value.get("message") or "it answered with an error")
    return None if "tools" in members(answer.result) else "its answer lists no tools"
