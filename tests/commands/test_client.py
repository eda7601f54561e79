"""What operators type talks to the gateway they named, and to nothing else; what it says shows no secret."""

from __future__ import annotations

import json
import socket
import sys
import threading

import click
import pytest

from gateway.commands import EXIT_REFUSED, EXIT_UNREACHABLE
from gateway.commands.client import fetch, plain, show


@pytest.fixture
def answering():
    """Answer one connection with the given bytes; what was asked is in the list."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)
    asked: list[bytes] = []
    threads: list[threading.Thread] = []

    def serve(answer: bytes) -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            connection.sendall(answer)

    def start(answer: bytes) -> tuple[str, list[bytes]]:
        threads.append(threading.Thread(target=serve, args=(answer,)))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}", asked

    yield start
    for thread in threads:
        thread.join()
    listener.close()


def answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return head + b"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


def test_the_line_end_that_secret_stores_add_to_a_token_is_not_sent(answering, monkeypatch):
    monkeypatch.setenv("SEAWALL_TOKEN", "s3cret\n")
    control, asked = answering(answer(b"{}"))
    assert fetch(control, "GET", "/") == {}
    assert b"Authorization: Bearer s3cret\r\n" in asked[0]


@pytest.mark.parametrize("token", ["s3cret\nX: y", "s3cret\u2019"])
def test_a_token_that_is_none_is_told_without_showing_it(token, monkeypatch, capsys):
    """The library's complaint shows the whole field."""
    monkeypatch.setenv("SEAWALL_TOKEN", token)
    with pytest.raises(click.UsageError, match="SEAWALL_TOKEN") as raised:
        fetch("127.0.0.1:1", "GET", "/")
    assert "s3cret" not in raised.value.message + "".join(capsys.readouterr())


def test_a_redirect_is_not_followed(answering, monkeypatch, capsys):
    """It would carry the token to another host, and make a question of a decision."""
    monkeypatch.setenv("SEAWALL_TOKEN", "s3cret")
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        place = b"http://127.0.0.1:%d/" % other.getsockname()[1]
        control, _ = answering(answer(b"", b"HTTP/1.1 302 Found\r\nLocation: " + place))
        with pytest.raises(SystemExit) as ended:
            fetch(control, "POST", "/api/v1/approvals/a/approve", {"reason": "x"})
        with pytest.raises(BlockingIOError):
            other.accept()
    assert ended.value.code == EXIT_REFUSED


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-x\r\n", answer(b"[1]"), answer(b"5"), answer(b"no"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"],
    ids=["no HTTP", "a list", "a number", "no JSON", "cut off"],
)
def test_what_is_no_gateway_is_told_so(said, answering, capsys):
    """Not a stack trace, and not exit code 1, which says that a gateway was asked."""
    control, _ = answering(said)
    with pytest.raises(SystemExit) as ended:
        fetch(control, "GET", "/")
    assert ended.value.code == EXIT_UNREACHABLE
    assert "no gateway answers" in capsys.readouterr().err


def test_a_no_that_is_no_json_object_is_a_no_all_the_same(answering, capsys):
    control, _ = answering(answer(b"[1]", b"HTTP/1.1 403 Forbidden"))
    with pytest.raises(SystemExit) as ended:
        fetch(control, "GET", "/")
    assert ended.value.code == EXIT_REFUSED
    assert "Forbidden" in capsys.readouterr().err


FORGED = 'pay 5\n  may decide: eve\x1b[2K\r\u202e"'


def test_what_an_agent_wrote_moves_no_cursor_and_passes_for_no_line_of_ours():
    """A person decides about money by what the terminal shows."""
    assert plain(FORGED) == 'pay 5\n    |   may decide: eve\\x1b[2K\\r\\u202e"'
    assert plain("Zürich, 支払い") == "Zürich, 支払い"


@pytest.mark.parametrize("as_json", [True, False])
def test_texts_are_plain_unless_a_program_reads_them(as_json, answering):
    control, _ = answering(answer(json.dumps({"call": {"body": FORGED}, "all": [FORGED, 1, None]}).encode()))
    told = fetch(control, "GET", "/", as_json=as_json)
    text = FORGED if as_json else plain(FORGED)
    assert told == {"call": {"body": text}, "all": [text, 1, None]}


def test_the_detail_of_a_no_is_plain(answering, capsys):
    control, _ = answering(answer(json.dumps({"detail": FORGED}).encode(), b"HTTP/1.1 403 Forbidden"))
    with pytest.raises(SystemExit):
        fetch(control, "GET", "/")
    assert plain(FORGED) in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_cell_of_a_table_is_one_line_and_no_markup(is_terminal, monkeypatch, capsys):
    """`[/x]` in a detail ended the listing of all incidents on a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    show([[plain("a\nb"), "[/x]"]], ["ONE", "TWO"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("a b")
    assert "[/x]" in last
