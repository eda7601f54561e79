"""Signature Version 4, against AWS's published vectors and against botocore."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.sigv4 import EMPTY_SHA256, AwsKey, sign

KEY = AwsKey("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
AT = 1_440_938_160_000  # 2015-08-30 12:36:00 UTC


def signature(method: str, target: str, *headers: tuple[bytes, bytes], body: bytes = b"", key: AwsKey = KEY) -> str:
    path, _, query = target.partition("?")
    fields = dict(
        sign(key, service="service", region="us-east-1", method=method, path=path, query=query,
             host="example.amazonaws.com", headers=headers, payload_sha256=hashlib.sha256(body).hexdigest(), at=AT)
    )  # fmt: skip
    return fields[b"Authorization"].decode().rpartition("Signature=")[2]


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "expected"),
    [
        ("GET", "/", [], b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", [], b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET", "/?Param2=value2&Param1=value1", [], b"",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("GET", "/example/..", [], b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("GET", "//", [], b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (
            "POST", "/", [(b"Content-Type", b"application/x-www-form-urlencoded")], b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "get-vanilla-query-order-key-case", "get-relative", "get-slash",
         "post-x-www-form-urlencoded"],
)  # fmt: skip
def test_awss_own_vectors(
    method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes, expected: str
) -> None:
    """Source: AWS Signature Version 4 test suite."""
    assert signature(method, target, *headers, body=body) == expected


def test_a_temporary_key_brings_its_token_along() -> None:
    fields = dict(
        sign(AwsKey("A", "B", "TOKEN"), service="s3", region="eu-central-1", method="GET", path="/b/k", query="",
             host="s3.example", headers=(), payload_sha256=EMPTY_SHA256, at=AT)
    )  # fmt: skip
    assert fields[b"X-Amz-Security-Token"] == b"TOKEN"
    assert b"x-amz-content-sha256;x-amz-date;x-amz-security-token" in fields[b"Authorization"]
    assert b"B" not in fields[b"Authorization"].partition(b"Signature=")[0].replace(b"Bearer", b"")


def test_no_secret_is_printed() -> None:
    assert "canary" not in repr(AwsKey("A", "canary-1", "canary-2"))


SAFE = st.text("abcXYZ019-_.~", min_size=1, max_size=8)
SEGMENT = st.one_of(SAFE, st.sampled_from(["a%20b", "%C3%A4", "a+b", "a=b", "a:b", "%2F"]))
PAIR = st.tuples(SAFE, st.one_of(SAFE, st.just(""), st.sampled_from(["a%20b", "%2B", "%26"])))


@settings(max_examples=150, deadline=None)
@given(
    service=st.sampled_from(["s3", "dynamodb", "execute-api"]),
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    segments=st.lists(SEGMENT, max_size=4),
    pairs=st.lists(PAIR, max_size=4, unique_by=lambda pair: pair[0]),
    body=st.binary(max_size=20),
    value=st.sampled_from(["x", "a  b", "text/plain; charset=utf-8"]),
    token=st.one_of(st.none(), st.just("TOKEN")),
)
def test_it_signs_as_botocore_does(
    service: str,
    method: str,
    segments: list[str],
    pairs: list[tuple[str, str]],
    body: bytes,
    value: str,
    token: str | None,
) -> None:
    path = "/" + "/".join(segments)
    query = "&".join(f"{name}={text}" for name, text in pairs)
    url = f"http://example.com{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, data=body, headers={"X-Amz-Meta-A": value, "Content-Type": value})
    request.context["timestamp"] = datetime.fromtimestamp(AT // 1000, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    request.context["payload_signing_enabled"] = True
    auth = S3SigV4Auth if service == "s3" else SigV4Auth
    theirs = auth(Credentials(KEY.id, KEY.secret, token), service, "eu-central-1")
    if token is not None:
        request.headers["X-Amz-Security-Token"] = token
    digest = hashlib.sha256(body).hexdigest()
    if service == "s3":
        request.headers["X-Amz-Content-SHA256"] = digest
    request.headers["X-Amz-Date"] = request.context["timestamp"]
    expected = theirs.signature(theirs.string_to_sign(request, theirs.canonical_request(request)), request)
    fields = dict(
        sign(AwsKey(KEY.id, KEY.secret, token), service=service, region="eu-central-1", method=method, path=path,
             query=query, host="example.com", headers=[(b"X-Amz-Meta-A", value.encode()), (b"Content-Type", value.encode())],
             payload_sha256=digest, at=AT)
    )  # fmt: skip
    assert fields[b"Authorization"].decode().rpartition("Signature=")[2] == expected
