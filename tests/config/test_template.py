"""Templates are cut once, at load; a value never opens a hole."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.cel import ExpressionProblem
from gateway.config.template import SecretRef, compile_parts, render, secrets_in, split_holes

ENV = {"key": "k", "step": 3, "request": {"json": {"a": {"b": "}"}}}}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain", "plain"),
        ("${key}", "k"),
        ("a ${key} b ${step}", "a k b 3"),
        ("$${key}", "${key}"),
        ("$$${key}", "$${key}"),
        ("$ {key} $", "$ {key} $"),
        ("${ {'a': key}['a'] }", "k"),
        ("${'}' + key + \"}\"}", "}k}"),
        ("${'''}'''}", "}"),
        ("${'\\'}' + key}", "'}k"),
        ("${r'\\' + key}", "\\k"),
        ("}${key}{", "}k{"),
        ("${request.json.a.b}", "}"),
    ],
)
def test_holes_are_found_and_filled(text: str, rendered: str) -> None:
    """Braces in CEL maps and strings do not end a hole."""
    assert render(compile_parts(text), ENV) == rendered


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("${", "no closing"),
        ("${key", "no closing"),
        ("${}", "empty"),
        ("${ }", "empty"),
        ("${'a}", "string without an end"),
        ("${secret:}", "name"),
        ("${secret:a b}", "name"),
    ],
)
def test_a_hole_that_does_not_end_is_an_error(text: str, part: str) -> None:
    """With the way to write the characters themselves."""
    with pytest.raises(ExpressionProblem, match=part):
        compile_parts(text)


def test_secrets_stay_placeholders() -> None:
    """What is rendered may be journaled."""
    parts = compile_parts("Bearer ${ secret:pay-1 }!")
    assert parts == ("Bearer ", SecretRef("pay-1"), "!")
    assert secrets_in(parts) == {"pay-1"}
    assert render(parts, {}) == "Bearer ${secret:pay-1}!"


@given(st.text(alphabet="${}'\"r\\ akey", max_size=40))
def test_any_text_is_cut_or_refused(text: str) -> None:
    """Nothing else."""
    with contextlib.suppress(ExpressionProblem):
        split_holes(text)


@given(st.text(max_size=40))
def test_a_value_comes_out_as_it_went_in(value: str) -> None:
    """It is not cut again."""
    assert render(compile_parts("<${key}>"), {"key": value}) == f"<{value}>"
