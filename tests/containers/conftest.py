"""Images once, podman for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.containers.engine import Podman, build_images


@pytest.fixture(scope="session")
def images() -> None:
    """The images, built."""
    build_images()


@pytest.fixture
def podman(images: None, tmp_path: Path) -> Podman:
    """Podman with the images there."""
    return Podman(tmp_path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker, and time for a build that is tried again."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.xdist_group("containers"))
            item.add_marker(pytest.mark.timeout(1500))
