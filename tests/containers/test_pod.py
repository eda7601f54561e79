"""A pod with an agent and the gateway, from the rendered chart, by `podman play kube`: the demo's run is undone in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.containers.engine import Podman
from tests.helm.tools import ROOT, tool


def test_the_demos_run_is_undone_in_a_pod(podman: Podman, tmp_path: Path) -> None:
    """The agent knows a base URL that the chart gave it. Its run fails at the last step but one, is aborted, and the tool
    servers themselves say that the world is as before. Agent, gateway and tools share a namespace that has loopback alone.
    """
    tool("helm", "4")  # while there is a network
    command = ["unshare", "--net", sys.executable, "-m", "tests.containers.pod_story", str(tmp_path)]
    told = subprocess.run(
        command,
        cwd=ROOT,
        env={**podman.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    story = json.loads(told.stdout.splitlines()[-1])
    assert story["agent"][-1]["event"] == "gave_up"
    assert [step["state"] for step in story["steps"]].count("compensated") >= 4
    assert story["state"] == "aborted_clean"
    assert story["differences"] == []
    assert story["made"], "nothing had been made, so that nothing was undone"
