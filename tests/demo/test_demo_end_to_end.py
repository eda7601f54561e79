"""`seawall demo` as a newcomer runs it: the real gateway, the real tool servers, the whole story, verified."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

MAX_S = 60


@pytest.mark.timeout(MAX_S + 30)
def test_the_demo_keeps_its_promise_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Everything that is shown is verified at the tool servers, in under a minute, and the machine is as before."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "gateway", "demo", "--json", f"--timeout={MAX_S}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=MAX_S + 20, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events, done.stderr
    verdict = events[-1]
    assert verdict["event"] == "verdict", done.stderr
    assert [check for check in verdict["data"]["checks"] if not check["holds"]] == []
    assert len(verdict["data"]["checks"]) == 14
    assert done.returncode == 0, done.stderr
    assert verdict["t"] < MAX_S

    kinds = {event["event"] for event in events}
    assert {"scene", "step", "answer", "received", "link_cut", "link_down", "link_up", "undo", "proof"} <= kinds
    assert {"retry", "breaker", "run"} <= kinds, "the gateway's log is understood"
    states = [event["data"]["state"] for event in events if event["event"] == "breaker"]
    assert (states[0], states[-1]) == ("open", "closed")
    assert "sk_test" not in done.stdout + done.stderr, "no credential on the screen"

    assert_nothing_is_left(tmp_path)


@pytest.mark.timeout(MAX_S)
def test_ctrl_c_in_the_middle_of_a_run_ends_gateway_tools_and_agent(tmp_path: Path) -> None:
    """Whoever has seen enough gets the machine back at once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "demo", "--json"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert any('"link_down"' in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert_nothing_is_left(tmp_path)


def assert_nothing_is_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    ours = [
        p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])
    ]
    assert ours == []
