"""Suites of other people, run through the gateway; marked `suites`. They wait for real time, so each has a while."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.suites)
            item.add_marker(pytest.mark.timeout(180))
