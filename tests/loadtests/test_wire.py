import json

import pytest

from loadtests.wire import (
    LARGE,
    READ,
    REFUSED,
    STREAM,
    TLS,
    WRITE,
    Workload,
    answer_to,
    answers_to,
    number_of,
    take_message,
)


def test_a_message_is_taken_only_when_it_is_whole() -> None:
    """A body may come in any number of pieces; taking it early would count a torn answer as a wrong one."""
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    assert all(take_message(data[:size]) is None for size in range(len(data)))
    assert take_message(data + b"next") == (b"http/1.1 200 ok\r\ncontent-length: 5\r\n", b"hello", len(data))


def test_chunks_are_put_together() -> None:
    """Proxies may frame an answer anew; its bytes must still be comparable."""
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    assert all(take_message(data[:size]) is None for size in range(len(data)))
    message = take_message(data)
    assert message is not None
    assert message[1:] == (b"hello", len(data))


@pytest.mark.parametrize("workload", [READ, WRITE])
def test_the_tool_repeats_the_number_of_a_call(workload: Workload) -> None:
    """This is how an answer that went to the wrong caller is found."""
    message = take_message(workload.request(b"/bench", b"run-1", 1234))
    assert message is not None
    head, body, _ = message
    number = number_of(head, body)
    assert number == b"000000001234"
    answer = take_message(answer_to(number))
    assert answer is not None
    assert workload.is_right(answer[0], answer[1], 1234)
    assert not workload.is_right(answer[0], answer[1], 1235)


def test_a_write_is_json_of_five_hundred_bytes() -> None:
    message = take_message(WRITE.request(b"", b"run-1", 7))
    assert message is not None
    assert len(message[1]) == 500
    assert json.loads(message[1])["number"] == "000000000007"


def test_a_refusal_is_right_by_status_and_code() -> None:
    """Its wait differs each time, so it cannot be compared byte for byte; another refusal must not pass for it."""
    assert REFUSED.is_right(b"http/1.1 503 service unavailable\r\n", b'{"code":"ERR_CIRCUIT_OPEN"}', 1)
    assert not REFUSED.is_right(b"http/1.1 503 service unavailable\r\n", b'{"code":"ERR_BULKHEAD_FULL"}', 1)
    assert not REFUSED.is_right(b"http/1.1 502 bad gateway\r\n", b'{"code":"ERR_CIRCUIT_OPEN"}', 1)


@pytest.mark.parametrize("workload", [READ, TLS, LARGE, STREAM])
def test_each_kind_of_read_gets_its_own_answer_and_no_other(workload: Workload) -> None:
    request = take_message(workload.request(b"/tool", b"run-1", 77))
    assert request is not None
    number = number_of(request[0], request[1])
    message = take_message(b"".join(answers_to(request[0], number)))
    assert message is not None
    head, body, _ = message
    assert workload.is_right(head, body, 77)
    assert not workload.is_right(head, body, 78)
