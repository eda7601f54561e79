import io
import json
import logging

import pytest

from gateway.telemetry.logs import JsonFormatter, RepeatFilter, configure_logging
from gateway.telemetry.redaction import Redactor
from gateway.telemetry.settings import LogFormat, TelemetrySettings

CANARY = "canary-8f3a"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Lines:
    """What is written to a stream while logging is configured."""

    def __init__(self, stream: io.StringIO | None = None, **settings) -> None:
        self.stream = stream or io.StringIO()
        self.redactor = Redactor()
        self.undo = configure_logging(TelemetrySettings(**settings), self.redactor, self.stream)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def json(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def lines():
    lines = Lines()
    yield lines
    lines.undo()


log = logging.getLogger("gateway.example")


def test_a_line_is_one_json_object_with_the_agreed_fields(lines):
    log.warning(
        "breaker %s", "open", extra={"tool": "payments", "trajectory": "run-1", "step": 3, "trace_id": "ab" * 16}
    )
    (line,) = lines.json
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "gateway.example",
        "event": "breaker open",
        "tool": "payments",
        "trajectory": "run-1",
        "step": 3,
        "trace_id": "ab" * 16,
    }


def test_no_line_contains_a_secret_not_even_in_an_exceptions_text(lines):
    """Design section 2, rule 10. The traceback holds what nobody thought of."""
    lines.redactor.add([CANARY])
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as error:
            raise ValueError(f"cannot send {CANARY}") from error
    except ValueError:
        log.exception(
            "failed with %s", CANARY, extra={"detail": [CANARY], CANARY: 1, "headers": {"Authorization": "other"}}
        )
    log.warning("sent %r", (b"Authorization", b"Bearer other-token"))
    assert len(lines.json) == 2
    assert CANARY not in lines.text
    assert "other" not in lines.text
    assert "ValueError" in lines.json[0]["traceback"]


def test_a_message_that_does_not_fit_its_arguments_is_written_without_them():
    """A wrong `%d` is a bug of ours that must not hide what happened."""
    wrong = logging.makeLogRecord({"name": "gateway", "msg": "cannot be filled in %d", "args": (CANARY,)})
    assert json.loads(JsonFormatter(Redactor()).format(wrong))["event"] == "cannot be filled in %d"


def test_a_line_that_cannot_be_written_is_lost_in_silence(lines, capsys):
    """The standard library prints the record to stderr instead, secrets and all."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("disk full")

    broken = Lines(Broken())
    log.warning("lost %s", CANARY)
    broken.undo()
    assert CANARY not in capsys.readouterr().err
    assert len(lines.json) == 1


@pytest.mark.parametrize("value", ["\ud800", 2**80, float("inf"), b"\xff", object])
def test_any_value_can_be_logged(lines, value):
    log.warning("odd", extra={"value": value})
    assert lines.json[0]["event"] == "odd"


def test_an_agent_cannot_forge_a_line_on_a_terminal():
    """Names of runs are the agent's text; a line break or an escape sequence in one may not reach the terminal."""
    lines = Lines(Terminal())
    log.warning("trajectory %s", "a\n12:00:00 error fake\x1b[2J", extra={"trajectory": "b\r\nc"})
    lines.undo()
    assert lines.text.count("\n") == 1
    assert "\x1b" not in lines.text
    assert r"trajectory=b\r\nc" in lines.text


def test_a_terminal_gets_text_and_a_pipe_gets_json():
    for stream, settings, is_json in (
        (Terminal(), {}, False),
        (io.StringIO(), {}, True),
        (Terminal(), {"log_format": LogFormat.JSON}, True),
        (io.StringIO(), {"log_format": LogFormat.TEXT}, False),
    ):
        lines = Lines(stream, **settings)
        log.info("hello", extra={"tool": "payments"})
        lines.undo()
        assert lines.text.startswith("{") == is_json
        assert "payments" in lines.text


def test_debug_shows_ours_but_not_every_librarys():
    lines = Lines(log_level="debug")
    log.debug("ours")
    logging.getLogger("asyncio").debug("theirs")
    logging.getLogger("asyncio").info("theirs too")
    lines.undo()
    assert [line["event"] for line in lines.json] == ["ours", "theirs too"]


def test_undoing_leaves_logging_as_it_was():
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before = root.level, ours.level, list(root.handlers)
    Lines(log_level="debug").undo()
    assert (root.level, ours.level, list(root.handlers)) == before


def record(at_s: float, message: str = "breaker %s", level: int = logging.WARNING, **extra) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "gateway", "levelno": level, "msg": message, "created": at_s, **extra})
    assert made.created == at_s
    return made


def test_identical_warnings_are_written_a_few_times_a_period_and_then_counted():
    """A tool that is down must not fill the disk with one sentence."""
    repeats = RepeatFilter(burst=2, period_s=60)
    assert [repeats.filter(record(at, tool="payments")) for at in (0, 1, 2, 3)] == [True, True, False, False]
    assert repeats.filter(record(3, tool="files"))
    later = record(61, tool="payments")
    assert repeats.filter(later)
    assert later.suppressed == 2
    assert not hasattr(record(62, tool="payments"), "suppressed")


def test_information_and_the_critical_are_never_held_back():
    repeats = RepeatFilter(burst=1)
    for level in (logging.INFO, logging.CRITICAL):
        assert all(repeats.filter(record(0, level=level)) for _ in range(10))


def test_the_memory_of_warnings_is_bounded():
    repeats = RepeatFilter(limit=10)
    for number in range(1_000):
        repeats.filter(record(0, message=f"made up {number}"))
    assert len(repeats._seen) == 10
