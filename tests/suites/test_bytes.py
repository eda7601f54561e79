"""What reaches a tool of odd and hostile requests, behind the gateway, nginx, HAProxy and Squid, against a page.

The raw origin records what it is sent. Where the gateway's bytes are not those of all others, the difference has a reason
below; a reason that is not needed any more, or a difference without one, fails. `python -m tests.suites.test_bytes` prints
the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
from pathlib import Path

from tests.suites.corpus import CORPUS
from tests.suites.proxies import PROXIES, proxy
from tests.suites.reasons import REASONS
from tests.suites.rig import ROOT

PAGE = ROOT / "docs/suites/bytes.md"
QUIET_S = 2.0
SILENT_S = 10.0
OWN = (b"host", b"connection", b"via")
OF_SQUID = (b"cache-control: max-age=259200", b"surrogate-capability:")


class Recorder:
    """An origin that keeps every byte and answers each request once it is whole."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Recorder:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.seen.append(head)
            at = len(self.seen) - 1
            async with asyncio.timeout(5):
                self.seen[at] += await _body(head, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", head, re.IGNORECASE):
        body = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            body += line
            if not (size := int(line.partition(b";")[0], 16)):
                break
            body += await reader.readexactly(size + 2)
        while not body.endswith(b"\r\n\r\n"):
            body += await reader.readuntil(b"\r\n")
        return body
    found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return await reader.readexactly(int(found.group(1))) if found else b""


async def outcomes(name: str, folder: Path) -> dict[str, str]:
    """Return what a proxy makes of each case: what it sent on, or the status that it answered by itself."""
    found = {}
    async with Recorder() as recorder, proxy(name, folder, recorder.port) as port:
        for case, data in CORPUS.items():
            recorder.seen.clear()
            answer = await _ask(port, data)
            found[case] = " and ".join(map(shape, recorder.seen)) or _status(answer)
    return found


async def _ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(data)
        while piece := await asyncio.wait_for(reader.read(1 << 16), QUIET_S if b"\r\n\r\n" in answer else SILENT_S):
            answer += piece
            if answer.endswith(b"\r\n\r\nok") and data.count(b"HTTP/1.1\r\n") < 2:
                break
    writer.transport.abort()
    return answer


def _status(answer: bytes) -> str:
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return found.group(1).decode() if found else "closed" if not answer else "no HTTP"


def shape(request: bytes) -> str:
    """Return a request as it came, less what is every proxy's own: Host, Connection, Via, the version, case of names."""
    head, _, body = request.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    named = [field.partition(b":") for field in fields if not field.lower().startswith(OF_SQUID)]
    kept = sorted((name.lower(), value) for name, _, value in named if name.strip().lower() not in OWN)
    parts = [line.rsplit(b" ", 1)[0].replace(b" /tool/", b" /", 1), *(b"%b:%b" % field for field in kept[:10])]
    if len(kept) > 10:
        parts.append(b"%d fields more" % (len(kept) - 10))
    if body:
        parts.append(b"body " + body)
    return "; ".join(_printable(part) for part in parts)


def _printable(part: bytes) -> str:
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x7C else f"\\x{byte:02x}" for byte in part)
    return text if len(text) <= 100 else text[:60] + f"… ({len(part)} bytes)"


def page(found: dict[str, dict[str, str]]) -> str:
    """Return the page."""
    ours = found["seawall"]
    differing = [case for case in CORPUS if {found[name][case] for name in PROXIES} != {ours[case]}]
    lines = [
        "# What reaches a tool of odd and hostile requests",
        "",
        "A raw origin behind the gateway, nginx 1.22, HAProxy 2.6 and Squid 5.7 (Debian 12, nearly as they come, one route)",
        "records what it is sent. A cell is what reached it, or the status that the proxy answered by itself. Left out is",
        "what is every proxy's own: Host, Connection, Via (added here; off in Squid), the version (always 1.1), the",
        "case of names (lower in HAProxy), Squid's Cache-Control and Surrogate-Capability, and the path's prefix. Kept by",
        "`tests/suites/test_bytes.py`, which fails on a difference without a reason, too, and the other way round.",
        "",
        f"{len(CORPUS)} requests; {len(CORPUS) - len(differing)} come out the same in all four.",
        "",
        "## Where they differ",
        "",
        "| request | here | nginx | HAProxy | Squid | why |",
        "|---|---|---|---|---|---|",
        *(
            f"| {case} | {' | '.join(_cell(found[name][case]) for name in PROXIES)} | {REASONS.get(case, '**unnamed**')} |"
            for case in differing
        ),
        "",
        "## Where they agree",
        "",
        "| request | outcome |",
        "|---|---|",
        *(f"| {case} | {_cell(ours[case])} |" for case in CORPUS if case not in differing),
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text if text.isdigit() or text == "closed" else f"`{text}`"


async def observe(folder: Path) -> dict[str, dict[str, str]]:
    """Return the outcomes by proxy and case."""
    found = await asyncio.gather(*(outcomes(name, folder / name) for name in PROXIES))
    return dict(zip(PROXIES, found, strict=True))


async def test_every_difference_is_named(tmp_path: Path) -> None:
    found = await observe(tmp_path)
    differing = {case for case in CORPUS if len({found[name][case] for name in PROXIES}) > 1}
    assert {case: {name: found[name][case] for name in PROXIES} for case in differing - REASONS.keys()} == {}
    assert REASONS.keys() - differing == set()
    assert page(found) == PAGE.read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.stdout.write(page(asyncio.run(observe(Path(made)))))
