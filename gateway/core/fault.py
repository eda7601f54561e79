"""How an exchange with a tool can go wrong: the vocabulary shared by egress, breaker, retry and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.codes import Dispatched

__all__ = ["Broken", "Fault"]


class Fault(StrEnum):
    """How an attempt went wrong, for breaker, retry and metrics. `NONE` is an answer that is no fault of the tool."""

    NONE = "none"
    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    TIMEOUT = "timeout"
    RESET = "reset"
    PROTOCOL = "protocol"
    SERVER = "server"
    THROTTLED = "throttled"
    CLIENT_ERROR = "client_error"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Broken:
    """An exchange without a usable answer.

    Attributes:
        fault: how it went wrong.
        dispatched: `NO` only if no byte of the request can have reached the tool; in case of doubt `MAYBE`.
        detail: one clause for people, naming what broke; holds no secret and no payload.
    """

    fault: Fault
    dispatched: Dispatched
    detail: str
