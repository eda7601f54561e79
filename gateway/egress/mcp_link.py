"""What the ways to an MCP server have in common: a session with it, and what one exchange carries along.

A *session* is one conversation with one server, negotiated once: over Streamable HTTP or over the pipes of a child
process. An *exchange* is one request of an agent on its way, with what the server may say meanwhile (progress, log lines)
and ask (sampling, elicitation): ingress knows whom to tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.core.fault import Broken
from gateway.core.mcp import Message
from gateway.core.mcp_session import Client
from gateway.core.message import Headers, Reply
from gateway.egress import Timings

__all__ = ["OWN_CLIENT", "SOON", "Answer", "Exchange", "OnEvent", "OnQuestion", "Server", "ServerFacts", "Session"]

Answer = Message | Reply | Broken
"""A server's response; or an HTTP answer that is none (401, 5xx); or nothing that can be used."""

SOON: Final = Timings(connect_s=5.0, first_byte_s=5.0, idle_s=5.0, total_s=5.0)
"""For what we ask of a server by the way, which nobody waits for longer."""

OnEvent = Callable[[str, Client | None, str, str | None, str | None], None]
"""Takes the tool's name, the client whose session it is (None: all share it), the method and the raw params of a
notification that belongs to no request, and the place in the server's stream (None where it has none)."""

OnQuestion = Callable[[str, Client, str, str | None], Awaitable[Message | None]]
"""Takes the tool's name, the client of the session (one without a nonce if nobody can say), and a request of the server that
belongs to no request of the agent; returns the agent's response, None if there is nobody to ask."""

OWN_CLIENT = Client(version="2025-11-25", info={"name": "seawall", "version": "1"})
"""Who speaks when it is the gateway itself: listings, compensators, probes."""


def _nowhere(method: str, params: str | None) -> None:
    """Progress that nobody asked for."""


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """One request of an agent on its way.

    Attributes:
        client: who asks.
        params: members of `params` to send beside those of the call itself, as raw JSON (`task`, `inputResponses`, …).
        meta: members of `_meta` to send, as raw JSON.
        headers: end-to-end fields that go along where the server is reached over HTTP.
        schema: the tool's input schema, which may ask for arguments in headers.
        needs_task: the tool says that its server takes it as a task alone.
        tell: takes a notification of the server that belongs to this request.
        ask: puts a request of the server to the agent and returns its response; None if the agent cannot be asked.
        is_detached: whether the client is no longer waiting, and is asked otherwise than by an answer to its request.
        was_asked: the server asked something meanwhile, so it had begun; filled in here.
        is_streamed: the server answered with a stream; filled in here.
    """

    client: Client = OWN_CLIENT
    params: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, str] = field(default_factory=dict)
    headers: Headers = ()
    schema: object = None
    needs_task: bool = False
    tell: Callable[[str, str | None], None] = _nowhere
    ask: Callable[[str, str | None], Awaitable[Message]] | None = None
    is_detached: Callable[[], bool] = lambda: False
    was_asked: bool = False
    is_streamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What a server said of itself when it was greeted. `raw_capabilities` is the text as it came."""

    version: str
    is_modern: bool
    raw_capabilities: str = "{}"
    capabilities: Mapping[str, object] = field(default_factory=dict)
    info: Mapping[str, object] = field(default_factory=dict)
    instructions: str | None = None


class Session(Protocol):
    """One conversation with one server."""

    facts: ServerFacts

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""

    async def request(
        self, method: str, params: str | None, exchange: Exchange, timings: Timings, *, has_side_effects: bool
    ) -> Answer:
        """Send a request once and return what came back. Cancelling it tells the server so."""

    async def notify(self, method: str, params: str | None) -> None:
        """Send a notification; a server that is gone does not matter."""

    async def listen(self, since: str | None = None) -> None:
        """Take what the server says unasked, from a place in its stream on, until cancelled.

        Returns when there is nothing to take from this session: the server has no stream, or the session is over. Several
        may listen at a time.
        """

    async def close(self) -> None:
        """End it. May be repeated."""


class Server(Protocol):
    """One MCP server, and the sessions with it."""

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""

    async def session(self, client: Client, timings: Timings) -> Session | Reply | Broken:
        """Return the session for a client, opened if need be."""

    def has_session(self, client: Client) -> bool:
        """Whether a client's session is open: what it sets is for the server to hear now, and not with the greeting."""

    async def end(self, client: Client) -> None:
        """End a client's session, if there is one."""

    async def evict(self, client: Client) -> None:
        """End a client's session for want of room: it comes back, and then what it had set is set again."""

    async def close(self, *, is_leaving: bool = False) -> None:
        """End all of them; those that are to be gone on with stay open at the server if we are only leaving."""
