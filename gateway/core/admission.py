"""Admission settings (the machine follows)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt

from gateway.core.setting import SECONDS, Doc

__all__ = ["AdmissionSettings", "RateSettings", "WhenFull"]


class WhenFull(StrEnum):
    """What a call meets when every slot is taken."""

    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """Calls per period, as a leaky bucket that holds `calls`."""

    calls: Annotated[float, Gt(0), Doc("Calls that may start in one period.")]
    per: Annotated[float, SECONDS, Gt(0), Doc("Length of the period.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Slots, queue and rate of a domain."""

    concurrency: Annotated[int, Ge(1), Doc("Calls that may be at the domain's tools at once.")] = 16
    reserved: Annotated[int, Ge(0), Doc("Slots of these that only compensators may use.")] = 1
    queue: Annotated[int, Ge(0), Doc("Calls that may wait for a slot.")] = 32
    when_full: Annotated[WhenFull, Doc("Wait in the queue, or refuse at once.")] = WhenFull.WAIT
    rate: Annotated[RateSettings | None, Doc("Bound on calls started per period.")] = None
