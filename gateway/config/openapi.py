"""OpenAPI documents as files and downloads hold them: JSON or YAML, of a version that is known here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import orjson
import yaml

from gateway.core.openapi import Document

__all__ = ["LIMIT_BYTES", "DocumentProblem", "document_of", "parse_document"]

LIMIT_BYTES: Final = 64 << 20


class DocumentProblem(Exception):
    """It is no OpenAPI document; the message says why."""


@lru_cache(maxsize=16)
def document_of(data: bytes) -> tuple[bytes, Document]:
    """Return a file's digest and its document, to ask for operations. Kept, for each reload reads the same files again.

    Raises:
        DocumentProblem: see `parse_document`.
    """
    return blake2b(data, digest_size=16).digest(), Document(parse_document(data))


def parse_document(data: bytes) -> Mapping[str, Any]:
    """Return a document as plain values.

    Raises:
        DocumentProblem: it is too large, cannot be parsed, or is something else.
    """
    if len(data) > LIMIT_BYTES:
        raise DocumentProblem(f"the document is larger than {LIMIT_BYTES >> 20} MiB")
    try:
        document = orjson.loads(data)
    except ValueError:
        document = _yaml(data)
    if not isinstance(document, dict) or not isinstance(document.get("paths", {}), dict):
        raise DocumentProblem("the document is no OpenAPI description: it has no `paths`")
    version = str(document.get("openapi") or document.get("swagger") or "")
    if not version.startswith(("2.", "3.")):
        raise DocumentProblem(
            f"the document names no OpenAPI version that is known here (2.0, 3.0, 3.1), but {version!r}"
        )
    return document


def _yaml(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f" (line {where.line + 1})"
        raise DocumentProblem(f"the document is neither JSON nor YAML{line}") from None
