"""Talking to a running gateway's control plane, for the commands that do."""

from __future__ import annotations

import getpass
import http.client
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import click

from gateway.commands import EXIT_REFUSED, EXIT_UNREACHABLE

__all__ = [
    "control_option",
    "fetch",
    "json_option",
    "moment",
    "plain",
    "principal_option",
    "reason_option",
    "segment",
    "show",
]

_TIMEOUT_S = 60.0
TOKEN_VARIABLE = "SEAWALL_TOKEN"  # noqa: S105 - a variable's name
"""Environment variable with the operator's token; a variable, because a command line can be read by everybody."""


def control_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--control`."""
    return click.option(
        "--control",
        default="127.0.0.1:9090",
        envvar="SEAWALL_CONTROL",
        show_default=True,
        help="The gateway's control address: HOST:PORT, or unix:/path.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def principal_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--by`: who decides; by default who is logged in."""
    return click.option(
        "--by", "principal", default=_user, envvar="SEAWALL_PRINCIPAL", help="Who decides; default: who is logged in."
    )(command)


def reason_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--reason`."""
    return click.option("--reason", required=True, help="Why; it is journaled.")(command)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def moment(at: int) -> str:
    """Return UTC milliseconds for people."""
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(sep=" ", timespec="seconds")


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def fetch(
    control: str,
    method: str,
    path: str,
    body: object = None,
    *,
    as_json: bool = False,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """Return the control plane's JSON answer; end the program where there is none, or it is a no.

    Unless it is to be printed as JSON, its texts are made `plain`: agents choose many of them, and people read them.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
    base = control if control.startswith("http") else f"http://{control}"
    if control.startswith("unix:"):
        base = "http://seawall"
        handlers.append(_UnixHandler(control.removeprefix("unix:")))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, method=method)  # noqa: S310 - the operator's own address
    if token := _token():
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            told = dict(json.loads(answer.read()))
        return told if as_json else {key: _all_plain(value) for key, value in told.items()}
    except urllib.error.HTTPError as error:
        told = _read(error)
        if as_json:
            click.echo(json.dumps(told))
        click.echo(f"seawall: {plain(str(told.get('detail') or error.reason))}", err=True)
        sys.exit(EXIT_REFUSED)
    except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        click.echo(f"seawall: no gateway answers at {control}: {reason}. Is it running? See --control.", err=True)
        sys.exit(EXIT_UNREACHABLE)


_NEXT_LINE = "\n    | "


def plain(text: str) -> str:
    """Return a text that moves no cursor, hides nothing and cannot pass for a line of ours.

    Control and direction characters are shown as escapes; further lines are indented behind a bar.
    """
    lines = text.split("\n")
    return _NEXT_LINE.join(line if line.isprintable() else "".join(map(_visible, line)) for line in lines)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _all_plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_all_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _all_plain(one) for key, one in value.items()}
    return value


def _token() -> str:
    """Return the operator's token without the line end that files and secret stores add; "" without one.

    The library's own complaint about a bad header field shows the whole of it, so one is never given to it.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (token.isascii() and token.isprintable()):
        raise click.UsageError(
            f"{TOKEN_VARIABLE} holds something that is no token: a line end, or a letter not in ASCII."
        )
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows none: the token would go to wherever it points, and what was to be done would become a question."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _UnixHandler(urllib.request.HTTPHandler):
    """Opens http URLs over one Unix socket, whatever host they name."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, /, *, timeout: float = _TIMEOUT_S, **_: Any) -> http.client.HTTPConnection:
        return _UnixConnection(self._path, host, timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, host: str, timeout_s: float) -> None:
        super().__init__(host, timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def _read(error: urllib.error.HTTPError) -> dict[str, Any]:
    try:
        return dict(json.loads(error.read()))
    except (OSError, ValueError, TypeError, http.client.HTTPException):
        return {}


def show(rows: list[list[str]], heads: list[str]) -> None:
    """Print a table: drawn on a terminal, tab-separated elsewhere. A row is one line."""
    rows = [[cell.replace(_NEXT_LINE, " ") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # a bare text would be read as markup
    Console().print(table)
