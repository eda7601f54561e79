"""`seawall ca`: an authority is made once, and shown with the way to trust it."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

from click.testing import CliRunner, Result

from gateway.cli import main


def run(*arguments: str, folder: Path) -> Result:
    return CliRunner().invoke(main, ["ca", *arguments, "--ca", str(folder)])


def test_an_authority_is_made_and_shown(tmp_path: Path) -> None:
    made = run("init", "--only", "api.example", folder=tmp_path / "ca")
    assert made.exit_code == 0
    assert "NODE_EXTRA_CA_CERTS" in made.output
    shown = json.loads(run("show", "--json", folder=tmp_path / "ca").output)
    assert shown["fingerprint"] in made.output
    assert shown["is_good"] is True
    pem = run("show", "--pem", folder=tmp_path / "ca").output
    assert Path(shown["certificate"]).read_text() == pem


def test_the_bundle_holds_the_systems_authorities_too(tmp_path: Path) -> None:
    run("init", folder=tmp_path)
    bundle = run("show", "--bundle", folder=tmp_path).output
    context = ssl.create_default_context(cadata=bundle)
    assert context.cert_store_stats()["x509_ca"] > 10


def test_wrong_arguments_are_refused_with_the_next_step(tmp_path: Path) -> None:
    assert "seawall ca init" in run("show", folder=tmp_path).output
    assert run("init", "--only", "https://x", folder=tmp_path).exit_code == 2
    assert run("init", "--only", "api.example:443", folder=tmp_path).exit_code == 2
    assert run("init", folder=tmp_path).exit_code == 0
    again = run("init", folder=tmp_path)
    assert again.exit_code == 1
    assert "already" in again.output
