"""A manifest is loaded whole or not at all, and what did not change is kept."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.errors import ConfigError
from gateway.config.source import ManifestSource, diff
from tests.config.manifests import ROOT, SECRETS, complaint, load, tool, write


@pytest.mark.parametrize("name", ["minimal.yaml", "payments.yaml", "unmanaged.yaml", "folder"])
def test_the_shipped_examples_load_without_a_warning(name: str) -> None:
    """They are what people copy."""
    source = ManifestSource(ROOT / "config" / name, environ=SECRETS)
    assert source.load().tools
    assert source.warnings == ()


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    """Shapes, rules, expressions and secrets, of all files, in one run."""
    main = "include: [other.yaml]\n" + tool(
        "x: {match: post /, tier: pivot}", "    credentials: {value: '${secret:a}'}\n"
    )
    found = complaint(
        write(tmp_path, m=main, other="tools: {b: {upstream: x}, c: {upstream: http://c, domain: d}, d: {x: 1}}")
    )
    lines = [line.partition(": ")[0] for line in found.splitlines()]
    assert lines == sorted(lines)
    for expected in (
        "secret `a` is missing",
        "capitals",
        "must begin with `http://`",
        "unknown domain `d`",
        "unknown key `x`",
    ):
        assert expected in found


def test_a_reload_keeps_what_did_not_change(tmp_path: Path) -> None:
    """Breakers and pools live with these objects."""
    path = write(tmp_path, m="domains: {d: {}}\ntools: {a: {upstream: http://a, domain: d}, b: {upstream: http://b}}")
    source = ManifestSource(path, environ={})
    old = source.load()
    assert not diff(old, source.load(old))
    path.write_text(
        "domains: {d: {}}\n# moved down\ntools: {a: {upstream: http://a, domain: d}, c: {upstream: http://c}}"
    )
    new = source.load(old)
    assert new.tools["a"] is old.tools["a"]
    assert new.domains["d"] is old.domains["d"]
    assert str(diff(old, new)) == "added c; removed b"
    path.write_text("domains: {d: {queue: 1}}\ntools: {a: {upstream: http://a, domain: d}, c: {upstream: http://c}}")
    newer = source.load(new)
    assert diff(new, newer).changed == ("a",)
    assert newer.tools["c"] is new.tools["c"]
    path.write_text("broken: [")
    with pytest.raises(ConfigError):
        source.load(newer)


def test_a_rotated_secret_changes_its_tool_alone(tmp_path: Path) -> None:
    """And its breaker's key, without revealing the secret."""
    text = "tools: {a: {upstream: http://a, credentials: {value: '${secret:s}'}}, b: {upstream: http://b}}"
    path = write(tmp_path, m=text)
    old = load(path, SEAWALL_SECRET_S="one")
    new = ManifestSource(path, environ={"SEAWALL_SECRET_S": "two"}).load(old)
    assert diff(old, new).changed == ("a",)
    assert old.tools["a"].breaker_key != new.tools["a"].breaker_key
    keyed = ManifestSource(path, environ={"SEAWALL_SECRET_S": "one"}, digest_key=b"k" * 32).load()
    assert keyed.tools["a"].breaker_key != old.tools["a"].breaker_key


def test_a_manifest_can_be_checked_where_there_are_no_secrets() -> None:
    """A build server has none, and should have none."""
    assert ManifestSource(ROOT / "config" / "payments.yaml", environ={}, is_offline=True).load().tools


WORDS = "tools domains secrets include a upstream operations match tier compensator http://a pivot 5s ~ no ' ${ json -1"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(WORDS.split()),
            st.sampled_from([":", ": ", "", ": {", "}", ": [", "]"]),
            st.sampled_from(WORDS.split()),
        ),
        max_size=12,
    )
)
def test_any_manifest_is_a_catalog_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, str, str, str]]
) -> None:
    """No text that looks a little like a manifest brings anything else to light."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text("".join(f"{'  ' * depth}{key}{mark}{value}\n" for depth, key, mark, value in lines))
    with contextlib.suppress(ConfigError):
        ManifestSource(path, environ={}).load()
