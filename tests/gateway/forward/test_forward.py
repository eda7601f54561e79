"""The gateway as a proxy: calls are matched by host, everything else about them is as ever, and nothing slips past."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus

from gateway.config.tokens import TokenFile
from gateway.core.server import ForwardSettings, UnknownHosts
from gateway.core.tokens import Scope
from gateway.ingress.certificates import Authority
from tests.gateway.harness import Answered, Serving, read_answer, serving
from tests.origin import Answer, Drop, Hang, Origin

JSON = ((b"Content-Type", b"application/json"),)

MANIFEST = """
version: 1
domains:
  saas:
    timeouts: {connect: 1s, first_byte: 2s, idle: 2s, total: 5s}
    retry: {attempts: 3, base: 1ms, cap: 5ms}
tools:
  pay:
    upstream: http://127.0.0.1:PORT
    domain: saas
    hosts: [api.pay.example, "*.eu.pay.example"]
    idempotency: {header: Idempotency-Key, window: 1h}
    credentials: {header: Authorization, value: Bearer ours}
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator: {request: "POST /holds/${response.json.id}/cancel"}
      payout: {match: POST /payouts, tier: pivot}
  billing:
    upstream: http://localhost:PORT/billing
    domain: saas
"""


class World:
    def __init__(self, running: Serving, origin: Origin, authority: Authority | None) -> None:
        self.running, self.origin, self.authority = running, origin, authority

    async def send(
        self, method: str, url: str, body: object | None = None, headers: Sequence[tuple[str, str]] = (), **more: str
    ) -> Answered:
        return await self.running.agent.send(method, url, body, headers=headers, **more)

    async def connect(self, target: str, headers: Sequence[tuple[str, str]] = ()) -> Dialogue:
        reader, writer = await self.running.agent.open()
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *(f"{name}: {value}" for name, value in headers)]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = await reader.readuntil(b"\r\n\r\n")
        return Dialogue(int(head.split(b" ")[1]), head, reader, writer)


class Dialogue:
    """A connection behind CONNECT."""

    def __init__(self, status: int, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.status, self.head, self.reader, self.writer = status, head, reader, writer

    async def tls(self, name: str, authority: Authority | None = None) -> None:
        context = ssl.create_default_context(cadata=None if authority is None else authority.pem)
        await self.writer.start_tls(context, server_hostname=name)

    async def send(self, head: str, body: bytes = b"") -> Answered:
        self.writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        return await read_answer(self.reader, head.split(" ")[0])

    async def aclose(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def world(folder: Path, **forward: object) -> AsyncIterator[World]:
    tokens, text = forward.pop("tokens", None), str(forward.pop("text", MANIFEST))
    authority = None
    if forward.get("intercept"):
        import time

        authority = Authority.create(folder / "ca", at=time.time_ns() // 1_000_000, days=1, name="test")
        forward["ca"] = str(folder / "ca")
    settings = ForwardSettings(**forward)  # type: ignore[arg-type]
    async with (
        Origin(honours_keys=True) as origin,
        serving(folder, origin.port, text, forward=settings, tokens=tokens) as running,
    ):
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', JSON))
        yield World(running, origin, authority)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:PORT/holds", "http://API.pay.example./holds", "http://fr.eu.pay.example:80/holds"]
)
async def test_a_url_is_its_tools_and_has_the_whole_pipeline(tmp_path: Path, url: str) -> None:
    async with world(tmp_path) as it:
        url = url.replace("PORT", str(it.origin.port))
        it.origin.on("POST /holds", Drop(applies=True), Answer(201, b'{"id": "h1"}', JSON))
        headers = [("Proxy-Connection", "keep-alive"), ("Authorization", "Bearer theirs")]
        answer = await it.send("POST", url, {"n": 1}, headers, run="r1")
        assert (answer.status, answer["Seawall-Trajectory"], answer["Seawall-Step"]) == (201, "r1", "1")
        assert it.origin.ledger.total == 1, "settled under its key"
        request = it.origin.requests[-1]
        assert request.target == b"/holds"
        assert request.values(b"host") == [it.origin.authority.encode()]
        assert request.values(b"authorization") == [b"Bearer ours"]
        assert request.values(b"proxy-connection") == []
        undone = await it.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert undone.json["state"] == "aborted_clean"
        assert it.origin.requests[-1].path == "/holds/h1/cancel"


async def test_tools_of_one_host_are_told_apart_by_their_path(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        port = it.origin.port
        assert (await it.send("GET", f"http://localhost:{port}/billing/x?y=/billing")).status == 200
        assert it.origin.requests[-1].target == b"/billing/x?y=/billing"
        outside = await it.send("GET", f"http://localhost:{port}/billingx")
        assert outside.code == "ERR_UNKNOWN_TOOL"
        assert "/billing" in outside.json["detail"]
        assert len(it.origin.requests) == 1


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://evil.example/x", "ERR_UNKNOWN_TOOL"),
        ("http://169.254.169.254/latest/meta-data", "ERR_UNKNOWN_TOOL"),
        ("http://0x7f.1:PORT/holds", "ERR_UNKNOWN_TOOL"),
        ("http://2130706433:PORT/holds", "ERR_UNKNOWN_TOOL"),
        ("http://127.0.0.1:1/holds", "ERR_UNKNOWN_TOOL"),
        ("http://pay.example/holds", "ERR_UNKNOWN_TOOL"),
        ("http://eu.pay.example/holds", "ERR_UNKNOWN_TOOL"),
        ("http://api.pay.example@evil.example/holds", "ERR_INVALID_ARGUMENTS"),
        ("http://api.pay.example/a/../holds", "ERR_INVALID_ARGUMENTS"),
        ("http://api.pay.example/%2e%2e/holds", "ERR_INVALID_ARGUMENTS"),
        ("ftp://api.pay.example/holds", "ERR_INVALID_ARGUMENTS"),
        ("http:///holds", "ERR_INVALID_ARGUMENTS"),
        ("http://api.pay.example:99999/", "ERR_INVALID_ARGUMENTS"),
    ],
)
async def test_hosts_outside_the_manifest_and_urls_in_disguise_are_refused(tmp_path: Path, url: str, code: str) -> None:
    async with world(tmp_path) as it:
        answer = await it.send("POST", url.replace("PORT", str(it.origin.port)), {"n": 1})
        assert answer.code == code
        assert answer.json["dispatched"] == "no"
        assert it.origin.requests == []


async def test_a_url_of_the_gateways_own_is_a_plain_path(tmp_path: Path) -> None:
    """A client with both a base URL and HTTP_PROXY sends the whole URL of the gateway to the gateway."""
    async with world(tmp_path) as it:
        own = f"http://127.0.0.1:{it.running.agent.port}"
        assert (await it.send("GET", f"{own}/pay/x")).status == 200
        assert (await it.send("POST", f"{own}/seawall/v1/trajectories", {"id": "r1"})).status == 201
        assert (await it.send("GET", f"http://localhost:{it.running.agent.port}/nothing")).code == "ERR_UNKNOWN_TOOL"


async def test_unknown_hosts_may_be_read_where_the_operator_says_so_but_never_at_private_addresses(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, unknown_hosts=UnknownHosts.READ) as it:
        write = await it.send("POST", "http://other.example/x", {"n": 1})
        assert write.code == "ERR_UNKNOWN_TOOL"
        assert "only be read" in write.json["detail"]
        for host in ("127.0.0.2", "169.254.169.254"):
            private = await it.send("GET", f"http://{host}:{it.origin.port}/x")
            assert private.code == "ERR_UPSTREAM_CONNECT"
            assert "address" in private.json["detail"]
        assert it.origin.requests == []


async def test_https_to_a_tool_is_refused_with_the_ways_to_do_it(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        asked = await it.connect("api.pay.example:443")
        assert asked.status == 403
        assert b"x-should-retry: false" in asked.head
        body = await asked.reader.readexactly(int(asked.head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
        for way in (b"http://api.pay.example/", b"/pay/", b"forward.intercept", b"forward.tunnel"):
            assert way in body
        await asked.aclose()
        for target, status in (("evil.example:443", 404), ("api.pay.example", 422), ("a b:443", 400)):
            asked = await it.connect(target)
            assert asked.status == status, target
            await asked.aclose()


# --- blind tunnels


@contextlib.asynccontextmanager
async def tls_origin(folder: Path, name: str = "localhost") -> AsyncIterator[tuple[int, Authority]]:
    """A server that speaks TLS under a certificate for `name` and echoes lines."""
    import time

    at = time.time_ns() // 1_000_000
    authority = Authority.create(folder / "origin-ca", at=at, days=1, name="origin")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
        writer.close()

    context = authority.context_for(name, at)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context, limit=1 << 20)
    async with server:
        yield server.sockets[0].getsockname()[1], authority


async def test_a_tunnel_carries_bytes_both_ways_to_a_listed_host(tmp_path: Path) -> None:
    async with tls_origin(tmp_path) as (port, authority), world(tmp_path, tunnel=(f"localhost:{port}",)) as it:
        asked = await it.connect(f"localhost:{port}")
        assert asked.status == 200
        assert b"content-length" not in asked.head.lower()
        await asked.tls("localhost", authority)
        for text in (b"one\n", b"x" * 200_000 + b"\n"):
            asked.writer.write(text)
            assert await asked.reader.readuntil(b"\n") == text.upper()
        status = (await it.running.operator.send("GET", "/api/v1/status")).json
        assert status["tunnels"] == 1
        await asked.aclose()


@pytest.mark.parametrize("hello", ["other.example", None, "not tls"])
async def test_a_tunnel_is_closed_if_the_hello_names_another_host_or_is_none(tmp_path: Path, hello: str | None) -> None:
    """Domain fronting: a tunnel to one host, used to reach another at the same address."""
    async with tls_origin(tmp_path) as (port, _), world(tmp_path, tunnel=(f"localhost:{port}",)) as it:
        asked = await it.connect(f"localhost:{port}")
        assert asked.status == 200
        if hello == "not tls":
            asked.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await asked.reader.read() == b""
        else:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with pytest.raises((OSError, ssl.SSLError)):
                await asked.writer.start_tls(context, server_hostname=hello or "127.0.0.1", ssl_handshake_timeout=5)
        await asked.aclose()
        async with asyncio.timeout(5):
            while (await it.running.operator.send("GET", "/api/v1/status")).json["tunnels"]:
                await asyncio.sleep(0.01)


async def test_a_client_may_send_its_hello_with_the_request_and_in_pieces(tmp_path: Path) -> None:
    async with tls_origin(tmp_path) as (port, authority), world(tmp_path, tunnel=(f"localhost:{port}",)) as it:
        context = ssl.create_default_context(cadata=authority.pem)
        inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(inward, outward, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outward.read()
        reader, writer = await it.running.agent.open()
        writer.write(f"CONNECT localhost:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + hello[:7])
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(hello[7:])
        inward.write(await reader.read(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        assert client.version() == "TLSv1.3"
        writer.close()


async def test_a_tunnel_to_a_host_that_is_down_is_answered_before_it_opens(tmp_path: Path) -> None:
    async with world(tmp_path, tunnel=("localhost:1",)) as it:
        asked = await it.connect("localhost:1")
        assert asked.status == 502
        await asked.aclose()


async def test_tunnels_are_bounded(tmp_path: Path) -> None:
    async with (
        tls_origin(tmp_path) as (port, authority),
        world(tmp_path, tunnel=(f"localhost:{port}",), tunnels=1) as it,
    ):
        first = await it.connect(f"localhost:{port}")
        await first.tls("localhost", authority)
        second = await it.connect(f"localhost:{port}")
        assert second.status == 503
        await first.aclose()
        await second.aclose()


async def test_a_silent_tunnel_is_closed(tmp_path: Path) -> None:
    async with (
        tls_origin(tmp_path) as (port, authority),
        world(tmp_path, tunnel=(f"localhost:{port}",), tunnel_idle=0.1) as it,
    ):
        asked = await it.connect(f"localhost:{port}")
        await asked.tls("localhost", authority)
        with contextlib.suppress(OSError):
            assert await asked.reader.read() == b""
        await asked.aclose()


# --- interception


async def test_https_to_a_tool_is_read_and_has_the_whole_pipeline(tmp_path: Path) -> None:
    async with world(tmp_path, intercept=True) as it:
        asked = await it.connect("api.pay.example:443", [("Seawall-Trajectory", "r1")])
        assert asked.status == 200
        await asked.tls("api.pay.example", it.authority)
        for number in (1, 2):
            body = b'{"n": %d}' % number
            answer = await asked.send(
                f"POST /holds HTTP/1.1\nHost: api.pay.example\nContent-Type: application/json\nContent-Length: {len(body)}",
                body,
            )
            assert (answer.status, answer["Seawall-Trajectory"], answer["Seawall-Step"]) == (201, "r1", str(number))
        assert it.origin.requests[0].values(b"authorization") == [b"Bearer ours"]
        await asked.aclose()
        undone = await it.send("POST", "/seawall/v1/trajectories/r1/abort")
        assert undone.json["state"] == "aborted_clean"


async def test_the_certificate_is_for_that_host_alone_and_of_our_authority(tmp_path: Path) -> None:
    from cryptography import x509

    async with world(tmp_path, intercept=True) as it:
        asked = await it.connect("fr.eu.pay.example:443")
        await asked.tls("fr.eu.pay.example", it.authority)
        der = asked.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        certificate = x509.load_der_x509_certificate(der)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["fr.eu.pay.example"]
        assert it.authority is not None
        certificate.verify_directly_issued_by(it.authority.certificate)
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).total_seconds() <= 26 * 3600
        await asked.aclose()


async def test_no_certificate_is_made_for_a_host_that_is_no_tools(tmp_path: Path) -> None:
    async with world(tmp_path, intercept=True, unknown_hosts=UnknownHosts.READ) as it:
        asked = await it.connect("evil.example:443")
        assert asked.status == 404
        await asked.aclose()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\nHost: evil.example", 421),
        ("GET http://evil.example/ HTTP/1.1\nHost: evil.example", 421),
        ("GET https://api.pay.example:8443/ HTTP/1.1\nHost: api.pay.example", 421),
        ("CONNECT api.pay.example:443 HTTP/1.1\nHost: api.pay.example", 400),
        ("GET /seawall/v1/trajectories/r1 HTTP/1.1\nHost: api.pay.example", 200),
    ],
)
async def test_what_comes_out_of_a_tunnel_is_for_its_host(tmp_path: Path, head: str, status: int) -> None:
    """The last one: the tool's own path, not the gateway's."""
    async with world(tmp_path, intercept=True) as it:
        asked = await it.connect("api.pay.example:443")
        await asked.tls("api.pay.example", it.authority)
        assert (await asked.send(head)).status == status
        if status == 200:
            assert it.origin.requests[-1].path == "/seawall/v1/trajectories/r1"
        await asked.aclose()


async def test_who_opens_a_tunnel_is_who_calls_in_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    texts = {name: TokenFile(path).issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob")}
    basic = {name: b64encode(f"agent:{text}".encode()).decode() for name, text in texts.items()}
    async with world(tmp_path, intercept=True, tokens=str(path)) as it:
        nobody = await it.connect("api.pay.example:443")
        assert nobody.status == 407
        await nobody.aclose()
        for name, expected in (("ana", 201), ("bob", 403)):
            asked = await it.connect("api.pay.example:443", [("Proxy-Authorization", f"Basic {basic[name]}")])
            await asked.tls("api.pay.example", it.authority)
            answer = await asked.send(
                "POST /holds HTTP/1.1\nHost: api.pay.example\nSeawall-Trajectory: r1\nContent-Length: 2", b"{}"
            )
            assert answer.status == expected
            await asked.aclose()
        shown = await it.send("GET", "/seawall/v1/trajectories/r1", headers=[("Seawall-Agent-Token", texts["ana"])])
        assert shown.json["agent"] == "ana"
        assert texts["ana"].encode() not in b"".join(request.head for request in it.origin.requests)


async def test_a_revoked_token_ends_the_calls_in_an_open_tunnel(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    text = file.issue(Scope.AGENT, "ana", 0)[0]
    async with world(tmp_path, intercept=True, tokens=str(file.path)) as it:
        asked = await it.connect("api.pay.example:443", [("Seawall-Agent-Token", text)])
        await asked.tls("api.pay.example", it.authority)
        head = "GET /x HTTP/1.1\nHost: api.pay.example"
        assert (await asked.send(head)).status == 200
        file.revoke("ana", 1)
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError, EOFError):  # between two calls there is nothing to answer: it is cut
                while (await asked.send(head)).status == 200:
                    await asyncio.sleep(0.05)
        seen = len(it.origin.requests)
        with contextlib.suppress(OSError, EOFError):
            assert (await asked.send(head)).status != 200
        assert len(it.origin.requests) == seen
        await asked.aclose()


async def test_a_revoked_token_cuts_an_open_tunnel_blind_or_read(tmp_path: Path) -> None:
    """What is carried is not looked at any more, so the tunnel itself has to end; another agent's goes on."""
    file = TokenFile(tmp_path / "tokens.json")
    texts = {name: file.issue(Scope.AGENT, name, 0)[0] for name in ("ana", "bob")}
    async with (
        tls_origin(tmp_path) as (port, authority),
        world(tmp_path, intercept=True, tunnel=(f"localhost:{port}",), tokens=str(file.path)) as it,
    ):
        it.origin.on("GET /slow", Hang())
        blind = {}
        for name, text in texts.items():
            blind[name] = await it.connect(f"localhost:{port}", [("Seawall-Agent-Token", text)])
            await blind[name].tls("localhost", authority)
        read = await it.connect("api.pay.example:443", [("Seawall-Agent-Token", texts["ana"])])
        await read.tls("api.pay.example", it.authority)
        read.writer.write(b"GET /slow HTTP/1.1\r\nHost: api.pay.example\r\n\r\n")
        request = await it.origin.received()
        file.revoke("ana", 1)
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError):
                assert await blind["ana"].reader.read() == b""
            with contextlib.suppress(OSError):
                assert await read.reader.read() == b""
            await request.gone.wait()
        blind["bob"].writer.write(b"still here\n")
        assert await blind["bob"].reader.readuntil(b"\n") == b"STILL HERE\n"
        for one in (*blind.values(), read):
            await one.aclose()


async def test_the_tools_own_certificate_is_verified_though_we_read_for_it(tmp_path: Path) -> None:
    """Who reads HTTPS has taken over its client's duty to look whom it talks to."""
    text = MANIFEST + "  secure: {upstream: 'https://localhost:TLS', hosts: [secure.pay.example]}\n"
    async with (
        tls_origin(tmp_path) as (port, _),
        world(tmp_path, intercept=True, text=text.replace("TLS", str(port))) as it,
    ):
        asked = await it.connect("secure.pay.example:443")
        await asked.tls("secure.pay.example", it.authority)
        answer = await asked.send("GET /x HTTP/1.1\nHost: secure.pay.example")
        assert (answer.status, answer.code) == (502, "ERR_UPSTREAM_CONNECT")
        assert "TLS" in answer.json["detail"]
        await asked.aclose()


@pytest.mark.parametrize("takes_them", [True, False])
async def test_a_websocket_inside_https_that_is_read_is_bridged_or_refused(tmp_path: Path, takes_them: bool) -> None:
    """A client that knows only HTTPS_PROXY and our authority: its sockets are the tool's to take, as everywhere else."""

    async def echo(socket: ServerConnection) -> None:
        async for message in socket:
            await socket.send(message)

    async with serve(echo, "127.0.0.1", 0, max_size=None) as tool:
        port = next(iter(tool.sockets)).getsockname()[1]
        text = f"{MANIFEST}  talk: {{upstream: 'http://127.0.0.1:{port}', hosts: [talk.pay.example]}}\n"
        if takes_them:
            text = text.replace("[talk.pay.example]", "[talk.pay.example], websocket: true")
        async with world(tmp_path, intercept=True, text=text) as it:
            assert it.authority is not None
            asking = connect(
                "wss://talk.pay.example/x", proxy=f"http://127.0.0.1:{it.running.agent.port}", max_size=None,
                ssl=ssl.create_default_context(cadata=it.authority.pem),
            )  # fmt: skip
            if not takes_them:
                with pytest.raises(InvalidStatus) as refused:
                    await asking
                assert refused.value.response.status_code == 501
                assert b"takes no WebSockets" in (refused.value.response.body or b"")
                return
            async with asking as socket:
                for message in ("text", b"\0\xff", "y" * (1 << 20)):
                    await socket.send(message)
                    assert await socket.recv() == message
                await socket.close(4001, "done")
            assert socket.close_code == 4001


async def test_a_client_that_leaves_a_tunnel_cancels_its_read(tmp_path: Path) -> None:
    async with world(tmp_path, intercept=True) as it:
        it.origin.on("GET /slow", Hang())
        asked = await it.connect("api.pay.example:443")
        await asked.tls("api.pay.example", it.authority)
        asked.writer.write(b"GET /slow HTTP/1.1\r\nHost: api.pay.example\r\n\r\n")
        request = await it.origin.received()
        asked.writer.transport.abort()
        async with asyncio.timeout(5):
            await request.gone.wait()


async def test_the_gateway_stops_though_tunnels_are_open(tmp_path: Path) -> None:
    async with tls_origin(tmp_path) as (port, authority):
        async with world(tmp_path, intercept=True, tunnel=(f"localhost:{port}",)) as it:
            blind = await it.connect(f"localhost:{port}")
            await blind.tls("localhost", authority)
            read = await it.connect("api.pay.example:443")
            await read.tls("api.pay.example", it.authority)
            assert (await read.send("GET /x HTTP/1.1\nHost: api.pay.example")).status == 200
            began = asyncio.get_running_loop().time()
            await it.running.gateway.stop()
            assert asyncio.get_running_loop().time() - began < 5
        await blind.aclose()
        await read.aclose()
