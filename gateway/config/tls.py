"""The TLS of a tool from the files that its manifest names: trust, certificate, key; checked when the manifest is loaded.

What would make every handshake fail is a problem of the manifest: a file that is not there or holds something else, a key
that is encrypted or another certificate's. What only the tool can judge (who signed, whether it is out of date) is not
looked into here. Nothing of a key is ever shown.

Source: RFC 7468 (PEM); Python's `ssl`, whose errors are put into words here.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Final

from gateway.config.errors import Problems, shown
from gateway.config.files import FileLog
from gateway.config.loader import Entry
from gateway.core.manifest import TlsSettings, ToolSettings
from gateway.core.tool import Upstream

__all__ = ["TlsFiles", "check_tls", "client_context"]

_CERTIFICATE: Final = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----")
_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----")
_ENCRYPTED: Final = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: *4,ENCRYPTED", re.MULTILINE)
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9_-]+)*|[0-9A-Fa-f:.]+"
)


class TlsFiles:
    """The files of a tool's TLS, read. `content` is all of them, for a digest that notices a new certificate."""

    def __init__(self, entry: Entry[ToolSettings], settings: TlsSettings, files: FileLog, problems: Problems) -> None:
        self._entry = entry
        self._files = files
        self._problems = problems
        self.content: list[bytes] = []
        self.ca = self._read("ca", settings.ca)
        self.certificate = self._read("certificate", settings.certificate)
        self.key = self._read("key", settings.key)

    def _read(self, key: str, name: str | None) -> tuple[Path, bytes] | None:
        if name is None:
            return None
        path = self._entry.folder / name
        try:
            data = self._files.read(path)
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            self._problems.add(
                self._entry.at("tls", key),
                f"`{key}`: cannot read {shown(str(path), 500)}: {reason}",
                "paths are relative to the manifest",
            )
            return None
        self.content.append(key.encode() + b"\0" + data)
        return path, data


def check_tls(entry: Entry[ToolSettings], settings: TlsSettings, upstream: Upstream | None, problems: Problems) -> None:
    """TLS needs an https upstream, a key needs a certificate, and a name is a host's."""
    if upstream is not None and upstream.scheme != "https":
        problems.add(
            entry.at("tls"), "`tls` needs an upstream that begins with `https://`", "remove `tls`, or use https"
        )
    if settings.key is not None and settings.certificate is None:
        problems.add(entry.at("tls", "key"), "`key` needs a `certificate`", "name the certificate that it belongs to")
    if settings.server_name is not None and not _NAME.fullmatch(settings.server_name):
        problems.add(entry.at("tls", "server_name"), "`server_name` is not a host name", "as in `api.internal`")


def client_context(
    entry: Entry[ToolSettings], settings: TlsSettings, files: TlsFiles, problems: Problems
) -> ssl.SSLContext | None:
    """Return the context for connections to the tool; None if the system's own will do, or after a problem."""
    if settings.ca is None and settings.certificate is None:
        return None
    context = ssl.create_default_context() if settings.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    is_trusting = settings.ca is None or (files.ca is not None and _trust(entry, context, files.ca[1], problems))
    is_showing = settings.certificate is None or _show(entry, settings, context, files, problems)
    return context if is_trusting and is_showing else None


def _trust(entry: Entry[ToolSettings], context: ssl.SSLContext, data: bytes, problems: Problems) -> bool:
    here = entry.at("tls", "ca")
    if not _CERTIFICATE.search(data):
        problems.add(here, "`ca`: the file holds no certificate", "PEM, beginning with -----BEGIN CERTIFICATE-----")
        return False
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError):
        problems.add(here, "`ca`: a certificate in the file is damaged", "copy the file anew")
        return False
    # Whoever pins the tool's own certificate, or its issuer's, means that one: no root above it is needed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return True


def _show(
    entry: Entry[ToolSettings], settings: TlsSettings, context: ssl.SSLContext, files: TlsFiles, problems: Problems
) -> bool:
    certificate, key = files.certificate, files.key
    if certificate is None or (settings.key is not None and key is None):
        return False
    path, data = key or certificate
    where = "key" if key is not None else "certificate"
    found = _fault(certificate[1], data, where)
    if found is None:
        try:
            context.load_cert_chain(certificate[0], path, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                found = (where, "the key is not the certificate's", "were they made together?")
            else:
                found = ("certificate", "the certificate or its key is damaged", "copy the files anew")
        except OSError as error:
            found = (where, f"cannot be read: {error.strerror}", "the file changed just now; load it again")
    if found is None:
        return True
    problems.add(entry.at("tls", found[0]), f"`{found[0]}`: {found[1]}", found[2])
    return False


def _fault(certificate: bytes, key: bytes, where: str) -> tuple[str, str, str] | None:
    """Return what is wrong with the files at a glance: key of the manifest, message, hint."""
    if not _CERTIFICATE.search(certificate):
        return "certificate", "the file holds no certificate", "PEM, beginning with -----BEGIN CERTIFICATE-----"
    if _ENCRYPTED.search(key):
        return where, "the key is encrypted", "store it as a plain key that only the gateway may read (openssl pkey)"
    if not _KEY.search(key):
        return where, "the file holds no private key", "name its file as `key`" if where == "certificate" else "PEM"
    return None


def _no_password() -> str:
    """Keeps OpenSSL from asking at the terminal."""
    raise ssl.SSLError("the key is encrypted")
