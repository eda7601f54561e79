"""Faults over time: what happens to which link at which second.

- {at: 2s, proxy: payments, add: {type: reset_before, toxicity: 0.3}}
- {at: 5s, proxy: payments, down: true}
- {at: 9s, proxy: payments, down: false, remove: reset_before_downstream}
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.decode import parse_duration
from gateway.storm.faultproxy.proxy import Proxy
from gateway.storm.faultproxy.toxics import Toxic, ToxicError

__all__ = ["Act", "acts_of", "play"]


@dataclass(frozen=True, slots=True)
class Act:
    """What happens at one moment. `is_down` None leaves the link as it is."""

    at_s: float
    proxy: str
    add: Toxic | None = None
    remove: str | None = None
    is_down: bool | None = None


def acts_of(document: object) -> list[Act]:
    """Return the acts that a list of JSON objects describes, in order.

    Raises:
        ToxicError: it describes none.
    """
    if not isinstance(document, Sequence) or isinstance(document, str):
        raise ToxicError("a script is a list of acts")
    return sorted((_act(act) for act in document), key=lambda act: act.at_s)


def _act(document: object) -> Act:
    if not isinstance(document, Mapping):
        raise ToxicError("an act is an object with `at`, `proxy` and one of `add`, `remove`, `down`")
    unknown = set(document) - {"at", "proxy", "add", "remove", "down"}
    if unknown:
        raise ToxicError(f"an act has no {', '.join(sorted(map(str, unknown)))}")
    at_s = parse_duration(str(document.get("at", "0")))
    if at_s is None or "proxy" not in document:
        raise ToxicError("an act needs `at`, such as 2s, and `proxy`")
    down = document.get("down")
    return Act(
        at_s,
        str(document["proxy"]),
        Toxic.of(document["add"]) if "add" in document else None,
        str(document["remove"]) if "remove" in document else None,
        None if down is None else bool(down),
    )


async def play(acts: Sequence[Act], proxies: Mapping[str, Proxy]) -> None:
    """Do each act at its time, counted from now."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for act in acts:
        await asyncio.sleep(max(0.0, began + act.at_s - loop.time()))
        proxy = proxies.get(act.proxy)
        if proxy is None:
            continue
        if act.remove is not None:
            proxy.toxics.pop(act.remove, None)
        if act.add is not None:
            proxy.add(act.add)
        if act.is_down is not None:
            await (proxy.disable() if act.is_down else proxy.enable())
