"""Certificates for tests: an authority that signs whatever a test needs, out of date or for another host, too."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Issuer", "server_context"]

DAY = datetime.timedelta(days=1)


class Issuer:
    """An authority of its own. `ca` is the file of its certificate."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder / name.replace(" ", "-")
        self._folder.mkdir(parents=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = self._folder / "ca.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._name, self._key, -1, 2).add_extension(constraints, critical=True)
        self.ca.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, *names: str, since_days: int = -1, days: int = 2, password: bytes | None = None) -> Path:
        """Return a folder with `cert.pem` and `key.pem` for the names, of which the first names the folder.

        It is good from `since_days` from now on, for so many `days`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        signed = (
            self._builder(subject, key, since_days, days)
            .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder = self._folder / names[0].replace(":", "_")
        folder.mkdir(exist_ok=True)
        (folder / "cert.pem").write_bytes(_pem(signed))
        form = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        (folder / "key.pem").write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
        )
        return folder

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, since_days: int, days: int
    ) -> x509.CertificateBuilder:
        begin = datetime.datetime.now(datetime.UTC) + since_days * DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + days * DAY)
        )


def server_context(
    folder: Path, *, clients: Path | None = None, newest: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    """Return a server's context with the certificate in `folder`; `clients`: who must have signed its clients'."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if newest is not None:
        context.maximum_version = newest
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
