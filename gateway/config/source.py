"""A manifest on disk: loaded whole or not at all, and compared with the one in force."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config.compile import compile_catalog
from gateway.config.errors import Problem, Problems
from gateway.config.files import FileLog
from gateway.config.loader import load_files
from gateway.config.secrets import SecretSource
from gateway.core.tool import Catalog

__all__ = ["CatalogChange", "ManifestSource", "diff"]


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """What a reload changed: names of tools, sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        said = [
            f"{what} {', '.join(names)}"
            for what, names in (("added", self.added), ("removed", self.removed), ("changed", self.changed))
            if names
        ]
        return "; ".join(said) or "no tool changed"


def diff(old: Catalog, new: Catalog) -> CatalogChange:
    """Return which tools came, went, or have other settings."""
    return CatalogChange(
        added=tuple(sorted(new.tools.keys() - old.tools.keys())),
        removed=tuple(sorted(old.tools.keys() - new.tools.keys())),
        changed=tuple(
            sorted(name for name in old.tools.keys() & new.tools.keys() if old.tools[name] is not new.tools[name])
        ),
    )


class ManifestSource:
    """A manifest by its path: a file, or a folder of *.yaml.

    Args:
        path: the file or folder.
        secrets: folder with a file per secret.
        environ: where `SEAWALL_SECRET_…` is looked up; the process's own by default.
        digest_key: keys digests of credentials; the same over restarts, or breakers forget their state.
        is_offline: make secrets up instead of reading them, to check a manifest where there are none.

    Attributes:
        warnings: what was odd at the last load.
        files: everything that the last load read or looked for, folders included.
        stamp: digest of all of it as it was then; `stamp_of(files)` differs once one of them changed.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        secrets: Path | str | None = None,
        environ: Mapping[str, str] | None = None,
        digest_key: bytes = b"",
        is_offline: bool = False,
    ) -> None:
        self.path = Path(path)
        self.warnings: tuple[Problem, ...] = ()
        self.files: frozenset[Path] = frozenset({self.path})
        self.stamp = b""
        self._secrets = Path(secrets) if secrets is not None else None
        self._environ = os.environ if environ is None else environ
        self._digest_key = digest_key
        self._is_offline = is_offline

    def load(self, previous: Catalog | None = None) -> Catalog:
        """Return the catalog; unchanged tools and domains of `previous` are reused as they are.

        Reads files and so blocks for milliseconds; on an event loop call it in a thread. May be called again.

        Raises:
            ConfigError: something is wrong; `previous` is untouched and stays good.
        """
        problems, files = Problems(), FileLog()
        loaded = load_files(self.path, files, problems)
        secrets = SecretSource(self._secrets, self._environ, files, self._is_offline)
        catalog = compile_catalog(loaded, secrets, problems, self._digest_key, previous)
        self.files, self.stamp, self.warnings = files.paths, files.stamp(), problems.warnings
        problems.raise_if_any()
        return catalog
