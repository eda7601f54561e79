"""Files are joined, and nothing overrides anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from tests.config.manifests import complaint, load, tool, write


def test_a_name_given_twice_names_both_places(tmp_path: Path) -> None:
    """Nothing overrides anything."""
    main = write(
        tmp_path, m="include: [o.yaml]\ntools: {a: {upstream: http://a}}", o="tools: {a: {upstream: http://b}}"
    )
    assert "m.yaml:2:9: `a` is already declared at o.yaml:1:9" in complaint(main)


def test_a_cycle_is_an_error_and_a_diamond_is_not(tmp_path: Path) -> None:
    """What two files need may be included by both."""
    write(tmp_path, base="domains: {d: {}}", left="include: [base.yaml]", right="include: [base.yaml]")
    assert load(write(tmp_path, m="include: [left.yaml, right.yaml]")).domains.keys() == {"d"}
    write(tmp_path, a="include: [b.yaml]", b="include: [a.yaml]")
    assert "b.yaml:1:11: `a.yaml` includes itself" in complaint(tmp_path / "a.yaml")


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    """Hidden files are editors' business."""
    write(tmp_path, b=tool(), a="domains: {d: {}}")
    (tmp_path / ".hidden.yaml").write_text("nonsense: 1")
    (tmp_path / "note.txt").write_text("not yaml")
    catalog = load(tmp_path)
    assert (catalog.tools.keys(), "d" in catalog.domains) == ({"pay"}, True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no \*\.yaml"):
        load(tmp_path / "empty")


@pytest.mark.parametrize(
    ("policy", "concurrency", "first_byte"), [("local", 64, 0.5), ("internal", 32, 2.0), ("external", 16, 5.0)]
)
def test_the_shipped_policies_are_found_by_name(
    tmp_path: Path, policy: str, concurrency: int, first_byte: float
) -> None:
    """Installed or in the repository, `seawall:` leads to them."""
    text = f"include: ['seawall:policies/{policy}.yaml']\n" + tool(more=f"    domain: {policy}\n")
    catalog = load(write(tmp_path, m=text))
    assert catalog.domains[policy].admission.concurrency == concurrency
    assert catalog.tools["pay"].domain is catalog.domains[policy]
    assert catalog.domains[policy].timeouts.first_byte == first_byte
