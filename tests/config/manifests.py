"""Small manifests for tests: written to a folder, loaded, or complained about."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.config.source import ManifestSource
from gateway.core.tool import Catalog

__all__ = ["ROOT", "SECRETS", "complaint", "load", "tool", "write"]

ROOT = Path(__file__).parent.parent.parent
SECRETS = {"SEAWALL_SECRET_PAYMENTS": "sk_live_canary"}


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def load(path: Path, **environ: str) -> Catalog:
    return ManifestSource(path, environ=environ).load()


def complaint(path: Path, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **environ)
    return str(caught.value).replace(str(path.parent) + "/", "")


def tool(operations: str = "", more: str = "") -> str:
    indented = "".join(f"      {line}\n" for line in operations.splitlines())
    return (
        "tools:\n  pay:\n    upstream: http://127.0.0.1:1\n"
        + more
        + ("    operations:\n" + indented if operations else "")
    )
