"""Secrets that print as nothing, and the placeholders that stand for them wherever something is written down.

A compensator is bound and journaled when its step commits, perhaps days before it is sent. So its headers keep
`${secret:NAME}`, and the value is filled in at dispatch, from the manifest then in force: the journal never holds a
secret, and a rotated credential is used in its new form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["PLACEHOLDER", "Secret", "SecretBox", "SecretMissing"]

PLACEHOLDER: Final = re.compile(r"\$\{\s*secret:([A-Za-z0-9_.-]+)\s*\}")
"""What stands for a secret, in the manifest and in a bound request."""


class SecretMissing(LookupError):
    """A placeholder names a secret that is not in force any more. The message names it and no value."""


class Secret:
    """A value that is never printed by accident."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Whoever calls this sees to it that it goes nowhere but to the tool."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


class SecretBox:
    """All secrets of a manifest, by name."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, Secret] | None = None) -> None:
        self._secrets = dict(secrets or {})

    @property
    def names(self) -> frozenset[str]:
        """The names, which are no secret."""
        return frozenset(self._secrets)

    def resolve(self, text: str) -> str:
        """Return `text` with each placeholder replaced by its secret.

        Raises:
            SecretMissing: a placeholder names an unknown secret.
        """
        return PLACEHOLDER.sub(lambda found: self._named(found.group(1)).reveal(), text)

    def resolve_headers(self, headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Return the fields of a `BoundRequest` as they go over the wire.

        Raises:
            SecretMissing: a placeholder names an unknown secret.
        """
        return tuple((name, self.resolve(value)) for name, value in headers)

    def _named(self, name: str) -> Secret:
        if name not in self._secrets:
            raise SecretMissing(f"secret {name!r} is not in the manifest now in force; add it and try again")
        return self._secrets[name]

    def __repr__(self) -> str:
        return f"SecretBox({', '.join(sorted(self._secrets))})"
