"""Both Helms, for every test of the chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helm.tools import Helm, tool


@pytest.fixture(scope="session", params=["3", "4"])
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm 3, then Helm 4."""
    tool("helm", request.param)
    return Helm(request.param, tmp_path_factory.mktemp(f"helm{request.param}"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker for all of them: the tools are fetched once."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.k8s)
            item.add_marker(pytest.mark.xdist_group("k8s"))
