"""A connection of an agent, without sockets: how it is cut is the network's affair. See also tests/fuzz."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.requests import served
from tests.fuzz.rig import run


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=6), st.integers(1, 4))
def test_where_the_network_cuts_a_request_makes_no_difference(cuts: list[int], count: int) -> None:
    """A difference between two cuts is a request that two servers read differently (RFC 9112 section 11.2)."""
    one = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX: caf\xe9\r\n\r\nabc"
    last = b"POST /last HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: caf\xe9\r\n\r\n"
    last += b"3\r\nabc\r\n2;x\r\nde\r\n0\r\nT: 1\r\n\r\n"
    data = b"".join(one % number for number in range(count - 1)) + last
    whole = run(served(data, []))
    assert len(whole.requests) == count
    parts = run(served(data, cuts))
    assert (parts.requests, parts.written.count(b"HTTP/1.1 200 ")) == (whole.requests, count)
