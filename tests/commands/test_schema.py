"""`seawall schema` prints what editors read."""

from __future__ import annotations

import json

from click.testing import CliRunner

from gateway.cli import main


def test_both_schemas_are_printed() -> None:
    """As JSON."""
    assert json.loads(CliRunner().invoke(main, ["schema"]).stdout)["title"] == "Seawall manifest"
    assert json.loads(CliRunner().invoke(main, ["schema", "--server"]).stdout)["title"] == "Seawall server settings"


def test_the_packets_of_agents_have_schemas_too() -> None:
    """Seed 003: published contracts."""
    for name in ("task_packet", "task_result", "result_packet"):
        told = json.loads(CliRunner().invoke(main, ["schema", "--packet", name]).stdout)
        assert told["title"] == f"Seawall {name.replace('_', ' ')}"
    assert CliRunner().invoke(main, ["schema", "--server", "--packet", "task_packet"]).exit_code == 2
