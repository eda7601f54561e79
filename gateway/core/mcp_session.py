"""A session that the client carries: everything we must know of it, in the id itself, sealed so that none can be made up.

The handshake era gives each client a session id and expects the server to remember. We do not: the id holds who the
client is, what it can do and which endpoint it is for, under an HMAC with the gateway's own key. A restart, an eviction
or another replica opens the session again from the id, and the client sees nothing of it.

What is in it is not secret (the client said it), only unforgeable. Ids are bounded, as they travel in a header.

Source: MCP 2025-11-25 "Session management": visible ASCII, globally unique, cryptographically secure.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from gateway.core.message import Headers

__all__ = [
    "ANONYMOUS",
    "Client",
    "apart",
    "bounded",
    "client_from",
    "client_parts",
    "sealed",
    "sealed_places",
    "unsealed",
    "unsealed_places",
    "with_credentials",
]

LIMIT_BYTES: Final = 6_000
ANONYMOUS: Final = "anonymous "
"""So begins what names a client of the handshake era that carries no session id; its agent follows."""

_MAC_BYTES: Final = 16
_SESSION: Final = b"mcp-session\n"
_PLACES: Final = b"mcp-places\n"
_CREDENTIAL: Final = b"mcp-credential\n"
"""What a seal is for, so that one thing cannot be shown for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who speaks to us: a client's session, or the sender of one stateless request.

    Attributes:
        nonce: names the session; empty for stateless requests.
        scope: the server it is bound to, or empty for all.
        agent: who calls, for fairness and implicit runs.
        is_proven: a token proves it; told anew by each request, so not part of the session id.
        version: the revision spoken with it.
        capabilities, info: as the client declared them.
        log_level: what a stateless request asks for.
        credentials: the client's own for the one server of its endpoint; told anew by each request, kept nowhere.
        credential: names them, under the gateway's key: it may be kept, and nobody without the key can try guesses on it.
    """

    nonce: str = ""
    scope: str = ""
    agent: str = ""
    is_proven: bool = False
    version: str
    capabilities: Mapping[str, object] = field(default_factory=dict)
    info: Mapping[str, object] = field(default_factory=dict)
    log_level: str | None = None
    is_modern: bool = False
    credentials: Headers = field(default=(), repr=False)
    credential: str = ""

    def can(self, capability: str) -> bool:
        """Whether it declared a capability."""
        return isinstance(self.capabilities.get(capability), Mapping)


def with_credentials(client: Client, credentials: Headers, key: bytes) -> Client:
    """Return a client with credentials of its own, or with none."""
    told = b"\n".join(value for _, value in credentials)
    name = _mac(told, key, _CREDENTIAL).hex() if credentials else ""
    return replace(client, credentials=credentials, credential=name)


def apart(client: Client) -> Client:
    """Return a client without a session as one with its own if it has a credential: no two credentials share a session at a
    server that keeps state in it."""
    is_bound = client.nonce and not client.nonce.startswith(ANONYMOUS)
    if is_bound or not client.credential:
        return client
    return replace(client, nonce=f"credential {client.credential} {client.nonce}".strip())


def bounded(client: Client) -> Client:
    """Return a client whose own description is cut to name and version; where that is too long for a header still, there is
    none, and of its capabilities those are left that we know."""
    info = {name: client.info[name] for name in ("name", "version") if name in client.info}
    short = replace(client, info=info)
    if len(_dumped(short)) <= LIMIT_BYTES:
        return short
    known: dict[str, object] = {
        name: {} for name in client.capabilities if name in ("sampling", "elicitation", "roots")
    }
    return replace(client, capabilities=known, info={})


def sealed(client: Client, key: bytes) -> str:
    """Return the session id of a client, as far as it is `bounded`."""
    return _closed(_dumped(bounded(client)), key, _SESSION)


def unsealed(text: str, key: bytes) -> Client | None:
    """Return the client of a session id, or None if it is not one of ours."""
    body = _opened(text, key, _SESSION)
    return None if body is None else client_from(json.loads(body))


def client_parts(client: Client) -> list[object]:
    """Return what makes up a client of the handshake era, as JSON has it; `client_from` reads it."""
    return [1, client.nonce, client.scope, client.agent, client.version, client.capabilities, client.info]


def client_from(parts: list[Any]) -> Client:
    """Return the client of `client_parts`."""
    _, nonce, scope, agent, version, capabilities, info = parts
    return Client(nonce=nonce, scope=scope, agent=agent, version=version, capabilities=capabilities, info=info)


def sealed_places(nonce: str, places: Mapping[str, str], key: bytes) -> str | None:
    """Return the id of an event on a client's own stream: how far the stream of each server behind it has come; None where
    that is too long for a header.

    A client that comes back with it (`Last-Event-ID`) is told by the servers what it missed, whoever else has restarted
    meanwhile. It is sealed, as nobody may make up places in the streams of others.
    """
    body = json.dumps([1, nonce, dict(places)], separators=(",", ":")).encode()
    return _closed(body, key, _PLACES) if len(body) <= LIMIT_BYTES else None


def unsealed_places(text: str, nonce: str, key: bytes) -> dict[str, str]:
    """Return the places that an event's id names; none if it is not one of ours, or another client's."""
    body = _opened(text, key, _PLACES)
    if body is None:
        return {}
    _, owner, places = json.loads(body)
    return dict(places) if owner == nonce else {}


def _dumped(client: Client) -> bytes:
    return json.dumps(client_parts(client), separators=(",", ":")).encode()


def _closed(body: bytes, key: bytes, what: bytes) -> str:
    return base64.urlsafe_b64encode(_mac(body, key, what) + body).decode().rstrip("=")


def _opened(text: str, key: bytes, what: bytes) -> bytes | None:
    if len(text) > 2 * LIMIT_BYTES:
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    mac, body = data[:_MAC_BYTES], data[_MAC_BYTES:]
    return body if hmac.compare_digest(mac, _mac(body, key, what)) else None


def _mac(body: bytes, key: bytes, what: bytes) -> bytes:
    return hmac.digest(key, what + body, sha256)[:_MAC_BYTES]
