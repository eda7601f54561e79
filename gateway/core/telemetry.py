"""What an operator may choose about logs and traces. Everything of OpenTelemetry itself is set by its own `OTEL_*` names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Gt

from gateway.core.setting import SECONDS, Doc

__all__ = ["LogFormat", "TelemetrySettings"]


class LogFormat(StrEnum):
    """How log lines look."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Logs and traces."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Doc("Least severe lines to write; `debug` shows every call, attempt and refusal."),
    ] = "info"
    log_format: Annotated[LogFormat, Doc("`json`, `text`, or `auto`: text on a terminal, else JSON lines.")] = (
        LogFormat.AUTO
    )
    auto_instrument: Annotated[
        bool, Doc("Also trace with the stock aiohttp instrumentations; costs more than a whole call.")
    ] = False
    flush_timeout: Annotated[float, SECONDS, Gt(0), Doc("How long shutdown waits for spans to be exported.")] = 5.0
