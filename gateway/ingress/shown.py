"""An answer of the runs and tasks APIs, before it is HTTP."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Shown"]


@dataclass(frozen=True, slots=True)
class Shown:
    """An HTTP status, a view, and when to ask again."""

    status: int
    view: dict[str, object]
    retry_after_s: int | None = None
