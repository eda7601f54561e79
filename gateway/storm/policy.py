"""A policy put over a manifest: the same tools under other settings, as text that any gateway can load."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import yaml

from gateway.config.source import ManifestSource
from gateway.core.tool import Catalog
from gateway.storm.scenario import PolicySettings, Scenario

__all__ = ["catalog_of", "manifest_for"]

# A part is taken out by settings under which it never acts: the code that runs is the same.
_WITHOUT: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "breaker": {"breaker": {"window": 10_000, "minimum": 10_000, "failure_ratio": 1.0, "max_age": 0.000001}},
    "budget": {"retry": {"budget_ratio": 1.0, "budget_floor": 1e12}},
    "bulkhead": {"domain": {"concurrency": 1_000_000_000, "reserved": 0, "queue": 0}},
}
_NEVER = 1_000_000_000


def manifest_for(scenario: Scenario, policy: PolicySettings, upstreams: Mapping[str, str] | None = None) -> str:
    """Return the scenario's manifest under a policy, with the upstreams of tools replaced by those given."""
    document = cast("dict[str, Any]", yaml.safe_load(scenario.manifest) or {})
    document["include"] = [_absolute(include, scenario.folder) for include in document.get("include") or ()]
    domains: dict[str, Any] = document.setdefault("domains", {})
    tools: dict[str, Any] = document.setdefault("tools", {})
    if policy.one_domain:
        first: dict[str, Any] = next(iter(domains.values()), {})
        document["domains"] = domains = {"everything": dict(first)}
    if policy.admission is not None:
        for domain in domains.values():
            domain.update(_plain(policy.admission))
    for domain in domains.values() if policy.drop_rate else ():
        domain.pop("rate", None)
    for part in policy.without:
        for domain in domains.values() if part == "bulkhead" else ():
            domain.update(_WITHOUT[part]["domain"])
    for name, tool in tools.items():
        if policy.one_domain:
            tool["domain"] = "everything"
        if policy.breaker is not None:
            tool["breaker"] = _plain(policy.breaker)
        if policy.retry is not None:
            tool["retry"] = _plain(policy.retry)
        _take_out(policy, tool, domains.get(tool.get("domain"), {}))
        if upstreams is not None and name in upstreams:
            tool["upstream"] = upstreams[name]
    return yaml.safe_dump(document, sort_keys=False)


def _absolute(include: str, folder: str) -> str:
    return include if include.startswith("seawall:") or not folder else str(Path(folder, include))


def _take_out(policy: PolicySettings, tool: dict[str, Any], domain: Mapping[str, Any]) -> None:
    if "breaker" in policy.without:
        tool["breaker"] = {**_WITHOUT["breaker"]["breaker"], "consecutive": _NEVER}
    if "budget" in policy.without:
        tool["retry"] = {**domain.get("retry", {}), **tool.get("retry", {}), **_WITHOUT["budget"]["retry"]}


@lru_cache(maxsize=32)
def catalog_of(manifest: str) -> Catalog:
    """Return the catalog of a manifest given as text; the same for the same text, since many seeds share one.

    Raises:
        ConfigError: something is wrong with it.
    """
    with tempfile.TemporaryDirectory(prefix="seawall-storm-") as folder:
        path = Path(folder) / "manifest.yaml"
        path.write_text(manifest)
        return ManifestSource(path, is_offline=True).load()


def _plain(settings: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = _plain(value)
        elif value is not None:
            found[field.name] = value.value if isinstance(value, Enum) else value
    return found
