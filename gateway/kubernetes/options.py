"""Settings of an injection, from a file, options and the manifest, decoded like every other setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from gateway.config.decode import decode
from gateway.config.errors import ConfigError, Position, Problem, Problems
from gateway.config.nodes import Map, parse_yaml
from gateway.config.source import ManifestSource
from gateway.core.manifest import Tier
from gateway.core.tool import Catalog
from gateway.kubernetes.settings import InjectSettings

__all__ = ["inject_settings"]


def inject_settings(
    file: Path | None = None, options: Mapping[str, object] | None = None, manifest: Path | None = None
) -> InjectSettings:
    """Return the settings; an option wins over the file.

    A manifest is checked, gives each tool a `<TOOL>_BASE_URL`, sets the time for calls in flight, and tells whether the
    journal may be lost without asking: where nothing is ever undone.

    Raises:
        ConfigError: with everything that is wrong.
    """
    problems = Problems()
    top = Map(Position("defaults")) if file is None else parse_yaml(_read(file), str(file), problems)
    if options:
        given = parse_yaml(yaml.safe_dump(dict(options)).encode(), "options", problems)
        top.values.update(given.values)
        top.keys.update(given.keys)
    settings = decode(top, InjectSettings, problems)
    problems.raise_if_any()
    assert settings is not None
    return settings if manifest is None else _fitted(settings, manifest, _catalog(manifest))


def _fitted(settings: InjectSettings, manifest: Path, catalog: Catalog) -> InjectSettings:
    tiers = {
        operation.tier
        for tool in catalog.tools.values()
        for operation in tool.operations.values()
        if operation.is_declared
    }
    needs_journal = bool(tiers & {Tier.COMPENSABLE, Tier.PIVOT})
    totals = [operation.timeouts.total for tool in catalog.tools.values() for operation in tool.operations.values()]
    urls = {f"{_variable(tool)}_BASE_URL": tool for tool in catalog.tools}
    strange = {to.partition("/")[0] for to in settings.env.values()} - set(catalog.tools)
    if strange:
        raise ConfigError([Problem(Position(str(manifest)), f"it names no tool `{min(strange)}`")])
    if settings.secret is None and "${secret:" in _read(manifest).decode():
        raise ConfigError(
            [Problem(Position(str(manifest)), "it refers to ${secret:…}", "name the Secret that holds them: --secret")]
        )
    return replace(
        settings,
        drain=max(totals, default=settings.drain),
        env={**urls, **settings.env},
        accept_journal_loss=settings.accept_journal_loss or not needs_journal,
    )


def _catalog(manifest: Path) -> Catalog:
    if manifest.is_dir():
        raise ConfigError([Problem(Position(str(manifest)), "it is a folder; a ConfigMap here holds one file")])
    text = _read(manifest)
    catalog = ManifestSource(manifest, is_offline=True).load()
    for name in (yaml.safe_load(text) or {}).get("include") or ():
        if not str(name).startswith("seawall:"):
            raise ConfigError(
                [
                    Problem(
                        Position(str(manifest)),
                        f"it includes {name}, which is not in the image",
                        "include what comes with Seawall, such as seawall:policies/external.yaml, or write it in",
                    )
                ]
            )
    return catalog


def _variable(tool: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in tool).upper()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            [Problem(Position(str(file)), f"cannot read it: {error.strerror or 'unknown error'}")]
        ) from None
