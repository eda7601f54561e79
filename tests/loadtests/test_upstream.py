import json
from urllib.request import urlopen

from loadtests.process import Server
from loadtests.upstream import Ledger


def test_the_ledger_tells_repeats_from_different_calls() -> None:
    ledger = Ledger()
    ledger.enter(b"post / http/1.1\r\nidempotency-key: a\r\n", b"1")
    ledger.enter(b"post / http/1.1\r\nidempotency-key: b\r\n", b"2")
    ledger.enter(b"get / http/1.1\r\n", b"3")
    assert ledger.close() == {"calls": 3, "numbers": 3, "keys": 2, "most": 1}
    ledger.enter(b"post / http/1.1\r\nidempotency-key:a\r\n", b"1")
    ledger.enter(b"post / http/1.1\r\nidempotency-key: a \r\n", b"2")
    assert ledger.close() == {"calls": 2, "numbers": 2, "keys": 1, "most": 2}
    assert ledger.close() == {"calls": 0, "numbers": 0, "keys": 0, "most": 0}


def test_the_ledger_can_be_read_on_the_wire(upstream: Server) -> None:
    with urlopen(f"http://127.0.0.1:{upstream.port}/ledger") as answer:
        assert json.load(answer)["calls"] == 0
