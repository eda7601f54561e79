"""The page of guarantees names tests that exist, so that none is renamed away from under its promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def names_in(path):
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_every_test_that_a_guarantee_names_is_there():
    """A promise without its test is a wish."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    named = NAMED.findall(text)
    assert len(named) >= 35
    missing = [
        f"{path}{name}"
        for path, name in named
        if not (ROOT / path).exists() or name.rsplit("::", 1)[1] not in names_in(ROOT / path)
    ]
    assert missing == []


def test_every_guarantee_has_a_test_and_its_limits():
    text = (ROOT / "docs" / "guarantees.md").read_text()
    sections = re.split(r"^## (?=\d)", text, flags=re.M)[1:]
    assert len(sections) == 12
    for section in sections:
        assert "*Shown by*" in section, section.splitlines()[0]
        assert "*Limits.*" in section, section.splitlines()[0]
