"""Log lines: one JSON object each, or plain text for a person at a terminal; without secrets, and never in a flood.

The standard library's logging is the interface, so aiohttp's own lines take the same road: whatever stands in `extra=` is
a field. A line that cannot be written is lost, and nobody hears of it but the counter: logging may not hurt a call.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

import orjson
from opentelemetry import trace

from gateway.telemetry.redaction import Redactor
from gateway.telemetry.settings import LogFormat, TelemetrySettings

__all__ = ["JsonFormatter", "RepeatFilter", "TextFormatter", "configure_logging"]

MAX_TEXT_CHARS = 16_384  # of one message or traceback
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Formatter(logging.Formatter):
    """Collects what a record says, redacted."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        said = {
            name: value for name, value in vars(record).items() if name not in _STANDARD and value not in (None, "")
        }
        if "trace_id" not in said and (context := trace.get_current_span().get_span_context()).is_valid:
            said["trace_id"] = f"{context.trace_id:032x}"
        redacted = self._redactor.value(said)
        assert isinstance(redacted, dict)
        return redacted

    def _message(self, record: logging.LogRecord) -> str:
        try:
            message = record.getMessage()
        except Exception:  # a wrong number of arguments
            message = str(record.msg)
        return self._redactor.text(message)[:MAX_TEXT_CHARS]

    def _traceback(self, record: logging.LogRecord) -> str | None:
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        parts += [record.stack_info] if record.stack_info else []
        return self._redactor.text("\n".join(parts))[-MAX_TEXT_CHARS:] if parts else None


class JsonFormatter(_Formatter):
    """`{"ts": …, "level": …, "logger": …, "event": …, …fields, "traceback": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "ts": _utc(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._message(record),
            **self._fields(record),
        }
        if (traceback := self._traceback(record)) is not None:
            line["traceback"] = traceback
        try:
            return orjson.dumps(line).decode()
        except orjson.JSONEncodeError:  # lone surrogates, integers beyond 64 bits
            return json.dumps(line)


class TextFormatter(_Formatter):
    """`12:30:01.250 warning  breaker open  tool=payments cause=failure_ratio`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and the traceback's where there is one."""
        fields = " ".join(f"{name}={_plain(value)}" for name, value in self._fields(record).items())
        stamp = f"{_utc(record):%H:%M:%S}.{int(record.msecs):03d}"
        line = f"{stamp} {record.levelname.lower():8} {_plain(self._message(record))}"
        traceback = self._traceback(record)
        return line + (f"  {fields}" if fields else "") + (f"\n{traceback}" if traceback else "")


class RepeatFilter(logging.Filter):
    """Lets the same warning through a few times per period, then counts; the next one that passes says how many did not.

    The same means: logger, level, message before its arguments are filled in, tool, code, state. Remembers a bounded
    number of them. Time is the record's own.
    """

    def __init__(self, burst: int = 5, period_s: float = 60.0, limit: int = 1_024) -> None:
        super().__init__()
        self._burst, self._period_s, self._limit = burst, period_s, limit
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record."""
        if not logging.WARNING <= record.levelno < logging.CRITICAL:
            return True
        said = vars(record)
        key = (
            record.name,
            record.levelno,
            str(record.msg),
            *(str(said.get(n)) for n in ("tool", "code", "state", "where")),
        )
        since, count = self._seen.get(key, (record.created, 0))
        if record.created - since >= self._period_s:
            if count > self._burst:
                record.suppressed = count - self._burst
            since, count = record.created, 0
        self._seen[key] = (since, count + 1)
        self._seen.move_to_end(key)
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return count < self._burst


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """Lose the line. The standard one prints the record, secrets and all."""


def configure_logging(
    settings: TelemetrySettings, redactor: Redactor, stream: TextIO | None = None
) -> Callable[[], None]:
    """Write the process's log lines to `stream` (stderr); returns what undoes it."""
    stream = stream or sys.stderr
    is_text = settings.log_format is LogFormat.TEXT or (settings.log_format is LogFormat.AUTO and stream.isatty())
    handler = _Handler(stream)
    handler.setFormatter(TextFormatter(redactor) if is_text else JsonFormatter(redactor))
    handler.addFilter(RepeatFilter())
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before = root.level, ours.level
    level = settings.log_level.upper()
    root.addHandler(handler)
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level]))
    ours.setLevel(level)

    def undo() -> None:
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])

    return undo


def _utc(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    """Return a value on one line, whatever an agent has put into it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isprintable() else repr(text)[1:-1]
