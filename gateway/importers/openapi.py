"""An OpenAPI document (2.0, 3.0, 3.1) as a draft: its operations, where they live, and what it says of keys and credentials.

Only what a manifest can say is read. An operation whose path a manifest cannot express is left out with a note: undeclared,
its writes are pivots all the same. References are followed inside the document alone; nothing is fetched.

Source: OpenAPI Specification 3.1.1 sections 4.6 to 4.8; Swagger 2.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import orjson
import yaml

from gateway.core.draft import DraftOperation, DraftTool, guess, pairs_of_requests, slug
from gateway.core.routing import PatternError, parse_pattern

__all__ = ["LIMIT_BYTES", "ImportProblem", "draft_openapi"]

LIMIT_BYTES: Final = 64 << 20
_METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete")
_KEY_HEADER: Final = re.compile(r"(?i)(?:x-)?(?:[a-z]+-)*idempotency(?:-key|-token)?|paypal-request-id|x-request-token")
_HOLE: Final = re.compile(r"\{([^{}]*)\}")
_FOLLOWED: Final = 20


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
    document = _document(data)
    info = _mapping(document.get("info"))
    title = str(info.get("title") or "api")
    where = upstream or _server(document, source)
    operations, notes = _operations(document, only)
    tool = DraftTool(
        name=name or slug(title),
        where=(f"upstream: {where}",),
        operations=operations,
        pairs=pairs_of_requests(operations),
        proposals=tuple(_proposals(document, name or slug(title))),
        notes=notes,
    )
    return tool, f"{title} {info.get('version', '')}".strip()


def _document(data: bytes) -> Mapping[str, Any]:
    if len(data) > LIMIT_BYTES:
        raise ImportProblem(f"the document is larger than {LIMIT_BYTES >> 20} MiB")
    try:
        document = orjson.loads(data)
    except ValueError:
        document = _yaml(data)
    if not isinstance(document, dict) or not isinstance(document.get("paths", {}), dict):
        raise ImportProblem("the document is no OpenAPI description: it has no `paths`")
    version = str(document.get("openapi") or document.get("swagger") or "")
    if not version.startswith(("2.", "3.")):
        raise ImportProblem(
            f"the document names no OpenAPI version that is known here (2.0, 3.0, 3.1), but {version!r}"
        )
    return document


def _yaml(data: bytes) -> Any:
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f" (line {where.line + 1})"
        raise ImportProblem(f"the document is neither JSON nor YAML{line}") from None


def _server(document: Mapping[str, Any], source: str) -> str:
    if "swagger" in document:
        schemes = document.get("schemes") or ["https"]
        scheme = "https" if "https" in schemes else str(schemes[0])
        url = (
            f"{scheme}://{document['host']}{document.get('basePath', '')}"
            if document.get("host")
            else str(document.get("basePath", ""))
        )
    else:
        servers = document.get("servers") or [{}]
        server = _mapping(servers[0]) if isinstance(servers, list) else {}
        variables = _mapping(server.get("variables"))
        url = _HOLE.sub(
            lambda hole: str(_mapping(variables.get(hole[1])).get("default", "")), str(server.get("url", ""))
        )
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
    for path, method, operation in _listed(document):
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


def _listed(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, item in _mapping(document.get("paths")).items():
        item = _mapping(_followed(document, item))
        for method in _METHODS:
            if isinstance(item.get(method), Mapping):
                yield str(path).partition("?")[0].partition("#")[0], method, item[method]


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
    properties = _mapping(_followed(document, _answer(document, operation)).get("properties"))
    names = [name for name in properties if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name))]
    ranked = ("id", "Id", "ID", "uuid", "uid", "name", "key", "number", "token")
    return next(
        (name for name in ranked if name in names), next((name for name in names if name.lower().endswith("id")), "id")
    )


def _answer(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Mapping[str, Any]:
    answers = _mapping(operation.get("responses"))
    status = next((one for one in answers if str(one).startswith("2")), None)
    answer = _mapping(_followed(document, {} if status is None else answers[status]))
    content = _mapping(answer.get("content"))
    media = _mapping(content.get("application/json") or next(iter(content.values()), None))
    return _mapping(_followed(document, media.get("schema") or answer.get("schema")))


def _proposals(document: Mapping[str, Any], name: str) -> Iterator[str]:
    schemes = _mapping(
        _mapping(document.get("components")).get("securitySchemes") or document.get("securityDefinitions")
    )
    for scheme in schemes.values():
        scheme = _mapping(_followed(document, scheme))
        if scheme.get("type") == "apiKey" and scheme.get("in") == "header":
            yield f'credentials: {{header: {scheme.get("name")}, value: "${{secret:{name}}}"}}'
            break
        if scheme.get("type") in ("oauth2", "openIdConnect") or str(scheme.get("scheme", "")).lower() == "bearer":
            yield f'credentials: {{header: Authorization, value: "Bearer ${{secret:{name}}}"}}'
            break
    for _, method, operation in _listed(document):
        header = _key_header(document, operation)
        if header is not None:
            yield (
                f"idempotency: {{header: {header}, window: 24h}}  ({method.upper()} takes it; right only if a repeated key "
                "changes nothing)"
            )
            break


def _key_header(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str | None:
    for parameter in operation.get("parameters") or ():
        parameter = _mapping(_followed(document, parameter))
        header = str(parameter.get("name", ""))
        if parameter.get("in") == "header" and _KEY_HEADER.fullmatch(header):
            return header
    return None


def _followed(document: Mapping[str, Any], value: Any) -> Any:
    """Return what a reference inside the document leads to; anything else as it is."""
    for _ in range(_FOLLOWED):
        reference = value.get("$ref") if isinstance(value, Mapping) else None
        if not isinstance(reference, str):
            return value if value is not None else {}
        if not reference.startswith("#/"):
            return {}
        value = document
        for step in reference[2:].split("/"):
            value = _mapping(value).get(step.replace("~1", "/").replace("~0", "~"))
    return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
