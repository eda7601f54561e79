"""A tool that this machine does not have: said loudly on a developer's machine, a failure in CI."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import pytest

__all__ = ["lacking"]


def lacking(what: str) -> NoReturn:
    """End the test: it could not look. In CI that is a failure, because nobody reads a skip."""
    if os.environ.get("CI"):
        pytest.fail(f"NOT SHOWN: {what}", pytrace=False)
    print(f"\nNOT SHOWN on this machine: {what}", file=sys.__stderr__, flush=True)
    pytest.skip(f"NOT SHOWN: {what}")
