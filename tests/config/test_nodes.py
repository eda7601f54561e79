"""YAML is read with positions, and its traps are errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.errors import ConfigError, Problems
from gateway.config.nodes import Map, Scalar, Seq, parse_yaml


def read(text: str | bytes) -> Map:
    problems = Problems()
    node = parse_yaml(text.encode() if isinstance(text, str) else text, "m.yaml", problems)
    problems.raise_if_any()
    return node


def complaint(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_everything_knows_where_it_stands() -> None:
    """Positions are what makes an error message worth reading."""
    node = read("a:\n  b: [x, {c: 1}]\n")
    assert str(node.at("a")) == "m.yaml:1:1"
    assert str(node.at("a", "b", 0)) == "m.yaml:2:7"
    assert str(node.at("a", "b", 1, "c")) == "m.yaml:2:14"
    assert str(node.at("a", "missing", "x")) == "m.yaml:1:1"
    assert isinstance(node.values["a"], Map)
    assert isinstance(node.values["a"].values["b"], Seq)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3", "m.yaml:3:1: `a` is already set at line 1"),
        ("a: &x 1", "m.yaml:1:4: anchors"),
        ("a: *x", "m.yaml:1:4: aliases"),
        ("a: !!python/object:os.system x", "m.yaml:1:4: tags"),
        ("a: !secret x", "m.yaml:1:4: tags"),
        ("a: 1\n---\nb: 2", "m.yaml:2:1: a second document"),
        ("<<: {a: 1}", "m.yaml:1:1: merge keys"),
        ("on: 1", "m.yaml:1:1: a key must be text"),
        ("1: x", "m.yaml:1:1: a key must be text"),
        ("null: x", "m.yaml:1:1: a key must be text"),
        ("? [a]\n: 1", "m.yaml:1:3: a key must be text, not a list"),
        ("- a", "m.yaml:1:1: expected a mapping"),
        ("text", "m.yaml:1:1: expected a mapping"),
        ("a: [1", "m.yaml:2:1: not YAML"),
        ("a: b: c", "m.yaml:1:5: not YAML"),
        ("a: 1\nb: \x07", "m.yaml:2:1: the file holds a control character"),
        (b"a: 1\nb: \xff", "m.yaml:2:4: the file is not UTF-8"),
        ("a: " + "[" * 30, "m.yaml:1:23: nested more than 20 levels"),
        ("a: 1\n" * 60_000, "m.yaml: the file is larger than 256 KiB"),
    ],
)
def test_a_trap_is_an_error_with_its_place(text: str | bytes, expected: str) -> None:
    """A second `tier:` would silently turn a pivot into something reversible; an alias bomb walks for ever."""
    assert expected in complaint(text)


def test_an_alias_bomb_ends_at_once() -> None:
    """It loads in milliseconds and has 9^9 leaves."""
    bomb = "a: &a [x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{('*' + chr(97 + i) + ', ') * 9}]\n" for i in range(9)
    )
    assert "anchors" in complaint(bomb)


def test_empty_files_and_comments_are_empty_mappings() -> None:
    """A file may be commented out as a whole."""
    for text in ("", "# nothing\n", "~", "\ufeff"):
        assert read(text).values == {}


def test_scalars_keep_their_text() -> None:
    """What they mean is decided by the field."""
    node = read("a: 012\nb: '1'\nc: |\n  x\n")
    assert node.values == {
        "a": Scalar(node.keys["a"].__class__("m.yaml", 1, 4), "012"),
        "b": Scalar(node.at("b"), "1", is_plain=False),
        "c": Scalar(node.at("c"), "x\n", is_plain=False),
    }


@given(st.text(alphabet=st.characters() | st.sampled_from("{}[]:,-&*!|>'\"%@`#?\n \t"), max_size=200))
def test_any_text_is_a_value_or_a_problem(text: str) -> None:
    """The loader never raises anything else, whatever is in the file."""
    parse_yaml(text.encode("utf-8", "surrogatepass"), "m.yaml", Problems())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_problem(data: bytes) -> None:
    """The same for bytes that are no text."""
    parse_yaml(data, "m.yaml", Problems())
