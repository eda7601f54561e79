"""Whether a claim about figures holds: `seawall.during.amplification <= 1.1 * naive.before.amplification`.

A claim is one comparison of numbers, figures by their path, and + - * / between them. It is read with Python's own parser
and nothing else of Python: no calls, no indexing, no names but the policies.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ClaimError", "Verdict", "judge"]


class ClaimError(ValueError):
    """The claim cannot be read, or names a figure that is not there. The message says which."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim, whether it holds, and both sides as numbers."""

    claim: str
    holds: bool
    left: float
    right: float

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'FAILS'}  {self.claim}   ({self.left:.4g} against {self.right:.4g})"


_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: lambda left, right: math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12) or left == right,
}


def judge(claim: str, figures: Mapping[str, Any]) -> Verdict:
    """Return whether a claim holds of figures by policy.

    Raises:
        ClaimError: it cannot be read, or a figure is missing.
    """
    try:
        body = ast.parse(claim.strip(), mode="eval").body
    except SyntaxError as error:
        raise ClaimError(f"`{claim}` cannot be read: {error.msg}") from None
    if not isinstance(body, ast.Compare) or len(body.ops) != 1 or type(body.ops[0]) not in _COMPARISONS:
        raise ClaimError(f"`{claim}` must be one comparison, such as `seawall.amplification <= 1.1`")
    left, right = _value(body.left, figures, claim), _value(body.comparators[0], figures, claim)
    return Verdict(claim, _COMPARISONS[type(body.ops[0])](left, right), left, right)


def _value(node: ast.expr, figures: Mapping[str, Any], claim: str) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, figures, claim)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, figures, claim), _value(node.right, figures, claim)
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Attribute | ast.Name):
        return _figure(ast.unparse(node), figures, claim)
    raise ClaimError(f"`{claim}`: only numbers, figures and + - * / can be compared")


def _figure(path: str, figures: Mapping[str, Any], claim: str) -> float:
    found: Any = figures
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            known = ", ".join(sorted(map(str, found))) if isinstance(found, Mapping) else "nothing below it"
            raise ClaimError(f"`{claim}`: there is no `{step}` of `{path}`; there is {known}")
        found = found[step]
    if not isinstance(found, int | float):
        raise ClaimError(f"`{claim}`: `{path}` is not a number")
    return float(found)
