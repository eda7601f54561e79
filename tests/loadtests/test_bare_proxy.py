from pathlib import Path

import pytest

from loadtests.load import Load
from loadtests.process import Server, python, start
from loadtests.session import offer


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_calls_come_back_unchanged(upstream: Server, tmp_path: Path, loop: str) -> None:
    """A baseline that fails or alters calls would flatter everything it is compared with."""
    command = python("loadtests.bare_proxy", "--loop", loop, "--upstream", f"http://127.0.0.1:{upstream.port}")
    proxy = start(f"bare-{loop}", command, core=None, folder=tmp_path)
    try:
        for workload in ("read", "write"):
            tally = await offer(Load(port=proxy.port, workload=workload, connections=2, calls=20))
            assert (tally.problem, tally.calls, tally.sent) == ("", 20, 22)
    finally:
        proxy.stop()
