"""Scenario files: what is wrong is said with its place, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.storm.policy import catalog_of, manifest_for
from gateway.storm.scenario import PolicySettings, book, load, shipped


def test_a_mistake_is_found_with_its_place_and_the_nearest_word(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: s\ntitle: t\nseconds: 5s\nfaults:\n  - {tool: a, kind: hng, start: 0s, end: 1s}\n")
    with pytest.raises(ConfigError, match=r"s.yaml:5:21: .*must be one of .*hang"):
        load(str(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("engines: [virtul]", "there is no engine `virtul`"),
        ("compare: [naiv]", "the book has no policy `naiv`; did you mean `naive`"),
        ("faults: [{tool: a, kind: down, start: 2s, end: 1s}]", "ends before it begins"),
        ("policies: {two words: {}}", "must be one word"),
        ("faults: [{kind: kill, start: 1s, end: 2s}]", "write `engines: [live]`"),
        ("faults: [{kind: down, start: 1s, end: 2s}]", "name its `tool`"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"name: s\ntitle: t\nseconds: 5s\n{line}\n")
    with pytest.raises(ConfigError) as told:
        load(str(path))
    assert reason in str(told.value).replace(" (did", "; did")


def test_an_unknown_scenario_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean `outage`"):
        load("outge")


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_policy_of_every_scenario_gives_a_manifest_that_loads(name: str) -> None:
    scenario = load(name)
    for policy in (PolicySettings(), *scenario.policies.values()):
        assert catalog_of(manifest_for(scenario, policy)).tools.keys() >= {one.tool for one in scenario.load}


@pytest.mark.parametrize("name", sorted(book()))
def test_every_policy_of_the_book_says_whose_it_is_and_loads(name: str) -> None:
    policy = book()[name]
    assert policy.about
    assert catalog_of(manifest_for(load("outage"), policy)).tools["index"]


def test_a_policy_replaces_and_takes_out() -> None:
    scenario = load("bulkhead")
    catalog = catalog_of(manifest_for(scenario, scenario.policies["shared"], {"files": "http://127.0.0.1:77"}))
    assert set(catalog.domains) == {"everything"}
    assert catalog.domains["everything"].admission.concurrency == 300
    assert catalog.tools["files"].upstream.port == 77
    assert catalog.tools["files"].breaker.consecutive > 1_000_000
