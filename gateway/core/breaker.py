"""Circuit breaker settings (the machine follows)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from gateway.core.setting import SECONDS, Doc

__all__ = ["BreakerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When a tool's breaker opens, and how it heals."""

    window: Annotated[int, Ge(20), Le(10_000), Doc("Outcomes that the ring remembers.")] = 20
    max_age: Annotated[float, SECONDS, Gt(0), Doc("Outcomes older than this no longer count.")] = 300.0
    minimum: Annotated[int, Ge(1), Doc("Outcomes needed before a ratio can open the breaker.")] = 10
    failure_ratio: Annotated[float, Gt(0), Le(1), Doc("Opens at this share of failures in the ring.")] = 0.5
    slow_after: Annotated[float | None, SECONDS, Gt(0), Doc("An answer later than this counts as slow.")] = None
    slow_ratio: Annotated[float, Gt(0), Le(1), Doc("Opens at this share of slow answers in the ring.")] = 0.8
    consecutive: Annotated[int, Ge(1), Doc("Opens at this many timeouts or transport failures in a row.")] = 3
    cooldown: Annotated[float, SECONDS, Gt(0), Doc("First time for which an open breaker refuses.")] = 30.0
    max_cooldown: Annotated[
        float, SECONDS, Gt(0), Doc("Bound of the cooldown, which doubles on each failed canary.")
    ] = 600.0
    ramp: Annotated[bool, Doc("After a successful canary admit 1, 2, 4 … calls at once instead of all.")] = False
    count_429: Annotated[bool, Doc("Whether 429 counts as a failure.")] = True
