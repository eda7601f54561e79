"""Who a message is from, and the way back: what every part of the MCP ingress passes along."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.core.mcp import Message
from gateway.core.mcp_session import Client
from gateway.core.message import Headers, Reply
from gateway.core.outcome import Refusal
from gateway.core.tool import ToolSpec
from gateway.egress.mcp_link import Exchange
from gateway.ingress.mcp_conversations import Conversation, Outbox

__all__ = ["Foreign", "Party"]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A server's HTTP answer that the client has to see as it is: 401 with its WWW-Authenticate."""

    reply: Reply


@dataclass(slots=True, kw_only=True, eq=False)
class Party:
    """Who a message is from, and the way back.

    Attributes:
        conversation: of the client; a stateless request has one of its own.
        tool: the server that the endpoint is for; None for all of them.
        outbox: where notifications and questions that belong to this request go.
        can_ask: whether the client would see a question while it waits.
        headers: of the HTTP request.
        marks: header fields for the answer, filled in here.
        delivered: to be called when the answer has reached the client, filled in here.
        exchange: what went to the server, filled in here.
        asking: puts a server's question to the client otherwise than on this request.
        is_task: the call may go on by itself: people may take their time.
        is_detached: it does: nobody waits for this very request any more.
        held: why the call waits for people, filled in here.
    """

    conversation: Conversation
    tool: ToolSpec | None
    outbox: Outbox = field(default_factory=Outbox)
    can_ask: bool = False
    headers: Headers = ()
    marks: Headers = ()
    delivered: Callable[[], None] | None = None
    exchange: Exchange | None = None
    asking: Callable[[str, str | None], Awaitable[Message]] | None = None
    is_task: bool = False
    is_detached: bool = False
    held: Refusal | None = None

    @property
    def client(self) -> Client:
        """Who it is."""
        return self.conversation.client

    def take_held(self) -> Refusal | None:
        """Return why the latest call waits for people, and forget it."""
        held, self.held = self.held, None
        return held
