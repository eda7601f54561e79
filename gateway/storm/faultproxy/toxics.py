"""What can go wrong on a link, by name: toxiproxy's faults of streams, and faults of HTTP exchanges.

Faults of streams act on bytes, in `upstream` direction (towards the tool) or `downstream` (towards the caller), on the share
`toxicity` of connections. Faults of HTTP act on whole exchanges, on the share `toxicity` of requests; `only` picks requests
by method and prefix of the path (`POST /v1/payouts`), and `times` ends a fault after so many.

Source: Shopify/toxiproxy README, "Toxics".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HTTP", "STREAM", "Toxic", "ToxicError"]

STREAM: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "latency": {"latency": (0, "milliseconds added to each piece"), "jitter": (0, "milliseconds up or down")},
    "bandwidth": {"rate": (0, "kilobytes a second")},
    "slow_close": {"delay": (0, "milliseconds between the end and the close")},
    "timeout": {"timeout": (0, "milliseconds until the connection is closed without data; 0 is never")},
    "reset_peer": {"timeout": (0, "milliseconds until the connection is reset")},
    "slicer": {
        "average_size": (64, "bytes of a slice"),
        "size_variation": (0, "bytes up or down"),
        "delay": (0, "microseconds between slices"),
    },
    "limit_data": {"bytes": (0, "bytes after which the connection is closed")},
}
HTTP: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "status": {
        "status": (503, "status to answer with, without asking the tool"),
        "retry_after": (-1, "seconds for Retry-After; below 0 sends none"),
    },
    "reset_before": {},
    "hang_before": {"timeout": (0, "milliseconds until the connection is closed; 0 is never")},
    "applied_timeout": {"timeout": (0, "the tool did it; milliseconds until the connection is closed without a word")},
    "applied_reset": {},
    "applied_status": {"status": (500, "the tool did it; status to answer with instead")},
    "truncate": {"share": (0.5, "share of the body that is sent")},
    "wrong_length": {"by": (7, "bytes that Content-Length says too much")},
    "garbage_head": {},
    "slow_headers": {"delay": (100, "milliseconds between bytes of the head")},
    "duplicate": {},
}
_STREAMS = ("upstream", "downstream")


class ToxicError(ValueError):
    """No such fault, or an attribute it does not have. The message says what there is."""


@dataclass(slots=True, kw_only=True)
class Toxic:
    """One fault of one link. `left` is how often it will still happen, or None for always."""

    name: str
    type: str
    stream: str = "downstream"
    toxicity: float = 1.0
    attributes: dict[str, float] = field(default_factory=dict)
    only: str = ""
    left: int | None = None

    @property
    def is_http(self) -> bool:
        """Whether it acts on exchanges rather than bytes."""
        return self.type in HTTP

    def __getitem__(self, attribute: str) -> float:
        return self.attributes[attribute]

    def concerns(self, method: str, target: str) -> bool:
        """Whether a request is one of those picked by `only`."""
        if not self.only:
            return True
        wanted, _, prefix = self.only.rpartition(" ")
        return (not wanted or wanted == method) and target.startswith(prefix)

    def document(self) -> dict[str, Any]:
        """Return it as toxiproxy's API shows it."""
        shown: dict[str, Any] = {
            "name": self.name, "type": self.type, "stream": self.stream, "toxicity": self.toxicity,
            "attributes": dict(self.attributes),
        }  # fmt: skip
        if self.only:
            shown["only"] = self.only
        if self.left is not None:
            shown["times"] = self.left
        return shown

    @classmethod
    def of(cls, document: object) -> Toxic:
        """Return the fault that a JSON object describes.

        Raises:
            ToxicError: it describes none.
        """
        if not isinstance(document, Mapping):
            raise ToxicError("a toxic is a JSON object with `type` and `attributes`")
        kind = document.get("type")
        known = {**STREAM, **HTTP}
        if not isinstance(kind, str) or kind not in known:
            raise ToxicError(f"there is no toxic {kind!r}; there are {', '.join(known)}")
        stream = document.get("stream") or "downstream"
        if stream not in _STREAMS:
            raise ToxicError(f"a stream is {' or '.join(_STREAMS)}, not {stream!r}")
        left = document.get("times")
        return cls(
            name=str(document.get("name") or f"{kind}_{stream}"),
            type=kind,
            stream=str(stream),
            toxicity=_number(document.get("toxicity", 1.0), "toxicity", 0, 1),
            attributes=_attributes(known[kind], document.get("attributes") or {}, kind),
            only=str(document.get("only") or ""),
            left=None if left is None else int(_number(left, "times", 0, 1e9)),
        )


def _attributes(known: Mapping[str, tuple[float, str]], given: object, kind: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ToxicError("`attributes` is a JSON object")
    for name in given:
        if name not in known:
            raise ToxicError(f"the toxic {kind} has no attribute {name!r}; it has {', '.join(known) or 'none'}")
    return {name: _number(given.get(name, default), name, -1, 1e12) for name, (default, _) in known.items()}


def _number(value: object, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ToxicError(f"`{name}` is a number from {low:g} to {high:g}, not {value!r}")
    return float(value)
