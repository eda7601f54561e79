"""The plot without its hero: told against a proxy that does nothing of what the gateway does, it must end and say so."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.demo.events import Event
from gateway.demo.process import DemoError
from gateway.demo.story import Story
from tests.demo.plain_proxy import plain_proxy


class PlainSidecar:
    """Stands where the gateway stands, and knows of no runs."""

    def __init__(self, folder: Path, tool_ports: Mapping[str, int], on_log: Callable[[str], None]) -> None:
        self.base_url, self.child = "", self
        self._ports, self._stack = tool_ports, AsyncExitStack()

    async def start(self) -> None:
        self.base_url = await self._stack.enter_async_context(plain_proxy(self._ports))

    async def stop(self) -> bool:
        await self._stack.aclose()
        return True

    async def run(self, name: str) -> dict[str, Any]:
        return {}

    async def commit(self, name: str) -> str:
        return "unknown"

    async def abort(self, name: str, reason: str) -> str:
        return "unknown"

    def kill(self) -> None:
        return


async def told(tmp_path: Path) -> tuple[Story, list[Event], list[str]]:
    events: list[Event] = []
    story = Story(tmp_path, lambda offset_s, event: events.append(event), pace_s=0)
    try:
        checks = await story.tell()
    finally:
        await story.close()
        story.kill()
    return story, events, [check.claim for check in checks if not check.holds]


async def test_without_the_gateway_the_story_ends_and_names_every_promise_that_was_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were these checks to hold here, they would prove nothing."""
    monkeypatch.setattr("gateway.demo.story.Sidecar", PlainSidecar)
    story, events, broken = await told(tmp_path)
    assert broken == [
        "a cut connection was repeated by the gateway, and the agent never knew",
        "each payment in the failed run carried the idempotency key of its step",
        "the run ended cleanly aborted",
        "its effects were undone in reverse order, each once",
        "the tool servers say that the world is as before",
        "every step of the second run succeeded at once",
        "each payment in the second run carried the idempotency key of its step",
        "the run is committed",
        "the money was taken exactly once, by a call sent once",
        "the tool servers hold what the run made, and nothing else has changed",
    ]
    first_proof = next(event for event in events if event.kind == "proof")
    rows: Any = first_proof.data["rows"]
    assert [row["what"] for row in rows if not row["holds"]] == ["volumes", "names", "files", "money on hold"]
    assert [event.kind for event in events if event.actor == "link"] == ["link_cut", "link_down", "link_up"]
    pids = [child.pid for child in story.world.children]
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


async def test_a_gateway_that_does_not_start_ends_the_story_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer reads the reason, and nothing is left running."""
    monkeypatch.setattr("gateway.demo.sidecar.COMMAND", ("-c", "raise SystemExit('the journal is locked')"))
    with pytest.raises(DemoError, match=r"(?s)gateway ended with 1; its log ends so:.*the journal is locked"):
        await told(tmp_path)
    assert not [p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(tmp_path)]
