"""Rules in a manifest: compiled for the operations they concern, and complained about with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.tool import Catalog
from tests.config.manifests import complaint, load, write

BASE = """
tools:
  pay:
    upstream: http://127.0.0.1:1
    operations:
      hold: {match: POST /holds, tier: reversible}
      payout: {match: POST /payouts, tier: pivot}
  files: {upstream: "http://127.0.0.1:2"}
  git: {mcp: {url: "http://127.0.0.1:3/mcp"}}
"""


def ruled(catalog: Catalog, tool: str) -> dict[str, list[str]]:
    return {name: [one.name for one in operation.rules] for name, operation in catalog.tools[tool].operations.items()}


def test_an_operation_asks_only_the_rules_that_concern_it(tmp_path: Path) -> None:
    rules = """
rules:
  all: {effect: deny, when: "agent == 'x'"}
  pivots: {effect: hold, tiers: [pivot]}
  paying: {effect: deny, tools: [pay], operations: [payout]}
  reading: {effect: deny, tiers: [read], tools: [files]}
"""
    catalog = load(write(tmp_path, m=BASE + rules))
    assert ruled(catalog, "pay") == {
        "hold": ["all"],
        "payout": ["all", "pivots", "paying"],
        "undeclared:read": ["all", "paying"],
        "undeclared:write": ["all", "pivots", "paying"],
    }
    assert ruled(catalog, "files") == {"undeclared:read": ["all", "reading"], "undeclared:write": ["all"]}
    other = catalog.tools["git"].match("CALL", "/anything").operation
    assert [one.name for one in other.rules] == ["all", "pivots"]
    assert [one.name for one in catalog.stranger_rules] == ["all"]


def test_a_tool_that_no_rule_concerns_has_none(tmp_path: Path) -> None:
    catalog = load(write(tmp_path, m=BASE + "rules: {paying: {effect: deny, tools: [pay]}}\n"))
    assert not any(one.rules for one in catalog.tools["files"].operations.values())


def test_a_changed_rule_makes_another_tool_of_those_it_concerns(tmp_path: Path) -> None:
    """A reload must not leave the old rule in force."""
    from gateway.config.source import ManifestSource

    path = write(tmp_path, m=BASE + "rules: {paying: {effect: deny, tools: [pay]}}\n")
    source = ManifestSource(path, environ={})
    before = source.load()
    write(tmp_path, m=BASE + "rules: {paying: {effect: hold, tools: [pay]}}\n")
    after = source.load(before)
    assert after.tools["pay"] is not before.tools["pay"]
    assert after.tools["files"] is before.tools["files"]
    assert after.tools["pay"].operations["payout"].rules[0].effect.value == "hold"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{effect: forbid}", "m.yaml:10:17: `effect`: must be one of `allow`, `hold`, `deny`, `quarantine`"),
        ("{effect: deny, when: agnet == 'x'}", "unknown name `agnet` (did you mean `agent`?)"),
        ("{effect: deny, when: response.status == 1}", "unknown name `response`"),
        ("{effect: deny, tools: [apy]}", "m.yaml:10:31: unknown tool `apy` (did you mean `pay`?)"),
        (
            "{effect: deny, operations: [pay.hodl]}",
            "no tool declares an operation `pay.hodl` (did you mean `pay.hold`?)",
        ),
        ("{effect: hold, approval: board}", "unknown approval policy `board`"),
        ("{effect: deny, approval: board}", "`approval` says who decides about what is held (use `effect: hold`)"),
        ("{effect: deny, timezone: Mars/Base}", "unknown zone `Mars/Base` (as in `Europe/Berlin`)"),
        ("{effect: deny, tiers: [final]}", "m.yaml:10:31: `0`: must be one of `read`"),
        ("{when: 'true'}", "`effect` is required"),
    ],
)
def test_a_bad_rule_is_named_with_its_place(tmp_path: Path, rule: str, said: str) -> None:
    assert said in complaint(write(tmp_path, m=BASE.lstrip() + f"rules:\n  one: {rule}\n"))
