"""What a proxy in front of tools has no business forwarding, and the mark it leaves on what it forwards.

Refused with a status of its own, before a tool is looked for: a request for another server (421, where this is no forward
proxy: taking a whole URL would let an agent name any address), and a request that has been here before (508: the gateway is,
perhaps by way of another proxy, its own tool).

Source: RFC 9110 sections 7.4, 7.6.2, 7.6.3, 15.5.20; RFC 9112 section 3.2; RFC 5842 section 7.2.
"""

from __future__ import annotations

__all__ = ["BadHops", "hops_left", "unfit", "via"]

MAX_HOPS = 255
"""More proxies in a row than that are a circle."""


def unfit(target: bytes, *, passed: bytes | None, pseudonym: bytes, takes_urls: bool = False) -> tuple[int, str] | None:
    """Return status and sentence for a request that cannot be forwarded, or None.

    Args:
        target: the raw request target.
        passed: what Via says, if there is one.
        pseudonym: what this gateway calls itself in Via.
        takes_urls: it is a proxy, too, which finds the tool that a whole URL means (`core/hosts.py`).
    """
    if target[:1] != b"/" and not (takes_urls and b"://" in target):
        if target == b"*":
            return 400, "The target '*' asks about this gateway as a whole: name a tool, as in /{tool}/{path}."
        return 421, "This gateway is no forward proxy: send the target /{tool}/{path}, not a whole URL."
    if passed is not None and pseudonym in passed:
        return 508, "This request has passed through this gateway before: a tool's upstream leads back to it."
    return None


def via(pseudonym: bytes) -> tuple[bytes, bytes]:
    """Return the field that a forwarded request gets beside any that it has (RFC 9110 section 7.6.3)."""
    return (b"Via", b"1.1 " + pseudonym)


class BadHops(ValueError):
    """A Max-Forwards that is no number."""


def hops_left(value: bytes) -> int:
    """Return how far a request may still go once this gateway has passed it on; below zero it is not passed on.

    For TRACE and OPTIONS; with other methods Max-Forwards means nothing.

    Raises:
        BadHops: the field holds no number.

    Source: RFC 9110 section 7.6.2.
    """
    text = value.strip()
    if not text.isdigit() or len(text) > 18:
        raise BadHops
    return min(int(text), MAX_HOPS) - 1
