"""How long to wait before the next attempt, by the class of what went wrong.

Full jitter, because attempts that failed together must not come back together: the draw is taken after the cap, so that
the waits stay spread also at the cap (libraries that add jitter before capping send everybody at the same moment).
A wait that the tool asks for (Retry-After) wins over our own, within a cap; a small jitter is added on top of it, since
the tool asked everybody to come back at the same time. What cannot get better by waiting is never repeated.

Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015; RFC 9110 section 10.2.3 (Retry-After);
jd/tenacity#529 (jitter that vanished at the cap).
"""

from __future__ import annotations

from enum import StrEnum

from gateway.core.fault import Fault

__all__ = ["BackoffClass", "backoff_class", "full_jitter", "wait_s"]

# A tool without capacity needs tens of seconds; a rate window is usually a second.
CAPACITY_BASE_S = 10.0
RATE_BASE_S = 1.0
# 2.0**1024 overflows; at 2.0**1023 any base above a picosecond is beyond every cap.
_MAX_DOUBLINGS = 1023


class BackoffClass(StrEnum):
    """What has to change before a repeat can succeed."""

    TRANSPORT = "transport"
    SERVER = "server"
    RATE = "rate"
    CAPACITY = "capacity"
    CONTENT_BLOCK = "content_block"
    AUTH = "auth"


# Members that every call is compared with, looked up once (docs/adr/0092).
_TRANSPORT, _SERVER = BackoffClass.TRANSPORT, BackoffClass.SERVER

_CLASSES = {
    Fault.CONNECT: BackoffClass.TRANSPORT,
    Fault.CONNECT_TIMEOUT: BackoffClass.TRANSPORT,
    Fault.TIMEOUT: BackoffClass.TRANSPORT,
    Fault.RESET: BackoffClass.TRANSPORT,
    Fault.PROTOCOL: BackoffClass.TRANSPORT,
    Fault.SERVER: BackoffClass.SERVER,
    Fault.THROTTLED: BackoffClass.RATE,
    Fault.CLIENT_ERROR: BackoffClass.CONTENT_BLOCK,
}


def backoff_class(fault: Fault, status: int | None = None) -> BackoffClass | None:
    """Return the class of a fault, or None where there is nothing to repeat (no fault, or cancelled).

    `status` is that of the tool's answer, if it gave one: it tells lacking capacity from a rate, and lacking rights from
    refused content.
    """
    if status == 503 and fault is Fault.THROTTLED:
        return BackoffClass.CAPACITY
    if status in (401, 403, 407) and fault is Fault.CLIENT_ERROR:
        return BackoffClass.AUTH
    return _CLASSES.get(fault)


def full_jitter(attempt: int, base_s: float, cap_s: float, u: float) -> float:
    """Return the wait before the next attempt, in seconds.

    Uniform over [0, min(cap_s, base_s * 2**(attempt - 1))]; `attempt` counts from 1 and `u` is a draw from [0, 1).

    Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """
    return u * min(cap_s, base_s * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))


def wait_s(
    backoff: BackoffClass,
    attempt: int,
    *,
    base_s: float,
    cap_s: float,
    u: float,
    asked_s: float | None = None,
    asked_cap_s: float = 60.0,
) -> float | None:
    """Return the wait before the attempt after `attempt`, in seconds, or None: never repeat it as it is.

    Args:
        backoff: class of what went wrong.
        attempt: attempts made, from 1.
        base_s: bound of the first wait for transport and server faults, and of the jitter on top of an asked wait.
        cap_s: bound of our own waits; capacity may wait for at least its base.
        u: a draw from [0, 1).
        asked_s: what the tool asked for, if it did.
        asked_cap_s: how much of that is honoured.
    """
    if backoff is _TRANSPORT or backoff is _SERVER:
        return full_jitter(attempt, base_s, cap_s, u)
    if backoff is BackoffClass.CONTENT_BLOCK or backoff is BackoffClass.AUTH:
        return None
    if asked_s is not None:
        return min(asked_s, asked_cap_s) + full_jitter(attempt, base_s, cap_s, u)
    if backoff is BackoffClass.CAPACITY:
        return full_jitter(attempt, max(base_s, CAPACITY_BASE_S), max(cap_s, CAPACITY_BASE_S), u)
    return full_jitter(attempt, max(base_s, RATE_BASE_S), cap_s, u)
