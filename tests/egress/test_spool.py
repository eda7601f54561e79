"""Large bodies go to disk, come back whole as often as wanted, and leave nothing behind."""

import asyncio
import hashlib
import os
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.core.message import Body, BytesBody
from gateway.egress.spool import BLOCK_BYTES, Spool, SpooledBody, SpoolFailed, TooLarge
from tests.origin import pattern, pattern_digest

MIB = 1 << 20


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool", memory_limit=1000)
    yield made
    made.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def digest(body: Body) -> str:
    digest = hashlib.sha256()
    async for data in body.chunks():
        digest.update(data)
    return digest.hexdigest()


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
async def test_a_small_body_stays_in_memory(spool: Spool, size: int) -> None:
    body = await spool.collect(pattern(size))
    assert isinstance(body, BytesBody)
    assert body.size == size


@pytest.mark.parametrize("size", [1001, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * MIB + 7])
async def test_a_large_body_comes_back_whole_as_often_as_wanted(spool: Spool, size: int) -> None:
    body = await spool.collect(pattern(size))
    assert isinstance(body, SpooledBody)
    assert body.size == size
    assert body.is_replayable
    assert set(await asyncio.gather(digest(body), digest(body), digest(body))) == {pattern_digest(size)}
    await body.aclose()
    await body.aclose()


async def test_nothing_is_left_behind_in_the_folder_or_open(spool: Spool, tmp_path: Path) -> None:
    before = open_files()
    body = await spool.collect(pattern(MIB))
    assert os.listdir(tmp_path / "spool") == []
    assert open_files() == before + 1
    await body.aclose()
    assert open_files() == before


async def test_a_body_beyond_its_limit_is_refused_and_dropped(spool: Spool) -> None:
    before = open_files()
    with pytest.raises(TooLarge) as caught:
        await spool.collect(pattern(3 * MIB), max_bytes=2 * MIB)
    assert caught.value.limit == 2 * MIB
    assert open_files() == before
    exact = await spool.collect(pattern(2 * MIB), max_bytes=2 * MIB)
    await exact.aclose()


async def test_a_source_that_breaks_leaves_nothing(spool: Spool) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        raise ConnectionResetError("gone")

    before = open_files()
    with pytest.raises(ConnectionResetError):
        await spool.collect(broken())
    assert open_files() == before


async def test_cancelling_leaves_nothing(spool: Spool) -> None:
    """The thread may still write when the waiter is cancelled; the descriptor is closed once it is done."""
    waiting = asyncio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        yield bytes(MIB)
        waiting.set()
        await asyncio.Event().wait()

    before = open_files()
    task = asyncio.create_task(spool.collect(stalls()))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert open_files() == before


async def test_closing_waits_for_a_read_in_flight(spool: Spool) -> None:
    """A descriptor number closed too early could by then belong to another file."""
    before = open_files()
    body = await spool.collect(pattern(MIB))
    reader = asyncio.create_task(digest(body))
    await asyncio.sleep(0)
    await body.aclose()
    with pytest.raises(SpoolFailed, match="closed"):
        await reader
    assert open_files() == before


async def test_a_full_disk_is_told_plainly_and_leaks_nothing(
    spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Agents read what is said; where the folder is, and what to do about it, is in the log."""
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
    try:
        with pytest.raises(SpoolFailed, match="cannot be kept on disk: File too large") as caught:
            await spool.collect(pattern(8 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) not in str(caught.value)
    [line] = caplog.records
    assert "free space there" in line.message
    assert vars(line)["folder"] == str(tmp_path / "spool")
    assert open_files() == before
    body = await spool.collect(pattern(8 * MIB))
    await body.aclose()


async def test_a_folder_that_went_away_is_told_plainly(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "spool").rmdir()
    with pytest.raises(SpoolFailed, match="No such file"):
        await spool.collect(pattern(MIB))


async def test_the_folder_is_for_the_gateway_alone(spool: Spool, tmp_path: Path) -> None:
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
