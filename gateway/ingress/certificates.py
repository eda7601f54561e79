"""Our own certificate authority: what lets the gateway read HTTPS that agents send to the manifest's tools.

The authority's key never leaves its folder and is readable by its owner alone. Hosts get certificates of a day, made when
they are first asked for and renewed at half their time; all of one process share one key, which is never written anywhere.
The authority can sign for hosts only, not for further authorities, and if it was made with a list of hosts, for these alone,
whatever becomes of its key.

Source: RFC 5280 sections 4.2.1.3, 4.2.1.9, 4.2.1.10, 4.2.1.12; CA/Browser Forum Baseline Requirements section 7.1.2.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.core.authority import is_address

__all__ = ["CERTIFICATE", "KEY", "Authority", "AuthorityError"]

KEY, CERTIFICATE = "ca.key", "ca.pem"
LIFETIME = timedelta(hours=24)
SKEW = timedelta(hours=1)
"""Certificates begin a little in the past: clocks differ."""

REMEMBERED = 256
_UNLOCKED = serialization.NoEncryption()
_CURVE = ec.SECP256R1()


class AuthorityError(Exception):
    """The authority cannot be made or used. The message says why and what to do."""


class Authority:
    """An authority and the certificates it has made. `certificate` is what clients have to trust."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.certificate = certificate
        self._key = key
        self._host_key = ec.generate_private_key(_CURVE)
        self._contexts: OrderedDict[str, tuple[datetime, ssl.SSLContext]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Authority {self.fingerprint[:23]}>"

    @classmethod
    def create(cls, folder: Path, *, at: int, days: int, name: str, only: Sequence[str] = ()) -> Authority:
        """Make an authority and write it into a folder, which must not hold one yet.

        Args:
            at: now, UTC milliseconds.
            name: shown to people in lists of authorities.
            only: the hosts and domains that it can sign for; all if there are none.

        Raises:
            AuthorityError: there is one already, or it cannot be written.
        """
        key = ec.generate_private_key(_CURVE)
        certificate = _authority(key, name, _utc(at), timedelta(days=days), only)
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _UNLOCKED)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_new(folder / KEY, text, 0o600)
            _write_new(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        except FileExistsError as error:
            raise AuthorityError(f"{error.filename} is there already; move it away to make a new authority") from None
        except OSError as error:
            raise AuthorityError(f"{folder} cannot be written: {error.strerror}") from None
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Read the authority of a folder.

        Raises:
            AuthorityError: there is none, others can read its key, or the two files do not belong together.
        """
        try:
            mode = (folder / KEY).stat().st_mode
            key_text, certificate_text = (folder / KEY).read_bytes(), (folder / CERTIFICATE).read_bytes()
        except FileNotFoundError as error:
            raise AuthorityError(f"{error.filename} is missing; `seawall ca init` makes an authority") from None
        except OSError as error:
            raise AuthorityError(f"{error.filename} cannot be read: {error.strerror}") from None
        if mode & 0o077:
            raise AuthorityError(f"{folder / KEY} can be read by others; run chmod 600 on it, or make a new authority")
        try:
            key = serialization.load_pem_private_key(key_text, password=None)
            certificate = x509.load_pem_x509_certificate(certificate_text)
        except (ValueError, TypeError):
            raise AuthorityError(f"{folder} holds no authority of ours: a file is not what it should be") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}")
        return cls(key, certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, as people compare it."""
        return self.certificate.fingerprint(hashes.SHA256()).hex(":").upper()

    @property
    def pem(self) -> str:
        """The certificate as clients take it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")

    def is_good(self, at: int) -> bool:
        """Whether it has begun and not ended yet."""
        return self.certificate.not_valid_before_utc <= _utc(at) < self.certificate.not_valid_after_utc

    def context_for(self, host: str, at: int) -> ssl.SSLContext:
        """Return a server's context with a certificate for a host, good at `at`, UTC milliseconds; kept until half its
        time has passed."""
        now = _utc(at)
        known = self._contexts.get(host)
        if known is None or not known[0] - LIFETIME < now < known[0]:
            context = self._context(self._host_certificate(host, now))
            known = self._contexts[host] = (now + LIFETIME / 2, context)
            if len(self._contexts) > REMEMBERED:
                self._contexts.popitem(last=False)
        self._contexts.move_to_end(host)
        return known[1]

    def _host_certificate(self, host: str, now: datetime) -> x509.Certificate:
        issuer = self.certificate
        named = x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)
        ends = min(now + LIFETIME, issuer.not_valid_after_utc)
        usage = _usage(digital_signature=True)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer.subject)
            .public_key(self._host_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(max(now - SKEW, issuer.not_valid_before_utc))
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName([named]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._host_key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())

    def _context(self, certificate: x509.Certificate) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        key = self._host_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _UNLOCKED)
        chain = certificate.public_bytes(serialization.Encoding.PEM)
        with _in_memory(key + chain) as path:
            context.load_cert_chain(path)
        return context


class _in_memory:  # noqa: N801 - used like a function
    """A path at which bytes can be read though they are on no disk: `ssl` takes keys from files only."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._descriptor = -1
        self._file: str | None = None

    def __enter__(self) -> str:
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
            path = f"/proc/self/fd/{self._descriptor}"
        else:
            self._descriptor, path = tempfile.mkstemp()
            self._file = path
        os.write(self._descriptor, self._data)
        return path

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if self._file is not None:
            os.unlink(self._file)


def _authority(
    key: ec.EllipticCurvePrivateKey, name: str, now: datetime, lifetime: timedelta, only: Sequence[str]
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if only:
        allowed = [_allowed(host) for host in only]
        builder = builder.add_extension(x509.NameConstraints(allowed, None), critical=True)
    return builder.sign(key, hashes.SHA256())


def _allowed(host: str) -> x509.GeneralName:
    if is_address(host):
        return x509.IPAddress(ipaddress.ip_network(host))
    return x509.DNSName(host.removeprefix("*."))


def _usage(**uses: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: uses.get(name, False) for name in names})


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _utc(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, tz=UTC)
