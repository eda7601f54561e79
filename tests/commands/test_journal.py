"""`seawall journal`: verdicts and exit codes for scripts, one line for people, never a stack trace."""

from __future__ import annotations

import asyncio
import json
import sqlite3

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.journal.sqlite import SqliteJournal
from tests.journal.backends import append


@pytest.fixture
def data(tmp_path):
    async def fill():
        journal = await SqliteJournal.open(tmp_path / "data")
        await journal.append(append("old", 0, "Ada", at=1_000, state="succeeded", is_open=False))
        await journal.append(append("open", 0, "x"))
        await journal.close()

    asyncio.run(fill())
    return tmp_path / "data"


def run(*arguments):
    return CliRunner().invoke(main, ["journal", *map(str, arguments)], env={"USER": "anna"})


def test_verify_says_ok_and_how_much_it_looked_at(data):
    result = run("verify", "--data", data)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "ok: every record is as it was written")
    told = json.loads(run("verify", "--data", data, "--json").output)
    assert (told["verdict"], told["records"], told["first_bad"]) == ("ok", 2, None)


def test_verify_names_the_first_bad_record_and_exits_with_a_finding(data):
    raw = sqlite3.connect(data / "journal.db", isolation_level=None)
    raw.execute("DROP TRIGGER record_is_final")
    raw.execute("UPDATE record SET data = x'00' WHERE id = 2")
    raw.close()
    result = run("verify", "--data", data, "--json")
    assert (result.exit_code, json.loads(result.output)["first_bad"]) == (1, 2)
    assert "tampered: record 2" in run("verify", "--data", data).output
    acknowledged = run("acknowledge", "--data", data, "--reason", "a disk swap")
    assert acknowledged.exit_code == 0
    result = run("verify", "--data", data)
    assert result.exit_code == 1
    assert "acknowledged: record 2" in result.output or "anna acknowledged a break (a disk swap)" in result.output
    assert "nothing new" in run("acknowledge", "--data", data, "--reason", "again").output


def test_verify_against_a_checkpoint_that_was_kept_elsewhere(data, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text((tmp_path / "data.checkpoint").read_text())
    assert run("verify", "--data", data, "--against", kept).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats"], ["verify"], ["acknowledge", "--reason", "x"], ["export"], ["backup", "TO"], ["doctor"],
        ["prune", "--older-than", "1d"], ["erase", "run", "--reason", "x"],
    ],
)  # fmt: skip
def test_no_journal_is_one_line_with_a_next_step(tmp_path, arguments):
    arguments = [str(tmp_path / "to") if each == "TO" else each for each in arguments]
    result = run(*arguments, "--data", tmp_path / "none")
    assert result.exit_code == 1
    assert "there is no journal at" in result.output
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / "none.keys").exists()


def test_export_prints_a_line_a_record(data):
    lines = [json.loads(line) for line in run("export", "--data", data).stdout.splitlines()]
    assert [line["event_id"] for line in lines] == ["journal#1", "old#1", "open#1"]
    assert lines[1]["payload"] == "Ada"


def test_a_backup_is_verified_and_never_overwrites(data, tmp_path):
    result = run("backup", tmp_path / "copy", "--data", data)
    assert (result.exit_code, "3 records, ok" in result.output) == (0, True)
    result = run("backup", tmp_path / "copy", "--data", data)
    assert (result.exit_code, "exists already" in result.output) == (1, True)


def test_prune_and_erase(data):
    result = run("erase", "old", "--reason", "asked to", "--data", data)
    assert (result.exit_code, "payloads erased" in result.output) == (0, True)
    assert b"Ada" not in run("export", "--data", data).stdout_bytes
    result = run("prune", "--older-than", "1d", "--data", data)
    assert "1 runs, 1 records archived and deleted" in result.output
    assert run("verify", "--data", data).exit_code == 0
    assert run("erase", "open", "--reason", "x", "--data", data).exit_code == 1
    assert run("prune", "--older-than", "soon", "--data", data).exit_code == 2


def test_what_needs_the_journal_alone_says_who_has_it(data):
    """Two writers would be worse than any error."""

    async def beside():
        journal = await SqliteJournal.open(data)
        try:
            return [
                await asyncio.to_thread(run, *arguments, "--data", data)
                for arguments in (
                    ["prune", "--older-than", "1d"],
                    ["erase", "old", "--reason", "x"],
                    ["acknowledge", "--reason", "x"],
                )
            ]
        finally:
            await journal.close()

    for result in asyncio.run(beside()):
        assert result.exit_code == 1
        assert "is in use by process" in result.output


def test_doctor_prints_what_it_looked_at(data):
    result = run("doctor", "--data", data)
    assert result.exit_code == 0
    names = [line.split("\t")[1] for line in result.output.splitlines()]
    assert {"journal mode", "library", "file system", "sync", "clock", "key ring", "checkpoint"} <= set(names)
    assert {"name", "health", "text"} == set(json.loads(run("doctor", "--data", data, "--json").output)[0])
