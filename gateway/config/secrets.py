"""Where secrets come from: the manifest's `secrets:` entry, else SEAWALL_SECRET_<NAME>, else a file in the secrets folder.

One trailing line break is dropped, because editors and `echo` add it. An empty secret, or one with a line break in it,
is refused at load: it would fail at the first call, or split a header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config.errors import shown
from gateway.config.files import FileLog
from gateway.config.loader import Entry
from gateway.core.manifest import SecretSettings
from gateway.core.secret import Secret

__all__ = ["SecretProblem", "SecretSource", "variable_of"]

LIMIT_CHARACTERS: Final = 8 << 10
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class SecretProblem(Exception):
    """A secret that is not to be had. The message holds no value; `hint` says how to provide it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def variable_of(name: str) -> str:
    """Return the environment variable that provides a secret which has no entry."""
    return "SEAWALL_SECRET_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


class SecretSource:
    """Reads secrets. With `is_offline` it makes them up, so that a manifest can be checked where there are none."""

    def __init__(
        self, folder: Path | None, environ: Mapping[str, str], files: FileLog, is_offline: bool = False
    ) -> None:
        self._folder = folder
        self._environ = environ
        self._is_offline = is_offline
        self._files = files

    @property
    def is_offline(self) -> bool:
        """Whether what is secret is made up, and its files need not be there."""
        return self._is_offline

    @property
    def files(self) -> FileLog:
        """What notes the files that are read."""
        return self._files

    def read(self, name: str, entry: Entry[SecretSettings] | None) -> Secret:
        """Return a secret.

        Raises:
            SecretProblem: it is missing, empty, or cannot stand in a header.
        """
        if self._is_offline:
            return Secret(f"secret-{name}")
        text = self._text(name, entry)
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise SecretProblem(f"secret `{shown(name)}` is empty", "write the value into its file or variable")
        if len(text) > LIMIT_CHARACTERS:
            raise SecretProblem(f"secret `{shown(name)}` is longer than 8 KiB", "is it the right file?")
        if _CONTROL.search(text) or not _is_unicode(text):
            raise SecretProblem(
                f"secret `{shown(name)}` holds a line break, or what is no text", "it must fit into one header"
            )
        return Secret(text)

    def _text(self, name: str, entry: Entry[SecretSettings] | None) -> str:
        if entry is not None and entry.settings.env is not None:
            return self._variable(name, entry.settings.env)
        if entry is not None and entry.settings.file is not None:
            return self._file(name, entry.folder / entry.settings.file)
        variable = variable_of(name)
        if variable in self._environ:
            return self._environ[variable]
        if self._folder is not None:
            return self._file(name, self._folder / name)
        raise SecretProblem(f"secret `{shown(name)}` is missing", f"set {variable}, or add it under `secrets:`")

    def _variable(self, name: str, variable: str) -> str:
        if variable not in self._environ:
            raise SecretProblem(
                f"secret `{shown(name)}` is missing: {shown(variable)} is not set", f"set {shown(variable)}"
            )
        return self._environ[variable]

    def _file(self, name: str, path: Path) -> str:
        hint = f"put the value into {shown(str(path), 500)}, or set {variable_of(name)}"
        try:
            return self._files.read(path).decode()
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            raise SecretProblem(f"secret `{shown(name)}` is missing: its file: {reason}", hint) from None
        except UnicodeDecodeError:
            raise SecretProblem(f"secret `{shown(name)}` is not UTF-8 text", hint) from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
