"""`seawall token`: a token is shown once; the list shows none."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli import main


def run(*arguments: str, path: Path) -> Result:
    return CliRunner().invoke(main, ["token", *arguments, "--tokens", str(path)])


def test_a_token_is_issued_listed_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    issued = run("issue", "billing", "--ttl", "30d", path=path)
    assert issued.exit_code == 0
    text = issued.output.strip()
    assert text.startswith("swt_")
    listed = json.loads(run("ls", "--json", path=path).output)["tokens"]
    assert [(one["name"], one["scope"], one["state"]) for one in listed] == [("billing", "agent", "good")]
    assert listed[0]["expires"] is not None
    assert text not in path.read_text()
    revoked = run("revoke", listed[0]["id"], path=path)
    assert revoked.output == f"revoked {listed[0]['id']}\n"
    assert "revoked" in run("ls", path=path).output
    again = run("revoke", listed[0]["id"], path=path)
    assert again.exit_code == 1
    assert "seawall token ls" in again.output


def test_scopes_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    told = json.loads(run("issue", "ana", "--scope", "operator", "--json", path=path).output)
    assert told["scope"] == "operator"
    assert told["token"].startswith("swt_")


def test_wrong_arguments_are_refused_with_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    assert run("issue", "a b", path=path).exit_code == 2
    assert "12h" in run("issue", "a", "--ttl", "soon", path=path).output
    path.write_text("[]")
    broken = run("ls", path=path)
    assert broken.exit_code == 1
    assert "no file of tokens" in broken.output
