"""Every plot shows every system that was measured, and is the same file for the same figures."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from loadtests.bench_plots import PLOTS, main


def spread(value: float) -> dict[str, float]:
    return {"median": value, "low": value * 0.9, "high": value * 1.1}


def rows() -> list[dict[str, object]]:
    return [
        {
            "system": system,
            "point": {"workload": kind, "connections": connections, "rate": rate},
            **{what: spread(value) for what in ("ratio", "cpu_us", "added_p50_us", "added_p99_us")},
        }
        for system, value in (("direct", 0.1), ("bare-asyncio", 1.0), ("seawall", 2.5), ("envoy", 3.0))
        for kind in ("read", "write", "tls")
        for connections, rate in ((1, 0.0), (64, 0.0), (32, 300.0))
    ]


def test_plots_show_each_system_and_do_not_change_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"rows": rows()}))
    drawn = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        ran = CliRunner().invoke(main, [str(tmp_path / "result.json"), str(folder)])
        assert ran.exit_code == 0, ran.output
        drawn.append({path.stem: path.read_text() for path in folder.iterdir()})
    assert drawn[0].keys() == PLOTS.keys()
    assert drawn[0] == drawn[1]
    for text in drawn[0].values():
        assert all(name in text for name in ("bare-asyncio", "seawall", "envoy"))
        assert ">direct<" not in text
