"""Our authority: it signs for hosts only, for a day, and its key is its owner's."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from gateway.ingress.certificates import CERTIFICATE, KEY, Authority, AuthorityError

DAY_MS = 24 * 3600 * 1000
AT = 1_700_000_000_000


def made(folder: Path, **more: object) -> Authority:
    return Authority.create(folder, at=AT, days=30, name="test", **more)  # type: ignore[arg-type]


def test_it_is_written_once_and_read_again(tmp_path: Path) -> None:
    authority = made(tmp_path / "ca")
    assert (tmp_path / "ca" / KEY).stat().st_mode & 0o777 == 0o600
    assert Authority.load(tmp_path / "ca").fingerprint == authority.fingerprint
    with pytest.raises(AuthorityError, match="already"):
        made(tmp_path / "ca")
    assert Authority.load(tmp_path / "ca").fingerprint == authority.fingerprint


def test_it_cannot_sign_for_further_authorities(tmp_path: Path) -> None:
    certificate = made(tmp_path).certificate
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        ca=True, path_length=0
    )


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / KEY).chmod(0o644), "chmod 600"),
        (lambda folder: (folder / KEY).unlink(), "seawall ca init"),
        (lambda folder: (folder / KEY).write_text("x"), "not what it should be"),
        (lambda folder: (folder / CERTIFICATE).write_text("x"), "not what it should be"),
        (lambda folder: (folder / CERTIFICATE).write_text(made(folder / "other").pem), "is not the key of"),
    ],
)
def test_a_spoilt_one_is_refused_with_the_next_step(tmp_path: Path, spoil: object, why: str) -> None:
    made(tmp_path)
    spoil(tmp_path)  # type: ignore[operator]
    with pytest.raises(AuthorityError, match=why):
        Authority.load(tmp_path)


def test_it_is_good_for_its_time(tmp_path: Path) -> None:
    authority = made(tmp_path)
    assert authority.is_good(AT)
    assert authority.is_good(AT + 29 * DAY_MS)
    assert not authority.is_good(AT + 31 * DAY_MS)


def test_a_context_is_kept_for_half_its_time(tmp_path: Path) -> None:
    authority = made(tmp_path)
    first = authority.context_for("a.example", AT)
    assert authority.context_for("a.example", AT + DAY_MS // 2 - 1) is first
    assert authority.context_for("a.example", AT + DAY_MS // 2) is not first
    assert authority.context_for("b.example", AT) is not first


def test_contexts_are_bounded(tmp_path: Path) -> None:
    authority = made(tmp_path)
    first = authority.context_for("h0.example", AT)
    for number in range(1, 258):
        authority.context_for(f"h{number}.example", AT)
    assert authority.context_for("h0.example", AT) is not first


async def handshake(authority: Authority, host: str, at: int) -> None:
    context = ssl.create_default_context(cadata=authority.pem)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=authority.context_for(host, at))
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        writer.close()


async def test_clients_accept_it_for_the_hosts_it_may_sign_for_and_no_others(tmp_path: Path) -> None:
    """Even a stolen key of it cannot pose as another host."""
    import time

    at = time.time_ns() // 1_000_000
    authority = Authority.create(
        tmp_path, at=at, days=1, name="test", only=["api.example", "*.eu.example", "127.0.0.1"]
    )
    for host in ("api.example", "x.eu.example", "127.0.0.1"):
        await handshake(authority, host, at)
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        await handshake(authority, "evil.example", at)


def test_no_key_is_printed(tmp_path: Path) -> None:
    authority = made(tmp_path)
    assert "PRIVATE" not in repr(authority)
    assert "PRIVATE" not in authority.pem
