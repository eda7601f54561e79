"""Server-sent events, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sse import Event, Events, EventTooLarge, comment, event


@given(st.lists(st.integers(1, 40)))
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    """A stream is the same wherever the network cuts it."""
    stream = b": hi\r\n\r\nid: 7\r\nretry: 250\r\ndata:\r\n\r\nevent: message\ndata: a\ndata: b\n\n" + event(b'{"x":1}')
    events, found, place = Events(), [], 0
    for cut in [*cuts, len(stream)]:
        found += events.feed(stream[place : place + cut])
        place += cut
    assert found == [Event("", "message", "7", 250), Event("a\nb"), Event('{"x":1}')]
    assert (events.last_id, events.retry_ms) == ("7", 250)


def test_comments_say_nothing() -> None:
    """They only keep the stream open."""
    assert Events().feed(comment()) == []


def test_an_event_is_bounded() -> None:
    """One without an end would grow for ever."""
    events = Events(limit_bytes=100)
    assert events.feed(b"data: " + b"x" * 50 + b"\n\n") != []
    assert events.feed(b"data: " + b"x" * 50 + b"\n\n") != []
    with pytest.raises(EventTooLarge):
        events.feed(b"data: " + b"x" * 200)
