"""The server's settings: one order of precedence, and every way to give one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.options import server_options
from gateway.config.server import load_server
from gateway.core.server import ServerSettings

ROOT = Path(__file__).parent.parent.parent


def test_the_shipped_file_says_the_defaults() -> None:
    """It documents them; a default that moved would make it lie."""
    settings = load_server(ROOT / "config" / "seawall.yaml", {})
    assert settings == ServerSettings(manifest="config/minimal.yaml")


def test_the_shipped_file_shows_every_setting() -> None:
    """A setting that is not in it would never be found."""
    text = (ROOT / "config" / "seawall.yaml").read_text()
    assert [path for path, _ in server_options() if f"{path[-1]}:" not in text] == []


def test_option_beats_variable_beats_file_beats_default(tmp_path: Path) -> None:
    """The nearest to the process wins."""
    file = tmp_path / "s.yaml"
    file.write_text("drain: 1s\nlimits: {in_flight: 1, answer: 3GiB}\nruns:\n")
    environ = {"SEAWALL_LIMITS_IN_FLIGHT": "2", "SEAWALL_RUNS_IMPLICIT_IDLE": "2h", "SEAWALL_WATCH": "false"}
    settings = load_server(file, environ, {("limits", "in_flight"): "3"})
    assert (settings.drain, settings.limits.in_flight, settings.limits.answer) == (1.0, 3, 3 << 30)
    assert (settings.runs.implicit_idle, settings.watch, settings.runs.implicit_steps) == (7200.0, False, 1000)


def test_a_problem_names_its_variable_or_option() -> None:
    """There is no line to point at."""
    with pytest.raises(ConfigError) as caught:
        load_server(None, {"SEAWALL_DRAIN": "soon", "SEAWALL_LISTN": "x"}, {("limits", "header_field"): "-1"})
    assert [str(problem).partition(": ")[0] for problem in caught.value.problems] == [
        "--limits-header-field",
        "SEAWALL_DRAIN",
        "SEAWALL_LISTN",
    ]
    assert "did you mean `SEAWALL_LISTEN`?" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "part"),
    [
        ({"SEAWALL_LISTEN": "0.0.0.0:80"}, "nobody has to prove"),
        ({"SEAWALL_CONTROL": ":9090"}, "nobody has to prove"),
        ({"SEAWALL_LISTEN": "nonsense"}, "expected HOST:PORT"),
        ({"SEAWALL_LISTEN": "127.0.0.1:1", "SEAWALL_CONTROL": "127.0.0.1:1"}, "another address"),
        ({"SEAWALL_METRICS": "9091"}, "`metrics`: expected HOST:PORT"),
        ({"SEAWALL_METRICS": "127.0.0.1:9090"}, "another address than `listen` and `control`"),
        ({"SEAWALL_LIMITS_MEMORY": "65MiB"}, "`memory` must be at most `body`"),
        ({"SEAWALL_DATA": ""}, "`data` must not be empty"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(environ: dict[str, str], part: str) -> None:
    """Before anything listens."""
    with pytest.raises(ConfigError) as caught:
        load_server(None, environ)
    assert part in str(caught.value)


def test_beyond_loopback_is_possible_when_it_is_said() -> None:
    """A pod's own network may be the fence."""
    settings = load_server(None, {"SEAWALL_LISTEN": ":8080", "SEAWALL_ALLOW_UNAUTHENTICATED": "true"})
    assert not settings.listen_address.is_local


def test_metrics_may_be_reached_from_elsewhere() -> None:
    """They change nothing and name no run; probes and scrapers come from other machines."""
    address = load_server(None, {"SEAWALL_METRICS": ":9091"}).metrics_address
    assert address is not None
    assert not address.is_local
    assert ServerSettings().metrics_address is None


def test_a_missing_file_and_other_variables() -> None:
    """The first is an error, the second are other programs' business."""
    with pytest.raises(ConfigError, match="No such file"):
        load_server("gone.yaml", {})
    assert load_server(None, {"SEAWALL_SECRET_X": "1", "SEAWALLX": "1", "PATH": "/"}) == ServerSettings()
