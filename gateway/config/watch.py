"""Tells when a manifest's files changed, whichever way: saved in place, renamed over, or swapped as a Kubernetes volume.

A ConfigMap or Secret volume is replaced by renaming the `..data` link beside the files, so no event ever names a file of
ours. Therefore the folders are watched and the content decides: something changed if the digest of all files did. The
digest is also taken every few seconds without any event, which covers file systems that send none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from watchfiles import awatch

from gateway.config.files import stamp_of
from gateway.config.source import ManifestSource

__all__ = ["changes"]

POLL_MS: Final = 5_000
DEBOUNCE_MS: Final = 300


async def changes(
    source: ManifestSource, stop: asyncio.Event, *, debounce_ms: int = DEBOUNCE_MS, poll_ms: int = POLL_MS
) -> AsyncIterator[None]:
    """Yield each time the files of `source` have changed and rested for a moment; end when `stop` is set.

    The consumer calls `source.load()`, before and during the iteration; it may bring other files into view, which are
    watched from then on. A failed load is not repeated before the next change.
    """
    seen = source.stamp
    while not stop.is_set():
        folders = _folders(source.files)
        async for _ in awatch(
            *folders,
            watch_filter=lambda _, path: _concerns(source, Path(path)),
            debounce=debounce_ms,
            step=min(50, debounce_ms),
            stop_event=stop,
            rust_timeout=poll_ms,
            yield_on_timeout=True,
            recursive=False,
        ):
            now = await asyncio.to_thread(stamp_of, source.files)
            if now != seen:
                before = source.stamp
                yield
                seen = now if source.stamp == before else source.stamp
            if _folders(source.files) != folders:
                break


def _concerns(source: ManifestSource, path: Path) -> bool:
    """Whether an event may mean a change of ours; a journal or a log in the same folder makes many that do not."""
    return path in source.files or path.suffix in (".yaml", ".yml") or path.name.startswith("..")


def _folders(files: frozenset[Path]) -> frozenset[Path]:
    """Return the existing folders in which the files are, or would be."""
    folders = {path if path.is_dir() else path.parent for path in files}
    return frozenset(folder for folder in folders if folder.is_dir())
