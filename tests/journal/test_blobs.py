"""Large bodies on disk."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from gateway.core.message import BytesBody
from gateway.journal import JournalCorrupt, JournalUnavailable
from gateway.journal.blobs import BlobFolder


@pytest.fixture
def folder(tmp_path):
    folder = BlobFolder(tmp_path / "blobs")
    folder.prepare()
    yield folder
    folder.close()


async def settled(folder):
    """Everything queued on the folder's thread has run."""
    await folder.run(lambda: None)


def drafts(folder):
    return list((folder._folder / "tmp").iterdir())


class Chunks:
    """A body in pieces, which may wait or break in the middle."""

    size = None
    is_replayable = False

    def __init__(self, *pieces):
        self.pieces = pieces

    async def chunks(self):
        for piece in self.pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            elif isinstance(piece, Exception):
                raise piece
            else:
                yield piece


async def test_a_body_lies_under_the_first_two_digits_of_its_digest(folder):
    name = await folder.keep(Chunks(b"he", b"llo"))
    digest = name.removeprefix("sha256:")
    assert (folder._folder / digest[:2] / digest).read_bytes() == b"hello"
    await settled(folder)
    assert drafts(folder) == []


async def test_storing_the_same_bytes_again_writes_nothing_new(folder):
    name = await folder.keep(BytesBody(b"hello"))
    digest = name.removeprefix("sha256:")
    before = (folder._folder / digest[:2] / digest).stat()
    assert await folder.keep(BytesBody(b"hello")) == name
    after = (folder._folder / digest[:2] / digest).stat()
    assert before.st_ino == after.st_ino


async def test_a_body_that_breaks_in_the_middle_leaves_nothing(folder):
    with pytest.raises(ConnectionResetError):
        await folder.keep(Chunks(b"half", ConnectionResetError("gone")))
    await settled(folder)
    assert drafts(folder) == []
    assert [each.name for each in folder._folder.iterdir()] == ["tmp"]


async def test_a_cancelled_caller_leaves_nothing_even_while_the_disk_is_busy(folder):
    """The write may still be running on its thread; closing the file under it would write into another."""
    busy = threading.Event()
    blocker = asyncio.ensure_future(folder.run(busy.wait))
    keeping = asyncio.ensure_future(folder.keep(Chunks(b"x" * 100)))
    await asyncio.sleep(0)
    keeping.cancel()
    busy.set()
    await blocker
    with pytest.raises(asyncio.CancelledError):
        await keeping
    hanging = asyncio.ensure_future(folder.keep(Chunks(*[b"x"] * 70, asyncio.Event())))
    await settled(folder)
    while not drafts(folder):
        await settled(folder)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await settled(folder)
    assert drafts(folder) == []


async def test_what_a_crash_left_half_written_is_removed_at_the_next_start(folder):
    leftover = folder._folder / "tmp" / "0123"
    leftover.write_bytes(b"half")
    name = await folder.keep(BytesBody(b"whole"))
    BlobFolder(folder._folder).prepare()
    assert not leftover.exists()
    assert (await folder.kept(name)).size == 5


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hell", b"hello!"])
async def test_a_damaged_body_is_never_given_out_whole(folder, damage):
    """The last piece is held back until the digest is known, so the reader sees a break and not a wrong answer."""
    name = await folder.keep(BytesBody(b"hello"))
    digest = name.removeprefix("sha256:")
    (folder._folder / digest[:2] / digest).write_bytes(damage)
    with pytest.raises(JournalCorrupt, match="does not hold what its name says"):
        await anext((await folder.kept(name)).chunks())


async def test_a_reader_who_stops_early_gives_the_file_back(folder):
    name = await folder.keep(BytesBody(b"x" * 1_000_000))
    await settled(folder)
    before = len(os.listdir("/proc/self/fd"))
    chunks = (await folder.kept(name)).chunks()
    await anext(chunks)
    await chunks.aclose()
    await settled(folder)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_disk_that_refuses_makes_the_journal_unavailable(folder):
    (folder._folder / "tmp").rmdir()
    with pytest.raises(JournalUnavailable, match="check its disk"):
        await folder.keep(BytesBody(b"hello"))


async def test_a_closed_folder_takes_nothing(folder):
    folder.close()
    folder.close()
    with pytest.raises(JournalUnavailable, match="closed"):
        await folder.keep(BytesBody(b"hello"))
