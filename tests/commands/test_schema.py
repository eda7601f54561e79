"""`seawall schema` prints what editors read."""

from __future__ import annotations

import json

from click.testing import CliRunner

from gateway.cli import main


def test_both_schemas_are_printed() -> None:
    """As JSON."""
    assert json.loads(CliRunner().invoke(main, ["schema"]).stdout)["title"] == "Seawall manifest"
    assert json.loads(CliRunner().invoke(main, ["schema", "--server"]).stdout)["title"] == "Seawall server settings"
