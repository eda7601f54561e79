"""TLS with tools that want more than the system's trust: an authority of their own, a certificate of ours, another name.

Real servers on loopback; what a handshake refuses never reaches the tool, and says so.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.config.source import ManifestSource
from gateway.core.codes import Dispatched
from gateway.core.fault import Broken, Fault
from gateway.core.tool import ToolSpec
from gateway.egress import Egress
from gateway.egress.direct import DirectEgress
from gateway.egress.spool import Spool
from tests.certificates import Issuer, server_context
from tests.config.manifests import write
from tests.origin import Origin
from tests.tools import LONG, answered, get, post, read

OURS = "{ca: ca.pem}"
MUTUAL = "{ca: ca.pem, certificate: cert.pem, key: key.pem}"


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    made = Issuer(tmp_path)
    (tmp_path / "ca.pem").write_bytes(made.ca.read_bytes())
    give(tmp_path, made.issue("client"))
    return made


def give(folder: Path, issued: Path) -> None:
    """Put a certificate and its key where the manifest looks for them."""
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((issued / name).read_bytes())


def tool(folder: Path, origin: Origin, tls: str, host: str = "127.0.0.1") -> ToolSpec:
    text = f"tools:\n  pay:\n    upstream: https://{host}:{origin.port}\n    tls: {tls}\n"
    return ManifestSource(write(folder, m=text), environ={}).load().tools["pay"]


async def why(egress: Egress, spec: ToolSpec) -> str:
    """Send a write that must not leave, and return why it did not."""
    outcome = await egress.send(spec, post(), LONG)
    assert isinstance(outcome, Broken)
    assert (outcome.fault, outcome.dispatched) == (Fault.CONNECT, Dispatched.NO), outcome
    return outcome.detail


async def test_a_tool_of_its_own_authority_is_reached_and_its_connection_kept(
    egress: Egress, issuer: Issuer, tmp_path: Path
) -> None:
    async with Origin(tls=server_context(issuer.issue("127.0.0.1"))) as origin:
        spec = tool(tmp_path, origin, OURS)
        for _ in range(3):
            assert await read(answered(await egress.send(spec, get(), LONG))) == b"ok"
        assert origin.connections == 1


async def test_another_tools_authority_counts_for_nothing(egress: Egress, issuer: Issuer, tmp_path: Path) -> None:
    """Two tools at one address share no connection where their trust differs."""
    (tmp_path / "other.pem").write_bytes(Issuer(tmp_path, "other authority").ca.read_bytes())
    async with Origin(tls=server_context(issuer.issue("127.0.0.1"))) as origin:
        answered(await egress.send(tool(tmp_path, origin, OURS), get(), LONG))
        assert "unable to get local issuer certificate" in await why(egress, tool(tmp_path, origin, "{ca: other.pem}"))
        assert len(origin.requests) == 1


@pytest.mark.parametrize(
    ("names", "days", "said"),
    [
        (("api.example",), 2, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        (("127.0.0.1",), 0, "certificate has expired"),
    ],
)
async def test_a_certificate_for_another_host_or_out_of_date_is_refused(
    egress: Egress, issuer: Issuer, tmp_path: Path, names: tuple[str, ...], days: int, said: str
) -> None:
    async with Origin(tls=server_context(issuer.issue(*names, days=days))) as origin:
        assert said in await why(egress, tool(tmp_path, origin, OURS))
        assert origin.requests == []


async def test_a_certificate_that_is_not_good_yet_is_refused(egress: Egress, issuer: Issuer, tmp_path: Path) -> None:
    async with Origin(tls=server_context(issuer.issue("127.0.0.1", since_days=1))) as origin:
        assert "certificate is not yet valid" in await why(egress, tool(tmp_path, origin, OURS))


async def test_the_name_sent_and_checked_can_be_another_than_the_hosts(
    egress: Egress, issuer: Issuer, tmp_path: Path
) -> None:
    asked: list[str | None] = []
    context = server_context(issuer.issue("api.internal"))
    context.sni_callback = lambda connection, name, of: asked.append(name)
    async with Origin(tls=context) as origin:
        spec = tool(tmp_path, origin, "{ca: ca.pem, server_name: api.internal}")
        assert await read(answered(await egress.send(spec, get(), LONG))) == b"ok"
        assert origin.requests[0].values(b"host") == [b"127.0.0.1:%d" % origin.port]
        assert "not valid for 'api.elsewhere'" in await why(
            egress, tool(tmp_path, origin, "{ca: ca.pem, server_name: api.elsewhere}")
        )
    assert asked == ["api.internal", "api.elsewhere"]


async def test_the_hosts_name_is_sent_where_no_other_is_given(egress: Egress, issuer: Issuer, tmp_path: Path) -> None:
    asked: list[str | None] = []
    context = server_context(issuer.issue("localhost"))
    context.sni_callback = lambda connection, name, of: asked.append(name)
    async with Origin(tls=context) as origin:
        answered(await egress.send(tool(tmp_path, origin, OURS, host="localhost"), get(), LONG))
    assert asked == ["localhost"]


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_tool_that_asks_for_a_certificate_gets_ours(
    egress: Egress, issuer: Issuer, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    context = server_context(issuer.issue("127.0.0.1"), clients=issuer.ca, newest=newest)
    async with Origin(tls=context) as origin:
        assert await read(answered(await egress.send(tool(tmp_path, origin, MUTUAL), post(), LONG))) == b"ok"


@pytest.mark.parametrize("tls", [MUTUAL, OURS])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_tool_that_turns_our_certificate_away_has_read_nothing(
    spool: Spool, issuer: Issuer, tmp_path: Path, newest: ssl.TLSVersion, tls: str
) -> None:
    """In TLS 1.3 its no comes after the request was written: a write must not be in doubt for that."""
    give(tmp_path, Issuer(tmp_path, "stranger").issue("client"))
    context = server_context(issuer.issue("127.0.0.1"), clients=issuer.ca, newest=newest)
    with blocking_server(context) as (port, read_there):
        egress = DirectEgress(spool)
        assert "TLS with pay failed" in await why(egress, tool(tmp_path, Origin(port=port), tls))
        await egress.close()
    assert read_there == []


@contextmanager
def blocking_server(context: ssl.SSLContext) -> Iterator[tuple[int, list[bytes]]]:
    """A server on OpenSSL's own sockets: asyncio's closes without the alert that says why."""
    read_there: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        wrapped = context.wrap_socket(listener.accept()[0], server_side=True, do_handshake_on_connect=False)
        with contextlib.suppress(ssl.SSLError):
            wrapped.do_handshake()
            read_there.append(wrapped.recv(1))
        with socket.socket(fileno=wrapped.detach()) as plain, contextlib.suppress(OSError):
            plain.shutdown(socket.SHUT_WR)  # a plain close would overtake the alert with a reset
            while plain.recv(4096):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], read_there
    finally:
        thread.join()
        listener.close()


async def test_a_reload_brings_new_files_into_use(egress: Egress, issuer: Issuer, tmp_path: Path) -> None:
    """The old certificate's connections are not used for the new one's calls."""
    context = server_context(issuer.issue("127.0.0.1"), clients=issuer.ca)
    async with Origin(tls=context) as origin:
        text = f"tools:\n  pay:\n    upstream: https://127.0.0.1:{origin.port}\n    tls: {MUTUAL}\n"
        source = ManifestSource(write(tmp_path, m=text), environ={})
        first = source.load()
        answered(await egress.send(first.tools["pay"], get(), LONG))
        give(tmp_path, Issuer(tmp_path, "stranger").issue("client"))
        second = source.load(first)
        outcome = await egress.send(second.tools["pay"], get(), LONG)
        assert isinstance(outcome, Broken)
        give(tmp_path, issuer.issue("renewed"))
        answered(await egress.send(source.load(second).tools["pay"], get(), LONG))
        assert len(origin.requests) == 2
