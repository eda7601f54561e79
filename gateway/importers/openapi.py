"""An OpenAPI document (2.0, 3.0, 3.1) as a draft: its operations, where they live, and what it says of keys and credentials.

Only what a manifest can say is read. An operation whose path a manifest cannot express is left out with a note: undeclared,
its writes are pivots all the same. References are followed inside the document alone; nothing is fetched.

Source: OpenAPI Specification 3.1.1 sections 4.6 to 4.8; Swagger 2.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from gateway.config.openapi import LIMIT_BYTES, DocumentProblem, parse_document
from gateway.core.draft import DraftOperation, DraftTool, guess, pairs_of_requests, slug
from gateway.core.openapi import KEY_HEADER, followed, listed, mapping, server_url
from gateway.core.routing import PatternError, parse_pattern

__all__ = ["LIMIT_BYTES", "ImportProblem", "draft_openapi"]

_HOLE: Final = re.compile(r"\{([^{}]*)\}")


class ImportProblem(Exception):
    """The document cannot be drafted. The message says why and what to do."""


def draft_openapi(
    data: bytes, *, source: str = "", name: str | None = None, upstream: str | None = None, only: Sequence[str] = ()
) -> tuple[DraftTool, str]:
    """Return the draft of a document and what it calls itself.

    Args:
        data: JSON or YAML.
        source: where it came from; a relative server is relative to it.
        name: of the tool; else made from the title.
        upstream: base URL; else the document's first server.
        only: prefixes of the paths that are wanted; all if there are none.

    Raises:
        ImportProblem: it is no OpenAPI document, or says nowhere where its server is.
    """
    try:
        document = parse_document(data)
    except DocumentProblem as error:
        raise ImportProblem(str(error)) from None
    info = mapping(document.get("info"))
    title = str(info.get("title") or "api")
    where = upstream or _server(document, source)
    operations, notes = _operations(document, only)
    tool = DraftTool(
        name=name or slug(title),
        where=(f"upstream: {where}",),
        operations=operations,
        pairs=pairs_of_requests(operations),
        proposals=(*_described_by(source), *_proposals(document, name or slug(title))),
        notes=notes,
    )
    return tool, f"{title} {info.get('version', '')}".strip()


def _described_by(source: str) -> list[str]:
    """The document itself, where it is a file: models that call the tool over MCP then see its schemas."""
    if not source or source.startswith(("http://", "https://")):
        return []
    return [f"openapi: {json.dumps(source)}  (what its calls take as MCP tools; relative to the manifest)"]


def _server(document: Mapping[str, Any], source: str) -> str:
    url = server_url(document)
    url = urljoin(source, url) if source.startswith(("http://", "https://")) else url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ImportProblem("the document does not say where its server is; add --upstream https://…")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _operations(document: Mapping[str, Any], only: Sequence[str]) -> tuple[tuple[DraftOperation, ...], tuple[str, ...]]:
    operations: list[DraftOperation] = []
    notes: list[str] = []
    shapes: dict[tuple[object, ...], str] = {}
    taken: set[str] = set()
    for path, method, operation, _ in listed(document):
        if only and not path.startswith(tuple(only)):
            continue
        match = f"{method.upper()} {_template(path)}"
        try:
            pattern = parse_pattern(match)
        except PatternError as error:
            notes.append(f"{method.upper()} {path}: {error}")
            continue
        if pattern.shape in shapes:
            notes.append(f"{method.upper()} {path}: no call can be told from one to {shapes[pattern.shape]}")
            continue
        shapes[pattern.shape] = match
        identifier = str(operation.get("operationId") or "")
        name = slug(identifier or f"{method} {path}", taken)
        taken.add(name)
        operations.append(
            DraftOperation(
                name=name,
                match=match,
                guess=guess(method.upper(), identifier, path),
                identifier=_identifier(document, operation),
            )
        )
    return tuple(operations), tuple(notes)


def _template(path: str) -> str:
    """Return the path with names in its holes that a manifest can have."""
    seen: set[str] = set()

    def named(hole: re.Match[str]) -> str:
        name = slug(hole[1], seen)
        name = name if not name[0].isdigit() else f"p{name}"
        seen.add(name)
        return f"{{{name}}}"

    return _HOLE.sub(named, path)


def _identifier(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    """Return the field of the answer that most likely names what was made."""
    properties = mapping(followed(document, _answer(document, operation)).get("properties"))
    names = [name for name in properties if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name))]
    ranked = ("id", "Id", "ID", "uuid", "uid", "name", "key", "number", "token")
    return next(
        (name for name in ranked if name in names), next((name for name in names if name.lower().endswith("id")), "id")
    )


def _answer(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Mapping[str, Any]:
    answers = mapping(operation.get("responses"))
    status = next((one for one in answers if str(one).startswith("2")), None)
    answer = mapping(followed(document, {} if status is None else answers[status]))
    content = mapping(answer.get("content"))
    media = mapping(content.get("application/json") or next(iter(content.values()), None))
    return mapping(followed(document, media.get("schema") or answer.get("schema")))


def _proposals(document: Mapping[str, Any], name: str) -> Iterator[str]:
    schemes = mapping(mapping(document.get("components")).get("securitySchemes") or document.get("securityDefinitions"))
    for scheme in schemes.values():
        scheme = mapping(followed(document, scheme))
        if scheme.get("type") == "apiKey" and scheme.get("in") == "header":
            yield f'credentials: {{header: {scheme.get("name")}, value: "${{secret:{name}}}"}}'
            break
        if scheme.get("type") in ("oauth2", "openIdConnect") or str(scheme.get("scheme", "")).lower() == "bearer":
            yield f'credentials: {{header: Authorization, value: "Bearer ${{secret:{name}}}"}}'
            break
    for _, method, operation, _ in listed(document):
        header = _key_header(document, operation)
        if header is not None:
            yield (
                f"idempotency: {{header: {header}, window: 24h}}  ({method.upper()} takes it; right only if a repeated key "
                "changes nothing)"
            )
            break


def _key_header(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str | None:
    for parameter in operation.get("parameters") or ():
        parameter = mapping(followed(document, parameter))
        header = str(parameter.get("name", ""))
        if parameter.get("in") == "header" and KEY_HEADER.fullmatch(header):
            return header
    return None
