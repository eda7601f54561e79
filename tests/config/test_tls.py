"""The TLS of a tool: what its files must be, and that a changed one is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config.files import stamp_of
from gateway.config.source import ManifestSource
from tests.certificates import Issuer
from tests.config.manifests import complaint, load, write

GOOD = "{ca: ca.pem, certificate: cert.pem, key: key.pem, server_name: api.internal}"


def manifest(folder: Path, tls: str, upstream: str = "https://127.0.0.1:1") -> Path:
    return write(folder, m=f"tools:\n  pay:\n    upstream: {upstream}\n    tls: {tls}\n")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with ca.pem, cert.pem and key.pem."""
    issuer = Issuer(tmp_path)
    issued = issuer.issue("client")
    folder = tmp_path / "manifest"
    folder.mkdir()
    (folder / "ca.pem").write_bytes(issuer.ca.read_bytes())
    for name in ("cert.pem", "key.pem"):
        (folder / name).write_bytes((issued / name).read_bytes())
    (folder / "both.pem").write_bytes((issued / "cert.pem").read_bytes() + (issued / "key.pem").read_bytes())
    (folder / "other.pem").write_bytes((issuer.issue("other") / "key.pem").read_bytes())
    (folder / "locked.pem").write_bytes((issuer.issue("locked", password=b"x") / "key.pem").read_bytes())
    (folder / "rubbish.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return folder


def test_a_tools_tls_is_made_at_load(files: Path) -> None:
    tls = load(manifest(files, GOOD)).tools["pay"].tls
    assert tls is not None
    assert tls.context is not None
    assert tls.server_name == "api.internal"
    assert [one["subject"] for one in tls.context.get_ca_certs()] == [((("commonName", "test authority"),),)]
    both = load(manifest(files, "{certificate: both.pem}")).tools["pay"].tls
    assert both is not None
    assert both.context is not None
    assert load(manifest(files, "{server_name: api.internal}")).tools["pay"].tls is not None


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ("{ca: nowhere.pem}", "m.yaml:4:15: `ca`: cannot read nowhere.pem: No such file or directory (paths are"),
        ("{ca: key.pem}", "m.yaml:4:15: `ca`: the file holds no certificate (PEM, beginning with"),
        ("{ca: rubbish.pem}", "`ca`: a certificate in the file is damaged (copy the file anew)"),
        ("{certificate: cert.pem}", "`certificate`: the file holds no private key (name its file as `key`)"),
        ("{certificate: key.pem}", "`certificate`: the file holds no certificate"),
        ("{certificate: rubbish.pem, key: key.pem}", "`certificate`: the certificate or its key is damaged"),
        ("{certificate: cert.pem, key: cert.pem}", "`key`: the file holds no private key"),
        ("{certificate: cert.pem, key: other.pem}", "`key`: the key is not the certificate's"),
        ("{certificate: cert.pem, key: locked.pem}", "`key`: the key is encrypted (store it as a plain key"),
        ("{key: key.pem}", "`key` needs a `certificate`"),
        ("{server_name: 'a b'}", "`server_name` is not a host name (as in `api.internal`)"),
        ("{server_nam: a}", "unknown key `server_nam` (did you mean `server_name`?)"),
    ],
)
def test_what_would_fail_every_handshake_fails_the_load(files: Path, tls: str, said: str) -> None:
    assert said in complaint(manifest(files, tls))


@pytest.mark.parametrize("upstream", ["http://127.0.0.1:1", "unix:/run/x.sock"])
def test_tls_needs_https(files: Path, upstream: str) -> None:
    assert "`tls` needs an upstream that begins with `https://`" in complaint(manifest(files, GOOD, upstream))


def test_all_problems_come_at_once_and_none_shows_a_key(files: Path) -> None:
    text = complaint(manifest(files, "{ca: key.pem, certificate: cert.pem, key: other.pem, server_name: '?'}"))
    assert all(word in text for word in ("`ca`", "`key`", "`server_name`"))
    key = (files / "key.pem").read_text().splitlines()[1]
    assert key not in text
    assert key not in repr(load(manifest(files, GOOD)).tools["pay"])


def test_a_new_certificate_is_a_change_of_its_tool_alone(files: Path, tmp_path: Path) -> None:
    text = f"tools:\n  pay: {{upstream: 'https://a.test', tls: {GOOD}}}\n  plain: {{upstream: 'https://b.test'}}\n"
    source = ManifestSource(write(files, m=text), environ={})
    first = source.load()
    assert {files / "ca.pem", files / "cert.pem", files / "key.pem"} <= source.files
    issued = Issuer(tmp_path, "another").issue("client")
    for name in ("cert.pem", "key.pem"):
        os.replace(issued / name, files / name)
    assert stamp_of(source.files) != source.stamp
    second = source.load(first)
    assert second.tools["pay"] is not first.tools["pay"]
    assert second.tools["plain"] is first.tools["plain"]
    assert source.load(second).tools["pay"] is second.tools["pay"]


def test_a_manifest_can_be_checked_where_its_keys_are_not(files: Path) -> None:
    tls = "{ca: nowhere.pem, certificate: nowhere.pem, key: nowhere.pem}"
    assert ManifestSource(manifest(files, tls), environ={}, is_offline=True).load().tools["pay"].tls is not None


def test_a_bundle_of_all_authorities_fits(files: Path) -> None:
    (files / "all.pem").write_bytes((files / "ca.pem").read_bytes() + b"# padding\n" * 100_000)
    assert load(manifest(files, "{ca: all.pem}")).tools["pay"].tls is not None
