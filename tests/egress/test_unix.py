"""Tools behind a Unix socket."""

from __future__ import annotations

from pathlib import Path

from gateway.config.source import ManifestSource
from gateway.core.codes import Dispatched
from gateway.core.fault import Fault
from gateway.core.tool import ToolSpec
from gateway.egress import Egress
from tests.config.manifests import write
from tests.origin import Answer, Drop, Origin
from tests.tools import LONG, answered, broken, get, post, read


def tool(folder: Path, upstream: str, name: str = "pay") -> ToolSpec:
    text = f"tools:\n  {name}:\n    upstream: {upstream}\n"
    return ManifestSource(write(folder, m=text), environ={}).load().tools[name]


async def test_a_tool_behind_a_socket_is_reached_and_its_connection_kept(egress: Egress, tmp_path: Path) -> None:
    async with Origin(path=str(tmp_path / "t.sock")) as origin:
        spec = tool(tmp_path, f"unix:{origin.path}:/v2")
        for _ in range(2):
            assert await read(answered(await egress.send(spec, post(target=b"/x?y=1"), LONG))) == b"ok"
        assert origin.connections == 1
        assert origin.requests[0].head.startswith(b"POST /v2/x?y=1 HTTP/1.1\r\nHost: localhost\r\n")


async def test_two_sockets_are_two_tools(egress: Egress, tmp_path: Path) -> None:
    async with Origin(path=str(tmp_path / "a.sock")) as a, Origin(path=str(tmp_path / "b.sock")) as b:
        a.default, b.default = Answer(200, b"a"), Answer(200, b"b")
        for name in ("a", "b", "a"):
            spec = tool(tmp_path, f"unix:{tmp_path}/{name}.sock", name)
            assert await read(answered(await egress.send(spec, get(), LONG))) == name.encode()


async def test_a_socket_that_nobody_listens_on(egress: Egress, tmp_path: Path) -> None:
    outcome = await egress.send(tool(tmp_path, f"unix:{tmp_path}/none.sock"), post(), LONG)
    assert broken(outcome) == (Fault.CONNECT, Dispatched.NO)


async def test_a_call_that_is_dropped_is_sent_once(egress: Egress, tmp_path: Path) -> None:
    async with Origin(path=str(tmp_path / "t.sock")) as origin:
        spec = tool(tmp_path, f"unix:{origin.path}")
        await read(answered(await egress.send(spec, get(), LONG)))
        origin.default = Drop(applies=True)
        assert broken(await egress.send(spec, post(), LONG)) == (Fault.RESET, Dispatched.MAYBE)
        assert len(origin.requests) == 2
