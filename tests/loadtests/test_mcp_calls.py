"""Calls of tools, measured direct and through three gateways, for a page."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadtests.mcp_calls import BEGIN, END, main, written
from loadtests.process import ROOT


def test_the_page_has_a_place_for_the_table() -> None:
    """And everything around it stays."""
    assert written((ROOT / "docs/mcp.md").read_text(), "| t |").count(f"{BEGIN}\n| t |\n{END}") == 1
    assert written(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\nnew\n{END}\nb\n"
    with pytest.raises(click.ClickException, match="no lines"):
        written("a page", "new")


@pytest.mark.clients
@pytest.mark.timeout(120)
def test_every_way_to_the_tool_is_measured(tmp_path: Path) -> None:
    """Direct, through the gateway, FastMCP's proxy and mcp-proxy: for real, with few calls."""
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    done = CliRunner().invoke(main, ["--calls", "3", "--rounds", "1", "--markdown", str(page)])
    assert done.exit_code == 0, done.output
    rows = [line.split(" | ")[0] for line in page.read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| direct, Streamable HTTP",
        "| Seawall, step journaled",
        "| Seawall, read",
        "| FastMCP proxy",
        "| direct, stdio",
        "| Seawall in front of stdio, step journaled",
        "| Seawall in front of stdio, read",
        "| mcp-proxy in front of stdio",
    ]
