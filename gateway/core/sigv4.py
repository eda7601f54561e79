"""AWS Signature Version 4: the fields that prove a request to an AWS service, and to everything that speaks its language.

Pure: the time comes in, the fields come out. The path is taken as it goes over the wire; of every service but S3 it is
encoded once more, as AWS asks for. Query parameters are decoded and encoded anew, sorted by name, then by value. Fields are
trimmed and their inner runs of spaces become one.

Source: AWS General Reference, "Create a signed AWS API request"; checked against AWS's published test suite and botocore.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

__all__ = ["EMPTY_SHA256", "SIGNED_BY_US", "UNSIGNED", "AwsKey", "sign"]

EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
"""Stands for the digest of a body that nobody can read twice; S3 takes it over TLS."""

SIGNED_BY_US: Final = frozenset({b"authorization", b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256"})
"""Fields that an agent's request may not bring along."""

_LEFT_OUT: Final = frozenset({
    b"authorization", b"connection", b"expect", b"te", b"traceparent", b"tracestate", b"transfer-encoding", b"user-agent",
    b"via", b"x-amzn-trace-id", b"accept-encoding", b"content-length",
})  # fmt: skip
"""Fields that somebody under way may change, so they are not signed."""


@dataclass(frozen=True, slots=True)
class AwsKey:
    """An AWS credential. `token` is there for temporary ones. The secret parts are never printed."""

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def sign(
    key: AwsKey,
    *,
    service: str,
    region: str,
    method: str,
    path: str,
    query: str,
    host: str,
    headers: Iterable[tuple[bytes, bytes]],
    payload_sha256: str,
    at: int,
) -> list[tuple[bytes, bytes]]:
    """Return the fields to add to a request.

    Args:
        key: the credential.
        service, region: its scope, such as `s3` and `eu-central-1`.
        method, path, query: as they go over the wire; path and query percent-encoded.
        host: as in the Host field.
        headers: the other fields that are sent.
        payload_sha256: hexadecimal, or `UNSIGNED`.
        at: UTC milliseconds.
    """
    stamp = datetime.fromtimestamp(at // 1000, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    ours: list[tuple[bytes, bytes]] = [(b"X-Amz-Date", stamp.encode())]
    if service == "s3":
        ours.append((b"X-Amz-Content-SHA256", payload_sha256.encode()))
    if key.token is not None:
        ours.append((b"X-Amz-Security-Token", key.token.encode()))
    names, lines = _fields([*headers, (b"host", host.encode()), *ours])
    canonical = "\n".join(
        [method, _path(path, is_s3=service == "s3"), _query(query), *lines, "", ";".join(names), payload_sha256]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode('latin-1')).hexdigest()}"
    signing = f"AWS4{key.secret}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    signature = hmac.digest(signing, to_sign.encode(), "sha256").hex()
    proof = f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return [*ours, (b"Authorization", proof.encode())]


def _fields(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[str], list[str]]:
    """Return the names that are signed, in order, and their canonical lines."""
    values: dict[str, list[str]] = {}
    for raw, value in headers:
        name = raw.lower()
        if name not in _LEFT_OUT:
            values.setdefault(name.decode("latin-1"), []).append(" ".join(value.decode("latin-1").split()))
    names = sorted(values)
    return names, [f"{name}:{','.join(values[name])}" for name in names]


def _path(path: str, *, is_s3: bool) -> str:
    if is_s3:
        return path or "/"
    return quote(_normal(path or "/"), safe="/~")


def _normal(path: str) -> str:
    """Resolve dot segments and take out empty ones (RFC 3986 section 6)."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            kept = kept[:-1]
        elif segment not in ("", "."):
            kept.append(segment)
    normal = "/" + "/".join(kept)
    return normal + "/" if path.endswith("/") and kept else normal


def _query(query: str) -> str:
    pairs = []
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        pairs.append((quote(unquote(name), safe="~"), quote(unquote(value), safe="~")))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
