"""A client library of toxiproxy, as tests of other people use it, at our fault proxy: it need not know the difference."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.storm.children import start_python
from tests.lacking import lacking
from tests.origin import Answer, Origin

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".clients" / "generators" / "bin" / "python"
# What a suite of somebody's does: a slow link, a cut one, a link that is down, and everything well again.
SUITE = """
import json, sys, time
import requests
from toxiproxy import Toxiproxy

port, upstream = int(sys.argv[1]), sys.argv[2]
server = Toxiproxy()
server.update_api_consumer("127.0.0.1", port)
assert server.running()
assert server.version()
(proxy,) = server.populate([{"name": "pay", "upstream": upstream, "listen": "127.0.0.1:0"}])
url = f"http://{proxy.listen}/x"


def took():
    began = time.monotonic()
    assert requests.get(url, timeout=10).text == "fine"
    return time.monotonic() - began


def fails():
    try:
        requests.get(url, timeout=10)
    except requests.ConnectionError:
        return True
    return False


told = {"well": took() < 5}
proxy.add_toxic(type="latency", attributes={"latency": 300})
told["slow"] = took() >= 0.29
assert proxy.get_toxic("latency_downstream").attributes["latency"] == 300
proxy.destroy_toxic("latency_downstream")
proxy.add_toxic(type="limit_data", attributes={"bytes": 5})
told["cut"] = fails()
server.reset()
with proxy.down():
    told["down"] = fails()
told["up"] = took() < 5
server.destroy_all()
told["gone"] = server.proxies() == {}
print(json.dumps(told))
"""


@pytest.mark.clients
@pytest.mark.timeout(120)
async def test_a_client_library_of_toxiproxy_works_unchanged(tmp_path: Path) -> None:
    if not PYTHON.exists():
        lacking("toxiproxy-python: `make clients` installs it")
    proxies = await start_python("gateway.storm.faultproxy", log=tmp_path / "faultproxy.log")
    try:
        async with Origin() as origin:
            origin.on("GET /x", Answer(200, b"fine"))
            port = proxies.told["api"].rpartition(":")[2]
            suite = await asyncio.create_subprocess_exec(
                str(PYTHON), "-c", SUITE, port, f"127.0.0.1:{origin.port}",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            told, wrong = await suite.communicate()
    finally:
        await proxies.stop()
    assert suite.returncode == 0, wrong.decode()
    assert json.loads(told) == dict.fromkeys(("well", "slow", "cut", "down", "up", "gone"), True)
