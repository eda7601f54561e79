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
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

__all__ = ["Client", "sealed", "unsealed"]

LIMIT_BYTES: Final = 6_000
_MAC_BYTES: Final = 16


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

    def can(self, capability: str) -> bool:
        """Whether it declared a capability."""
        return isinstance(self.capabilities.get(capability), Mapping)


def sealed(client: Client, key: bytes) -> str:
    """Return the session id of a client. What would make it too long for a header (the client's own description) is
    cut to name and version."""
    info = {name: client.info[name] for name in ("name", "version") if name in client.info}
    body = _dumped(client, client.capabilities, info)
    if len(body) > LIMIT_BYTES:
        known: dict[str, object] = {
            name: {} for name in client.capabilities if name in ("sampling", "elicitation", "roots")
        }
        body = _dumped(client, known, {})
    return base64.urlsafe_b64encode(_mac(body, key) + body).decode().rstrip("=")


def unsealed(text: str, key: bytes) -> Client | None:
    """Return the client of a session id, or None if it is not one of ours."""
    if len(text) > 2 * LIMIT_BYTES:
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    mac, body = data[:_MAC_BYTES], data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(body, key)):
        return None
    _, nonce, scope, agent, version, capabilities, info = json.loads(body)
    return Client(nonce=nonce, scope=scope, agent=agent, version=version, capabilities=capabilities, info=info)


def _dumped(client: Client, capabilities: object, info: object) -> bytes:
    value = [1, client.nonce, client.scope, client.agent, client.version, capabilities, info]
    return json.dumps(value, separators=(",", ":")).encode()


def _mac(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"mcp-session\n" + body, sha256)[:_MAC_BYTES]
