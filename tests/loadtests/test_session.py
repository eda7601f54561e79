import asyncio

from loadtests.load import Load
from loadtests.process import Server
from loadtests.session import offer
from loadtests.wire import answer_to, take_message


async def test_a_closed_loop_counts_what_it_measured_apart_from_what_it_sent(upstream: Server) -> None:
    tally = await offer(Load(port=upstream.port, workload="write", connections=3, calls=30))
    assert (tally.problem, tally.wrong, tally.calls, tally.sent) == ("", 0, 30, 33)
    assert tally.histogram.counts.total() == 30


async def test_an_open_loop_makes_every_call_that_was_due(upstream: Server) -> None:
    """More calls are due than there are connections, so some wait for one, and their latency says so."""
    load = Load(port=upstream.port, workload="read", connections=2, calls=40, rate=1e6)
    tally = await offer(load)
    assert (tally.problem, tally.calls, tally.sent) == ("", 40, 42)
    assert tally.histogram.counts.total() == 40


class Liar(asyncio.Protocol):
    """Answers every call as if it were call 7, or hangs up after the first."""

    def __init__(self, is_faithful: bool) -> None:
        self._is_faithful = is_faithful

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert take_message(data) is not None
        self._transport.write(answer_to(b"000000000007"))  # type: ignore[attr-defined]
        if not self._is_faithful:
            self._transport.close()


async def _offer_to_liar(is_faithful: bool) -> str:
    server = await asyncio.get_running_loop().create_server(lambda: Liar(is_faithful), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return (await offer(Load(port=port, workload="read", first=7, calls=3))).problem


async def test_an_answer_to_another_call_is_wrong() -> None:
    """A proxy that mixes up answers would otherwise look as good as one that does not."""
    assert (await _offer_to_liar(True)).startswith("wrong answer to call 8")


async def test_a_connection_that_is_closed_ends_the_load_with_a_reason() -> None:
    assert "closed a keep-alive connection" in await _offer_to_liar(False)


async def test_a_system_that_is_not_there_is_a_problem_not_a_crash() -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    assert "ConnectionRefusedError" in (await offer(Load(port=port, workload="read"))).problem
