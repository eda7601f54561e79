"""Clients and servers of other people, on loopback. Their warnings are theirs."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/mcp/" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(pytest.mark.clients)
