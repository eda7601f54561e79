"""What the rules know of expressions: something compiled that is evaluated over an environment.

The language (CEL) and its library live in `gateway/config/`; here is only the shape, so that tests can hand in a plain
function. The environment is a mapping with these names, all optional: `request`, `response`, `key`, `trajectory`, `step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Environment", "Expression", "ExpressionError"]

Environment = Mapping[str, object]


class ExpressionError(ValueError):
    """An expression could not be evaluated: a name or member is missing, or the types do not fit.

    The message names the expression and what was missing; it never contains a value.
    """


class Expression(Protocol):
    """A compiled expression."""

    @property
    def source(self) -> str:
        """The text it was compiled from, for messages."""

    def __call__(self, env: Environment) -> object:
        """Evaluate.

        Raises:
            ExpressionError: a name or member is missing, or the types do not fit.
        """
