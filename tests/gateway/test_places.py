"""Whatever fails here, agents are not told where on this machine it lies; the log and the operator are."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.core.server import JournalSettings, ServerSettings
from gateway.journal import JournalCorrupt, JournalError, JournalPoisoned, JournalUnavailable, tellable
from gateway.journal.committer import _copy
from gateway.journal.faults import translate
from gateway.journal.fence import follow_up
from tests.gateway.harness import MANIFEST, Answered, Client, write_manifest
from tests.journal.injector import METHODS, Injector, Mode
from tests.mcp.rig import Raw
from tests.origin import Answer, Origin

JSON = ((b"Content-Type", b"application/json"),)
GATED = MANIFEST.replace(
    "{match: POST /payouts, tier: pivot}", "{match: POST /payouts, tier: pivot, approval: required}", 1
)


class Full(Injector):
    """What fails does so as SQLite does on a full disk."""

    async def _fail(self) -> Any:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
        raise translate(error, str(self._journal._place.file))


class OnFull(Gateway):
    injector: Injector

    async def _open_journal(self) -> Any:
        self.injector = Full(await super()._open_journal())
        return self.injector


@contextlib.asynccontextmanager
async def broken(folder: Path, port: int) -> AsyncIterator[tuple[OnFull, Client, Client]]:
    manifest = write_manifest(folder, port, GATED)
    settings = ServerSettings(
        manifest=str(manifest), data=str(folder / "attic"), listen="127.0.0.1:0", control="127.0.0.1:0",
        watch=False, drain=0.2, journal=JournalSettings(patience=0.3),
    )  # fmt: skip
    gateway = OnFull(settings, environ={})
    await gateway.start()
    try:
        yield gateway, Client(gateway.listen), Client(gateway.control)
    finally:
        gateway.injector.mend()
        await gateway.stop()


def said(answer: Answered) -> str:
    return f"{answer.headers!r} {answer.body!r}"


async def everything(client: Client) -> list[str]:
    """Call each thing that an agent may, and return what it reads."""
    found = []
    for method, target, body in (
        ("POST", "/pay/holds", {"n": 1}),
        ("GET", "/pay/holds/h1", None),
        ("DELETE", "/pay/holds/h1", None),
        ("POST", "/pay/payouts", {"n": 2}),
        ("POST", "/plain/x", {"n": 3}),
        ("POST", "/seawall/v1/trajectories", {"id": "named"}),
        ("GET", "/seawall/v1/trajectories/r", None),
        ("GET", "/seawall/v1/trajectories/unknown", None),
        ("POST", "/seawall/v1/trajectories/r/commit", {}),
        ("POST", "/seawall/v1/trajectories/r/abort", {"reason": "x"}),
        ("GET", "/seawall/v1/approvals/none", None),
        ("GET", "/seawall/v1/tasks/none", None),
    ):
        for key in (None, "mine"):
            found.append(said(await client.send(method, target, body, run="r", key=key)))
    mcp = Raw(client, "/seawall/mcp")
    await mcp.initialize()
    for tool in ("pay__hold", "pay__payout"):
        found.append(repr(await mcp.call(tool, {"n": 1}, meta={"dev.seawall/trajectory": "r"})))
    return found


@pytest.mark.parametrize("method", METHODS)
async def test_a_journal_that_fails_is_not_told_by_its_place(tmp_path: Path, method: str) -> None:
    async with Origin() as origin, broken(tmp_path, origin.port) as (gateway, client, _):
        origin.default = Answer(201, b'{"id": "h1"}', JSON)
        await client.send("POST", "/pay/holds", {"n": 0}, run="r")
        gateway.injector.inject(method, Mode.FAIL)
        read = await everything(client)
        assert not [text for text in read if str(tmp_path) in text or "attic" in text]
        if method == "append":
            assert any("the journal cannot grow (SQLITE_FULL): free some disk space" in text for text in read)


async def test_operators_are_told_the_place(tmp_path: Path) -> None:
    async with Origin() as origin, broken(tmp_path, origin.port) as (gateway, client, control):
        gateway.injector.inject("heads", Mode.FAIL)
        answer = await control.send("GET", "/api/v1/trajectories?state=closed")
        assert (answer.status, client is not None) == (503, True)
        assert f"{tmp_path}/attic/journal.db cannot grow" in answer.json["detail"]


async def test_bodies_that_cannot_be_kept_are_not_told_by_their_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The body of a call on its way in, an answer, and what the journal keeps of either."""
    async with Origin() as origin, broken(tmp_path, origin.port) as (_, client, _):
        origin.default = Answer(201, b'{"id": "h1", "x": "' + b"y" * 3_000_000 + b'"}', JSON)
        shutil.rmtree(tmp_path / "attic/blobs")
        shutil.rmtree(tmp_path / "attic/spool")
        with caplog.at_level(logging.ERROR, "gateway"):
            large = await client.send("POST", "/pay/holds", {"x": "y" * 2_000_000}, run="r")
            some = await client.send("POST", "/pay/holds", {"x": "y" * 200_000}, run="s")
            small = await client.send("POST", "/keyless/holds", {"n": 1}, run="t")
        assert "could not be kept on disk (a large body cannot be kept on disk: No such file" in large.json["detail"]
        for answer in (large, some, small):
            assert str(tmp_path) not in said(answer)
            assert "attic" not in said(answer)
        places = [str(vars(line).get("folder", vars(line).get("problem"))) for line in caplog.records]
        assert any(str(tmp_path / "attic/spool") in place for place in places)
        run = await client.send("GET", "/seawall/v1/trajectories/t")
        assert "attic" not in said(run)
        await asyncio.sleep(0)


def test_what_an_error_hides_stays_hidden_when_it_is_told_again() -> None:
    error = JournalUnavailable("/data/j.db cannot grow").hiding("/data/j.db", "the journal")
    assert str(error) == "/data/j.db cannot grow"
    for one in (error, _copy(error), follow_up("r", error), JournalPoisoned(f"{error}!").as_discreet_as(error)):
        assert "/data" in str(one)
        assert "/data" not in one.told
        assert "the journal cannot grow" in tellable(one)


def test_every_fault_of_sqlite_hides_the_file() -> None:
    for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, 999):
        fault = sqlite3.OperationalError("odd")
        fault.sqlite_errorcode, fault.sqlite_errorname = code, "SQLITE_ODD"
        error: JournalError = translate(fault, "/data/j.db")
        assert "/data/j.db" in str(error)
        assert error.told == str(error).replace("/data/j.db", "the journal")


def test_of_other_errors_agents_read_no_file_names() -> None:
    assert tellable(OSError(errno.ENOSPC, "No space left on device", "/data/x")) == "No space left on device"
    assert tellable(OSError()) == "OSError"
    assert tellable(JournalCorrupt("body x is missing")) == "body x is missing"
    assert tellable(ValueError("odd")) == "odd"
