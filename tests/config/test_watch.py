"""Changes are told however the files were replaced, and only when the content differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.source import ManifestSource
from gateway.config.watch import changes

TOOL = "tools: {{a: {{upstream: 'http://{}'}}}}\n"


@asynccontextmanager
async def watching(source: ManifestSource) -> AsyncIterator[Callable[[], object]]:
    """Run the watch; the yielded function waits for the next change and loads."""
    stop, told = asyncio.Event(), asyncio.Queue[object]()

    async def run() -> None:
        async for _ in changes(source, stop, debounce_ms=50, poll_ms=200):
            told.put_nowait(source.load())

    task = asyncio.create_task(run())
    try:
        yield told.get
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


async def test_an_edit_in_place_is_told(tmp_path: Path) -> None:
    """An editor saves."""
    path = tmp_path / "m.yaml"
    path.write_text(TOOL.format("a"))
    source = ManifestSource(path, environ={})
    source.load()
    async with watching(source) as change:
        path.write_text(TOOL.format("b"))
        catalog = await asyncio.wait_for(change(), 10)  # type: ignore[arg-type]
    assert catalog.tools["a"].upstream.host == "b"


async def test_a_kubernetes_volume_swap_is_told(tmp_path: Path) -> None:
    """The kubelet renames the `..data` link; no event names the file itself."""
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.yaml").write_text(TOOL.format("v" + name[-1]))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "m.yaml").symlink_to("..data/m.yaml")
    source = ManifestSource(tmp_path, environ={})
    source.load()
    async with watching(source) as change:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        catalog = await asyncio.wait_for(change(), 10)  # type: ignore[arg-type]
    assert catalog.tools["a"].upstream.host == "v2"


async def test_includes_and_secrets_are_watched_too(tmp_path: Path) -> None:
    """A rotated secret is a change, and so is a policy in another folder."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "key").write_text("one")
    (tmp_path / "m.yaml").write_text(
        "secrets: {key: {file: other/key}}\ntools: {a: {upstream: http://a, credentials: {value: '${secret:key}'}}}"
    )
    source = ManifestSource(tmp_path / "m.yaml", environ={})
    source.load()
    async with watching(source) as change:
        (other / "key").write_text("two")
        catalog = await asyncio.wait_for(change(), 10)  # type: ignore[arg-type]
    assert catalog.tools["a"].credential == (b"Authorization", b"two")


async def test_a_change_between_load_and_watch_is_not_missed(tmp_path: Path) -> None:
    """What counts is the content that was loaded, not the content when the watch began."""
    path = tmp_path / "m.yaml"
    path.write_text(TOOL.format("a"))
    source = ManifestSource(path, environ={})
    source.load()
    path.write_text(TOOL.format("b"))
    async with watching(source) as change:
        catalog = await asyncio.wait_for(change(), 10)  # type: ignore[arg-type]
    assert catalog.tools["a"].upstream.host == "b"


async def test_a_write_that_changes_nothing_is_not_told(tmp_path: Path) -> None:
    """A reload costs little, but a log full of them hides the one that mattered."""
    path = tmp_path / "m.yaml"
    path.write_text(TOOL.format("a"))
    source = ManifestSource(path, environ={})
    source.load()
    async with watching(source) as change:
        path.write_text(TOOL.format("a"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(change(), 0.6)  # type: ignore[arg-type]
