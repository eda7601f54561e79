"""Every fault of the proxy, seen from both ends of a real socket: what the caller reads, and what the tool was told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.storm.faultproxy import Proxy, Toxic
from tests.gateway.harness import Answered, Client
from tests.origin import Answer, Origin


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as serving:
        serving.on("POST /pay", Answer(201, b'{"id": 17, "state": "done"}'))
        serving.on("GET /big", Answer(200, b"0123456789" * 10_000))
        yield serving


@pytest.fixture
async def proxy(origin: Origin) -> AsyncIterator[Proxy]:
    link = Proxy("pay", ("127.0.0.1", origin.port), seed=1)
    await link.enable()
    yield link
    await link.disable()


def toxic(kind: str, **fields: Any) -> Toxic:
    attributes = {name: value for name, value in fields.items() if name not in ("stream", "toxicity", "times", "only")}
    return Toxic.of(
        {"type": kind, "attributes": attributes, **{k: v for k, v in fields.items() if k not in attributes}}
    )


async def pay(proxy: Proxy, key: str = "k1") -> Answered:
    return await Client(f"http://127.0.0.1:{proxy.port}").send("POST", "/pay", {"amount": 5}, key=key)


async def test_without_toxics_everything_passes_and_is_noted(origin: Origin, proxy: Proxy) -> None:
    answer = await pay(proxy)
    assert (answer.status, answer.json["id"]) == (201, 17)
    assert origin.requests[0].body == b'{"amount": 5}'
    seen = proxy.seen[0]
    assert (seen.method, seen.target, seen.key, seen.toxic) == ("POST", "/pay", "k1", "")


@pytest.mark.parametrize("kind", ["reset_before", "garbage_head"])
async def test_before_means_that_the_tool_never_heard_of_it(origin: Origin, proxy: Proxy, kind: str) -> None:
    proxy.add(toxic(kind))
    with pytest.raises((ConnectionError, ValueError, asyncio.IncompleteReadError, IndexError)):
        await pay(proxy)
    assert origin.ledger.total == 0
    assert proxy.seen[0].toxic == f"{kind}_downstream"


async def test_a_status_is_answered_for_the_tool(origin: Origin, proxy: Proxy) -> None:
    proxy.add(toxic("status", status=429, retry_after=2, times=1))
    refused = await pay(proxy)
    assert (refused.status, refused["Retry-After"]) == (429, "2")
    assert origin.ledger.total == 0
    assert (await pay(proxy)).status == 201, "it was to happen once"


@pytest.mark.parametrize("kind", ["applied_reset", "applied_timeout"])
async def test_applied_means_that_the_tool_did_it_and_the_caller_cannot_know(
    origin: Origin, proxy: Proxy, kind: str
) -> None:
    proxy.add(toxic(kind, **({"timeout": 20} if kind == "applied_timeout" else {})))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await pay(proxy)
    assert origin.ledger.effects("k1") == 1


async def test_applied_status_is_a_failure_that_was_none(origin: Origin, proxy: Proxy) -> None:
    proxy.add(toxic("applied_status", status=500))
    assert (await pay(proxy)).status == 500
    assert origin.ledger.effects("k1") == 1


async def test_hang_before_says_nothing_and_does_nothing(origin: Origin, proxy: Proxy) -> None:
    proxy.add(toxic("hang_before", timeout=20))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await pay(proxy)
    assert origin.ledger.total == 0


async def test_duplicate_delivers_twice_and_answers_once(origin: Origin, proxy: Proxy) -> None:
    proxy.add(toxic("duplicate"))
    assert (await pay(proxy)).status == 201
    assert origin.ledger.effects("k1") == 2


async def test_truncated_and_wrongly_measured_bodies_are_seen_as_such(origin: Origin, proxy: Proxy) -> None:
    proxy.add(toxic("truncate", share=0.5))
    cut = await pay(proxy)
    assert cut.is_truncated
    assert 0 < len(cut.body) < 27
    proxy.toxics.clear()
    proxy.add(toxic("wrong_length", by=7))
    wrong = await pay(proxy)
    assert wrong.is_truncated
    assert len(wrong.body) == 27
    assert wrong["Content-Length"] == "34"


async def test_slow_headers_arrive_byte_by_byte(proxy: Proxy) -> None:
    proxy.add(toxic("slow_headers", delay=1))
    began = time.monotonic()
    assert (await pay(proxy)).json["id"] == 17
    assert time.monotonic() - began >= 0.03


async def test_latency_and_its_jitter_delay_an_answer(proxy: Proxy) -> None:
    proxy.add(toxic("latency", latency=40, jitter=10))
    began = time.monotonic()
    assert (await pay(proxy)).status == 201
    assert time.monotonic() - began >= 0.03


async def test_bandwidth_slows_a_large_answer(proxy: Proxy) -> None:
    proxy.add(toxic("bandwidth", rate=1000))
    began = time.monotonic()
    answer = await Client(f"http://127.0.0.1:{proxy.port}").send("GET", "/big")
    assert len(answer.body) == 100_000
    assert time.monotonic() - began >= 0.09


async def test_a_slicer_changes_no_byte(proxy: Proxy) -> None:
    proxy.add(toxic("slicer", average_size=900, size_variation=300))
    answer = await Client(f"http://127.0.0.1:{proxy.port}").send("GET", "/big")
    assert answer.body == b"0123456789" * 10_000


async def test_limit_data_closes_after_so_many_bytes(proxy: Proxy) -> None:
    proxy.add(toxic("limit_data", bytes=5_000))
    answer = await Client(f"http://127.0.0.1:{proxy.port}").send("GET", "/big")
    assert answer.is_truncated
    assert len(answer.body) < 5_000


async def test_reset_peer_and_timeout_end_without_an_answer(origin: Origin, proxy: Proxy) -> None:
    for kind in ("reset_peer", "timeout"):
        proxy.toxics.clear()
        proxy.add(toxic(kind, timeout=10))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await pay(proxy, key=kind)
    assert origin.ledger.total == 2, "both act on the answer"


async def test_slow_close_keeps_the_connection_open_for_a_while(origin: Origin, proxy: Proxy) -> None:
    origin.on("GET /old", Answer(200, b"until the end", framing="close"))
    proxy.add(toxic("slow_close", delay=50))
    began = time.monotonic()
    answer = await Client(f"http://127.0.0.1:{proxy.port}").send("GET", "/old")
    assert answer.body == b"until the end"
    assert time.monotonic() - began >= 0.05


async def test_down_refuses_connections_and_resets_those_that_exist(proxy: Proxy) -> None:
    port = proxy.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await proxy.disable()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    await proxy.enable()
    assert proxy.port == port
    assert (await pay(proxy)).status == 201


async def test_a_share_of_requests_is_the_same_share_again_with_the_same_seed(origin: Origin) -> None:
    async def hits() -> list[str]:
        link = Proxy("pay", ("127.0.0.1", origin.port), seed=42)
        await link.enable()
        link.add(toxic("status", toxicity=0.4, status=500))
        for number in range(25):
            await pay(link, key=f"s{number}")
        await link.disable()
        return [seen.toxic for seen in link.seen]

    first = await hits()
    assert first == await hits()
    assert 4 <= sum(map(bool, first)) <= 17


async def test_only_picks_requests(proxy: Proxy) -> None:
    proxy.add(toxic("status", only="POST /pa", status=418))
    assert (await pay(proxy)).status == 418
    assert (await Client(f"http://127.0.0.1:{proxy.port}").send("GET", "/big")).status == 200


async def test_a_plain_pipe_passes_what_is_not_http(origin: Origin) -> None:
    link = Proxy("raw", ("127.0.0.1", origin.port), is_http=False)
    await link.enable()
    assert (await pay(link)).status == 201
    await link.disable()
