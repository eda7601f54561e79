from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from gateway.core.codes import Code
from gateway.core.fault import Fault
from gateway.telemetry import DomainUse, Statistics, Telemetry
from gateway.telemetry.metrics import CATALOGUE, MAX_NAMES, MAX_WORDS, Spread, metrics_page
from tests.telemetry.example import answered, make_call, rejected

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def scrape(telemetry: Telemetry) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse(telemetry.render().decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return scrape(telemetry).get(name, {}).get(tuple(sorted(labels.items())))


def report_everything(telemetry: Telemetry) -> None:
    telemetry.manifest_loaded(["payments"])
    telemetry.observe(
        lambda: Statistics(
            domains={"saas": DomainUse(in_use=3, slots=16, queue_length=2)},
            open_trajectories={"preparing": 4},
            journal_queue=5,
            journal_oldest_queued_s=0.25,
            journal_is_healthy=True,
            rules={("no-delete", "deny", "false"): 3},
            quarantines_in_force=1,
            artifact_edges=12,
        )
    )
    call = make_call()
    handle = telemetry.call_started(call)
    telemetry.queue_waited(call, 0.02)
    attempt = telemetry.attempt_started(call)
    telemetry.attempt_finished(attempt, call, answered(), 0.1)
    telemetry.retry_scheduled(call, Fault.SERVER, 0.3)
    telemetry.call_finished(handle, call, answered(), 0.2)
    telemetry.call_finished(telemetry.call_started(call), call, rejected(), 0.001)
    telemetry.breaker_changed("payments", "open", "failure_ratio", 30.0)
    telemetry.refused("payments", Code.UNKNOWN_TOOL)
    telemetry.step_changed("run-1", 1, "hold", "compensated", tier="compensable")
    telemetry.trajectory_changed("run-1", "aborted_clean")
    telemetry.leases_over("run-1", ["what step 1 (hold) gave has run out 3 s ago"])
    telemetry.journal_committed(7, 0.002)
    telemetry.loop_found(call, "REPEATED_FAILURE_DETECTED", "interrupt", 0.5)
    telemetry.entropy_seen(call, 2.5)
    telemetry.quarantined("rule", 2)
    telemetry.quarantine_stage_done("sever", 0.0004)
    telemetry.background_failed("sweeper", ValueError("x"))


def test_every_metric_of_the_catalogue_appears_with_exactly_its_labels():
    """Dashboards and alerts are written against these names and labels: they are a contract."""
    telemetry = Telemetry()
    report_everything(telemetry)
    families = {family.name: family for family in parse(telemetry.render().decode())}
    assert {name for family in families.values() for name in [family.name]} == {
        row.name.removesuffix("_total") for row in CATALOGUE
    }
    for row in CATALOGUE:
        family = families[row.name.removesuffix("_total")]
        assert family.type == {"scraped": "gauge", "scraped_total": "counter"}.get(row.kind, row.kind)
        assert family.documentation == row.help
        assert {frozenset(sample.labels) - {"le"} for sample in family.samples} == {frozenset(row.labels)}, row.name


def test_names_follow_the_conventions_that_promtool_checks():
    for row in CATALOGUE:
        assert row.name.startswith("gateway_")
        assert row.name == row.name.lower()
        assert row.name.endswith("_total") == (row.kind in ("counter", "scraped_total"))
        assert not row.name.endswith(("_ms", "_milliseconds", "_count", "_sum", "_bucket"))
        if row.kind == "histogram":
            assert row.name.endswith(("_seconds", "_entropy"))
            assert list(row.buckets) == sorted(row.buckets)
        assert row.help.endswith(".")
        assert not {"agent", "trajectory", "run", "operation"} & set(row.labels)


def test_the_page_has_no_created_series():
    """promtool complains of them, and each doubles a counter."""
    telemetry = Telemetry()
    report_everything(telemetry)
    assert b"_created" not in telemetry.render()


def test_the_catalogue_page_is_fresh():
    """`docs/metrics.md` is printed from the catalogue; print it again when this fails."""
    assert PAGE.read_text() == metrics_page()


def test_a_call_is_counted_with_its_tool_domain_tier_and_outcome():
    telemetry = Telemetry()
    report_everything(telemetry)
    labels = {"tool": "payments", "domain": "saas", "tier": "compensable"}
    assert value(telemetry, "gateway_calls_total", **labels, outcome="success") == 1
    assert value(telemetry, "gateway_calls_total", **labels, outcome="rejected") == 1
    assert value(telemetry, "gateway_call_duration_seconds_count", tool="payments") == 2
    assert value(telemetry, "gateway_attempts_total", tool="payments", fault="none") == 1
    assert value(telemetry, "gateway_refusals_total", tool="payments", code="ERR_CIRCUIT_OPEN") == 1
    assert value(telemetry, "gateway_refusals_total", tool="payments", code="ERR_UNKNOWN_TOOL") == 1
    assert value(telemetry, "gateway_retries_total", domain="saas", fault="server") == 1
    assert value(telemetry, "gateway_compensations_total", result="compensated") == 1
    assert value(telemetry, "gateway_journal_entries_total") == 7


@pytest.mark.parametrize("row", [row for row in CATALOGUE if row.kind == "histogram"], ids=lambda row: row.name)
def test_a_histogram_reads_like_the_stock_one(row):
    """With a label or without, and before anything was seen."""
    label = "x" if row.labels else ""
    ours, stock = CollectorRegistry(), CollectorRegistry()
    spread = Spread(row)
    ours.register(spread)
    histogram = Histogram(row.name, row.help, row.labels, registry=stock, buckets=row.buckets)
    assert generate_latest(ours) == generate_latest(stock)
    for seconds in (0.0, row.buckets[0], 0.3, 1e6):
        spread.observe(label, seconds)
        (histogram.labels(label) if label else histogram).observe(seconds)
    assert generate_latest(ours) == generate_latest(stock)


def test_gauges_are_asked_for_at_scrape_time():
    telemetry = Telemetry()
    in_use = 1
    telemetry.observe(lambda: Statistics(domains={"saas": DomainUse(in_use=in_use, slots=16, queue_length=0)}))
    assert value(telemetry, "gateway_bulkhead_in_use", domain="saas") == 1
    in_use = 9
    assert value(telemetry, "gateway_bulkhead_in_use", domain="saas") == 9
    assert "gateway_journal_queue" not in scrape(telemetry)


def test_a_raising_statistics_callable_leaves_the_rest_of_the_page():
    """A bug in one figure must not blind the operator to all others."""
    telemetry = Telemetry()
    telemetry.observe(lambda: 1 / 0)
    assert value(telemetry, "gateway_background_failures_total", where="telemetry.statistics") is None
    assert value(telemetry, "gateway_background_failures_total", where="telemetry.statistics") == 1


def test_tools_that_the_manifest_does_not_name_are_other():
    """An agent that asks for random tools may not grow the page: one label value for all of them."""
    telemetry = Telemetry()
    telemetry.manifest_loaded(["payments"])
    for number in range(500):
        telemetry.refused(f"made-up-{number}", Code.UNKNOWN_TOOL)
    assert len(telemetry.metrics.refusals) == 1
    assert value(telemetry, "gateway_refusals_total", tool="other", code="ERR_UNKNOWN_TOOL") == 500
    assert b"made-up" not in telemetry.render()


def test_label_values_are_bounded_over_all_reloads():
    telemetry = Telemetry()
    for number in range(MAX_NAMES + 10):
        telemetry.metrics.tools.learn(f"tool-{number}")
    assert len(telemetry.metrics.tools) == MAX_NAMES
    call = make_call(tool="one-too-many")
    telemetry.call_finished(telemetry.call_started(call), call, answered(), 0.1)
    assert value(telemetry, "gateway_call_duration_seconds_count", tool="other") == 1


def test_causes_and_places_are_bounded():
    """Both are free text of our own code; one with a name in it may not grow the page."""
    telemetry = Telemetry()
    for number in range(MAX_WORDS * 3):
        telemetry.background_failed(f"place {number}", ValueError("x"))
        telemetry.breaker_changed("payments", "open", f"cause {number}", 1.0)
    assert len(telemetry.metrics.background_failures) == MAX_WORDS + 1
    assert len(telemetry.metrics.breaker_transitions) == MAX_WORDS + 1


def test_unknown_states_are_other():
    telemetry = Telemetry()
    telemetry.step_changed("run-1", 1, "hold", "made up")
    telemetry.trajectory_changed("run-1", "made up")
    assert value(telemetry, "gateway_steps_total", tier="other", state="other") == 1
    assert value(telemetry, "gateway_trajectories_total", state="other") == 1


def test_a_breaker_is_in_exactly_one_state_from_the_start():
    """An alert on `state="open"` needs the series before the first incident."""
    telemetry = Telemetry()
    telemetry.manifest_loaded(["payments"])
    states = ("closed", "open", "half_open")

    def shown() -> list[float | None]:
        return [value(telemetry, "gateway_breaker_state", tool="payments", state=state) for state in states]

    assert shown() == [1, 0, 0]
    telemetry.breaker_changed("payments", "open", "consecutive", 30.0)
    assert shown() == [0, 1, 0]
    telemetry.manifest_loaded(["payments", "files"])
    assert shown() == [0, 1, 0]


def test_the_breaker_of_a_tool_that_left_the_manifest_leaves_the_page():
    """Else its alert burns for ever."""
    telemetry = Telemetry()
    telemetry.manifest_loaded(["payments", "files"])
    telemetry.breaker_changed("files", "open", "consecutive", 30.0)
    telemetry.manifest_loaded(["payments"])
    assert {dict(labels)["tool"] for labels in scrape(telemetry)["gateway_breaker_state"]} == {"payments"}


def test_two_gateways_in_one_process_do_not_share_numbers():
    one, other = Telemetry(), Telemetry()
    one.journal_committed(3, 0.001)
    assert value(one, "gateway_journal_entries_total") == 3
    assert value(other, "gateway_journal_entries_total") == 0


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "application/openmetrics-text"])
def test_openmetrics_is_served_where_it_is_accepted(accept):
    telemetry = Telemetry()
    report_everything(telemetry)
    assert telemetry.content_type(accept).startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(telemetry.render(accept).decode())}
    assert telemetry.content_type("text/html").startswith("text/plain")
