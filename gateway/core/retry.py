"""Retry settings (the rules follow)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from gateway.core.setting import SECONDS, Doc

__all__ = ["RetrySettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """How often and how patiently an attempt is repeated."""

    attempts: Annotated[int, Ge(1), Le(20), Doc("Attempts a call may take, the first included.")] = 3
    base: Annotated[float, SECONDS, Gt(0), Doc("Upper bound of the first wait; it doubles with each attempt.")] = 0.1
    cap: Annotated[float, SECONDS, Gt(0), Doc("Bound of any wait.")] = 30.0
    retry_after_cap: Annotated[float, SECONDS, Gt(0), Doc("A tool's Retry-After is honoured up to this.")] = 60.0
    budget_ratio: Annotated[float, Ge(0), Le(1), Doc("Retries earned by each call.")] = 0.1
    budget_floor: Annotated[float, Ge(0), Doc("Retries that are always in reserve, refilled at one a second.")] = 3.0
