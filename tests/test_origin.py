"""The scripted origin does what its script says: other tests trust its record and its ledger."""

import asyncio
import hashlib

import pytest

from tests.origin import Answer, Drop, Exchange, Feed, Hang, Origin, Raw, Remote, pattern, pattern_digest


async def talk(origin: Origin, request: bytes) -> bytes:
    """Send raw bytes and return everything that comes back until the origin closes."""
    reader, writer = await asyncio.open_connection(origin.host, origin.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def post(path: str, body: bytes = b"x", *extra: bytes) -> bytes:
    fields = b"".join(b"%b\r\n" % one for one in extra)
    return b"POST %b HTTP/1.1\r\nHost: o\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), fields, len(body), body)


async def test_it_records_byte_for_byte_and_answers_in_turn() -> None:
    async with Origin() as origin:
        origin.on("POST /a", Answer(201, b"one"), Answer(200, b"two", ending="close"))
        request = post("/a?q=%2F", b"hello", b"X-Odd:  caf\xe9 ", b"x-odd: 2")
        answer = await talk(origin, request + request)
        first, second = origin.requests
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
    assert answer.endswith(b"two")
    assert first.head + first.body == request
    assert first.values(b"x-odd") == [b"caf\xe9", b"2"]
    assert (first.connection, first.position, second.connection, second.position) == (1, 1, 1, 2)
    assert first.digest == hashlib.sha256(b"hello").hexdigest()


async def test_the_ledger_counts_what_was_done_also_without_an_answer() -> None:
    async with Origin() as origin:
        origin.on("/pay", Drop(applies=True), Drop(), Drop(applies=True, how="reset"), Answer(500, ending="close"))
        for _ in range(2):
            assert await talk(origin, post("/pay", b"x", b"Idempotency-Key: k")) == b""
        with pytest.raises(ConnectionResetError):
            await talk(origin, post("/pay", b"x", b"Idempotency-Key: k"))
        await talk(origin, post("/pay", b"x", b"Idempotency-Key: k"))
        assert origin.ledger.effects("k") == 2
        assert origin.ledger.by_key() == {"k": 2}


async def test_an_origin_that_honours_keys_does_a_thing_once() -> None:
    async with Origin(honours_keys=True) as origin:
        origin.default = Answer(200, ending="close")
        for _ in range(3):
            await talk(origin, post("/pay", b"x", b"Idempotency-Key: k"))
        assert (origin.ledger.effects("k"), origin.ledger.repeats("k")) == (1, 2)


async def test_bodies_can_lie_stop_and_drip() -> None:
    async with Origin() as origin:
        feed = Feed()
        origin.on("/short", Answer(200, b"0123456789", stop_after=3))
        origin.on("/cut", Answer(200, lambda: pattern(1 << 20), framing="chunked", stop_after=70_000))
        origin.on("/drip", Answer(200, feed, framing="chunked", ending="close"))
        origin.on("/raw", Raw(b"GARBAGE\r\n"))
        assert (await talk(origin, post("/short"))).endswith(b"Content-Length: 10\r\n\r\n012")
        assert not (await talk(origin, post("/cut"))).endswith(b"0\r\n\r\n")
        assert await talk(origin, post("/raw")) == b"GARBAGE\r\n"
        answer = asyncio.create_task(talk(origin, post("/drip")))
        feed.send(b"a")
        feed.send(b"bc")
        feed.end()
        assert (await answer).endswith(b"\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")


async def test_a_peer_that_leaves_is_noticed_while_the_answer_hangs() -> None:
    async with Origin() as origin:
        origin.on("/", Hang())
        _, writer = await asyncio.open_connection(origin.host, origin.port)
        writer.write(post("/"))
        request = await origin.completed(1)
        writer.close()
        await request.gone.wait()


async def test_a_mistake_in_a_script_fails_its_test() -> None:
    async def broken(exchange: Exchange) -> None:
        raise LookupError("a typo")

    origin = Origin()
    await origin.start()
    origin.default = broken
    await talk(origin, post("/"))
    with pytest.raises(LookupError):
        await origin.close()


async def test_a_large_upload_is_kept_as_a_digest() -> None:
    size = 3 << 20
    async with Origin() as origin:
        reader, writer = await asyncio.open_connection(origin.host, origin.port)
        writer.write(b"PUT /big HTTP/1.1\r\nHost: o\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for data in pattern(size):
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.close()
        request = origin.requests[0]
    assert (request.body_bytes, request.body, request.digest) == (size, b"", pattern_digest(size))


async def test_it_runs_as_a_process_of_its_own() -> None:
    """Tests that kill the gateway need a ledger that survives it."""
    with await asyncio.to_thread(Remote) as remote:
        await asyncio.to_thread(remote.on, "/pay", {"status": 201, "body": "{}", "hold": "gate"}, {"kind": "drop"})
        reader, writer = await asyncio.open_connection("127.0.0.1", remote.port)
        writer.write(post("/pay", b"x", b"Idempotency-Key: k"))
        await asyncio.to_thread(remote.wait_effects, 1)
        assert await asyncio.to_thread(remote.effects, "k") == 1
        await asyncio.to_thread(remote.release, "gate")
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 201")
        writer.close()
        assert [one["target"] for one in await asyncio.to_thread(remote.requests)] == ["/pay"]
