"""The comparison: the bare proxy on a real socket, Envoy's configuration by its numbers, and the table."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gateway.storm.live import live_engine
from gateway.storm.policy import manifest_for
from gateway.storm.runner import run_storm
from gateway.storm.scenario import FaultSettings, LoadSettings, PolicySettings, load
from loadtests.baselines import bare_proxy, envoy_settings, table

OUTAGE = load("outage")


@pytest.mark.timeout(180)
def test_a_bare_proxy_passes_every_call_on_to_a_dead_tool() -> None:
    short = dataclasses.replace(
        OUTAGE,
        seconds=2.0,
        policies={},
        load=(LoadSettings(tool="index", arrive="steady", rate=40),),
        faults=(FaultSettings(tool="index", kind="error", start=0.5, end=1.5),),
    )
    run = run_storm(short, engine_name="live", claims=(), **live_engine(front=bare_proxy))
    during = run.figures["seawall"]["during"]
    assert during["calls"] > 20
    assert 0.8 <= during["amplification"] <= 1.2
    assert run.figures["seawall"]["before"]["goodput_share"] > 0.9


def test_envoy_gets_the_numbers_of_the_manifest() -> None:
    settings = envoy_settings(7, {"index": "http://127.0.0.1:88"}, manifest_for(OUTAGE, PolicySettings()))
    (cluster,) = settings["static_resources"]["clusters"]
    assert cluster["outlier_detection"]["base_ejection_time"] == "1s"
    assert cluster["circuit_breakers"]["thresholds"][0]["max_requests"] == 64
    assert "127.0.0.1" in json.dumps(cluster)
    assert '"num_retries": 3' in json.dumps(settings)


def test_the_table_has_a_row_for_each() -> None:
    figures = {
        "during": {"attempts": 1234, "amplification": 0.5},
        "succeeded": 10, "calls": 20, "p99_ms": 3.2, "recovery_s": 1.25,
    }  # fmt: skip
    assert "| Envoy | 1,234 | 0.500 | 10 of 20 | 3 | 1.2 |" in table({"Envoy": figures})
