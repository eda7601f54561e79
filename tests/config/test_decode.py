"""The field decides what a scalar means; all problems come at once, with places and next steps, without values."""

from __future__ import annotations

import pytest

from gateway.config.decode import decode, parse_duration, parse_size
from gateway.config.errors import ConfigError, Problems
from gateway.config.nodes import parse_yaml
from gateway.core.breaker import BreakerSettings
from gateway.core.manifest import DomainSettings, OperationSettings, RequestSettings, ToolSettings
from gateway.core.server import LimitSettings


def read(text: str, settings: type) -> object:
    problems = Problems()
    node = parse_yaml(text.encode(), "m.yaml", problems)
    decoded = decode(node, settings, problems)
    problems.raise_if_any()
    return decoded


def complaint(text: str, settings: type) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2),
        ("10m", 600),
        ("24h", 86_400),
        ("7d", 604_800),
        ("1h30m", 5400),
        ("2", 2),
        ("0.25", 0.25),
        ("1.5s", 1.5),
    ],
)
def test_times_have_units(text: str, seconds: float) -> None:
    """A bare number is seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5 s", "5sec", "s", "1e999", "nan", "-", "٣s", "true", "1_000"])
def test_what_is_no_time_is_none(text: str) -> None:
    """Never infinity, never a guess."""
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("64KiB", 65_536), ("10MiB", 10 << 20), ("1GB", 10**9), ("1.5 KiB", 1536), ("12", 12), ("7B", 7)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    """Decimal and binary ones are told apart."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "1.5", "0.3B", "KiB", "1XiB", "true"])
def test_what_is_no_size_is_none(text: str) -> None:
    """Bytes are whole."""
    assert parse_size(text) is None


def test_text_stays_as_written_in_fields_of_text() -> None:
    """Norway is a country, 1.10 a version, 20 a query value."""
    settings = read("request: GET /\nquery: {country: no, version: 1.10, limit: 020, t: 12:30:45}", RequestSettings)
    assert isinstance(settings, RequestSettings)
    assert settings.query == {"country": "no", "version": "1.10", "limit": "020", "t": "12:30:45"}


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "1", "~"])
def test_only_true_and_false_are_true_and_false(word: str) -> None:
    """YAML 1.1 reads `no` as false and YAML 1.2 as text; whoever wrote it meant one of them."""
    assert "m.yaml:1:7: `ramp`" in complaint(f"ramp: {word}", BreakerSettings)


@pytest.mark.parametrize("number", ["020", "0x20", "0o24", "12:30", "1_000", "twenty", "20.5"])
def test_numbers_are_decimal(number: str) -> None:
    """`012` is ten in YAML 1.1, `12:30` is 750."""
    assert "`window`: must be a whole number" in complaint(f"window: {number}", BreakerSettings)


def test_json_bodies_take_what_both_yamls_agree_on() -> None:
    """There is no field type to ask, so what is ambiguous is refused."""
    settings = read(
        "request: POST /\njson: {a: 1, b: 1.5, c: true, d: null, e: text, f: '012', g: 2020-01-01}", RequestSettings
    )
    assert isinstance(settings, RequestSettings)
    assert settings.json == {"a": 1, "b": 1.5, "c": True, "d": None, "e": "text", "f": "012", "g": "2020-01-01"}
    for text in ("no", "012", "12:30:45", "1_000"):
        assert "YAML 1.1 and 1.2" in complaint(f"request: POST /\njson: {{a: {text}}}", RequestSettings)
    assert "too large" in complaint("request: POST /\njson: {a: 12345678901234567890123}", RequestSettings)


def test_all_problems_come_at_once_sorted_by_place() -> None:
    """Nobody wants to fix a file one run at a time."""
    found = complaint(
        "window: 3\nfailure_ration: 0.5\ncooldown: soon\nconsecutive: 0\nfailure_ratio: 1.5\nslow_after: -1s\n",
        BreakerSettings,
    ).splitlines()
    assert found == [
        "m.yaml:1:9: `window` must be at least 20",
        "m.yaml:2:1: unknown key `failure_ration` (did you mean `failure_ratio`?)",
        "m.yaml:3:11: `cooldown`: must be a time such as `500ms`, `2s`, `10m`, `24h` or `7d`",
        "m.yaml:4:14: `consecutive` must be at least 1",
        "m.yaml:5:16: `failure_ratio` must be at most 1",
        "m.yaml:6:13: `slow_after`: must be a time such as `500ms`, `2s`, `10m`, `24h` or `7d`",
    ]


def test_a_nearly_right_word_is_offered() -> None:
    """Enumerations and literals alike."""
    assert "did you mean `refuse`?" in complaint("when_full: refuze", DomainSettings)
    assert "did you mean `pivot`?" in complaint("match: GET /\ntier: pivott", OperationSettings)


def test_what_is_missing_is_named() -> None:
    """At the place of its parent."""
    assert "m.yaml:1:1: `calls` is required" in complaint("rate: {per: 1s}", DomainSettings)
    assert "`match` is required" in complaint("operations: {x: {tier: read}}", ToolSettings)


def test_a_compensator_may_be_a_line_alone() -> None:
    """The usual case should be the short one."""
    settings = read("match: POST /a\ntier: compensable\ncompensator: DELETE /a/${response.json.id}", OperationSettings)
    assert isinstance(settings, OperationSettings)
    assert settings.compensator is not None
    assert settings.compensator.request == "DELETE /a/${response.json.id}"


def test_shapes_are_checked() -> None:
    """A list where a mapping belongs, and the other way round."""
    assert "expected a mapping" in complaint("timeouts: 5s", DomainSettings)
    assert "not a list or a mapping" in complaint("queue: [1]", DomainSettings)
    assert "expected a mapping" in complaint("operations: [a]", ToolSettings)


def test_an_empty_optional_is_absent() -> None:
    """`breaker:` with everything commented out below it."""
    settings = read("breaker:\ntimeouts:\n", DomainSettings)
    assert settings == DomainSettings()


def test_messages_hold_no_values() -> None:
    """A secret pasted into the wrong place must not end in a log."""
    secret = "sk-live-51abc"
    text = f"upstream: [{secret}]\nstrict: {secret}\nbreaker: {{window: {secret}, cooldown: {secret}}}\noperations: {secret}"
    assert secret not in complaint(text, ToolSettings)


def test_sizes_decode_to_whole_bytes() -> None:
    """Bounds hold after the unit is applied."""
    limits = read("body: 1MiB", LimitSettings)
    assert isinstance(limits, LimitSettings)
    assert limits.body == 1 << 20
    assert "more than 0" in complaint("body: 0", LimitSettings)
