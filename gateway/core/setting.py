"""The marks that turn a dataclass field into a documented setting.

A field says everything about itself once: type, default, unit, bounds and one sentence. Decoding, JSON Schema, the
reference page and the Helm values schema all read these marks (style guide, "Configuration"); nothing is said twice.

    cooldown: Annotated[float, SECONDS, Gt(0), Doc("How long an open breaker refuses.")] = 30.0
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["BYTES", "CEL", "REQUEST_LINE", "SECONDS", "TEMPLATE", "Doc", "Format"]


class Format(StrEnum):
    """How the text of a value is to be read.

    `SECONDS` accepts `500ms`, `2s`, `10m`, `24h`, `7d` and yields float seconds; `BYTES` accepts `64KiB`, `10MiB` and
    yields whole bytes; `CEL` is an expression; `TEMPLATE` is text with `${…}` expressions in it; `REQUEST_LINE` is
    `METHOD /path/template`.
    """

    SECONDS = "duration"
    BYTES = "size"
    CEL = "cel"
    TEMPLATE = "template"
    REQUEST_LINE = "request-line"


SECONDS, BYTES, CEL, TEMPLATE, REQUEST_LINE = (
    Format.SECONDS, Format.BYTES, Format.CEL, Format.TEMPLATE, Format.REQUEST_LINE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Doc:
    """One sentence for the reference page and the JSON Schema."""

    text: str
