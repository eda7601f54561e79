"""What is not for a tool does not reach one."""

import pytest

from gateway.core.forwarding import BadHops, hops_left, unfit, via

ME = b"seawall-1234"


def status(target: bytes = b"/tool/x", *, passed: bytes | None = None) -> int | None:
    found = unfit(target, passed=passed, pseudonym=ME)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/tool/x", None),
        (b"//x", None),
        (b"*", 400),
        (b"http://10.0.0.1/x", 421),
        (b"example.com:443", 421),
        (b"", 421),
    ],
)
def test_only_a_path_names_a_tool(target: bytes, expected: int | None) -> None:
    """Taken as it is, a whole URL would let an agent choose the server (RFC 9112 section 3.2.2)."""
    assert status(target) == expected


def test_a_request_that_comes_round_is_stopped() -> None:
    assert status(passed=via(ME)[1]) == 508
    assert status(passed=b"1.1 other, " + via(ME)[1] + b", 1.0 third") == 508
    assert status(passed=b"1.1 seawall-9999") is None


@pytest.mark.parametrize(("value", "left"), [(b"0", -1), (b"1", 0), (b" 7 ", 6), (b"99999999", 254)])
def test_a_hop_is_counted(value: bytes, left: int) -> None:
    assert hops_left(value) == left


@pytest.mark.parametrize("value", [b"", b"-1", b"1, 2", b"x", b"9" * 30])
def test_hops_that_are_no_number(value: bytes) -> None:
    with pytest.raises(BadHops):
        hops_left(value)
