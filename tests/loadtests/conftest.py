from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.process import Server, python, start


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Server]:
    """The tool of the benchmark, as a process."""
    server = start("upstream", python("loadtests.upstream"), core=None, folder=tmp_path)
    yield server
    server.stop()
