"""Every metric: its name, labels and meaning, and the numbers behind it.

`CATALOGUE` is the one list; the registry, `docs/metrics.md` and the tests are made from it. Labels are bounded by the
manifest and by our own enumerations: a tool that the manifest does not name is `other`, and no agent, run or operation is
ever a label. Each gateway has its own registry, so several live in one process.

On the hot path an event costs one look-up in a dictionary of ready children (`labels()` costs four times as much as the
increment itself). Gauges that somebody else knows are asked for at scrape time.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

__all__ = ["CATALOGUE", "OTHER", "DomainUse", "Metric", "Metrics", "Statistics", "metrics_page"]

disable_created_metrics()  # type: ignore[no-untyped-call]

OTHER = "other"
MAX_NAMES = 1_000  # label values that one process may learn, over all reloads
MAX_WORDS = 64  # causes and places, which our own code names

BREAKER_STATES = ("closed", "open", "half_open")
CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
ENTROPY_BITS = (0.25, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6)
CONTAINMENT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5, 10)
COMMIT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. `kind` `scraped` is a gauge, `scraped_total` a counter that is asked for at scrape time."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


CATALOGUE = (
    Metric("gateway_calls_total", "counter", ("tool", "domain", "tier", "outcome"),
           "Calls that reached the pipeline, by what became of them."),
    Metric("gateway_call_duration_seconds", "histogram", ("tool",),
           "Whole time of a call in the pipeline: queue, attempts and waits together.", CALL_SECONDS),
    Metric("gateway_attempts_total", "counter", ("tool", "fault"),
           "Attempts at a tool, by how they went wrong (none: they did not)."),
    Metric("gateway_refusals_total", "counter", ("tool", "code"), "Answers of the gateway's own, by code."),
    Metric("gateway_retries_total", "counter", ("domain", "fault"), "Repeats that were scheduled, by the fault before."),
    Metric("gateway_queue_wait_seconds", "histogram", ("domain",),
           "Time that calls waited for a slot before they got one.", CALL_SECONDS),
    Metric("gateway_breaker_state", "gauge", ("tool", "state"), "1 for the state that a tool's breaker is in, else 0."),
    Metric("gateway_breaker_transitions_total", "counter", ("tool", "to", "cause"), "Changes of a breaker's state."),
    Metric("gateway_bulkhead_in_use", "scraped", ("domain",), "Slots taken."),
    Metric("gateway_bulkhead_slots", "scraped", ("domain",), "Slots there are."),
    Metric("gateway_bulkhead_queue_length", "scraped", ("domain",), "Calls that wait for a slot."),
    Metric("gateway_steps_total", "counter", ("tier", "state"), "Steps that went to a state."),
    Metric("gateway_compensations_total", "counter", ("result",), "Compensations that ended, well or not."),
    Metric("gateway_leases_over_total", "counter", (), "Runs found with a lease that is over, before their pivot."),
    Metric("gateway_trajectories_total", "counter", ("state",), "Runs that went to a state."),
    Metric("gateway_trajectories_open", "scraped", ("state",), "Runs that are not over."),
    Metric("gateway_journal_commit_seconds", "histogram", (), "Time of one durable group commit.", COMMIT_SECONDS),
    Metric("gateway_journal_entries_total", "counter", (), "Journal entries made durable."),
    Metric("gateway_journal_queue", "scraped", (), "Journal entries that wait to be made durable."),
    Metric("gateway_journal_oldest_queued_seconds", "scraped", (), "How long the oldest of them has waited."),
    Metric("gateway_journal_healthy", "scraped", (), "1 if the journal can be expected to take entries."),
    Metric("gateway_loops_total", "counter", ("pattern", "done"),
           "Calls with which a run would have gone on in circles, by what was seen and what was done about it."),
    Metric("gateway_action_entropy", "histogram", (),
           "Entropy of the recent actions of runs: near zero where a run does one thing over and over.", ENTROPY_BITS),
    Metric("gateway_rules_total", "scraped_total", ("rule", "effect", "is_shadow"),
           "Calls that a rule decided about, or would have (in shadow), over restarts; names in brackets are not rules."),
    Metric("gateway_quarantines_total", "counter", ("trigger",), "Runs and agents that were quarantined, by what found it."),
    Metric("gateway_quarantines_in_force", "scraped", (), "Quarantines that nobody has lifted."),
    Metric("gateway_quarantine_stage_seconds", "histogram", ("stage",),
           "Time from the trigger of a quarantine until one of its four stages was done.", CONTAINMENT_SECONDS),
    Metric("gateway_severed_total", "counter", (), "Calls, streams and tunnels that a quarantine has cut."),
    Metric("gateway_artifact_edges", "scraped", (), "Reads and writes of artifacts that taint is followed along."),
    Metric("gateway_background_failures_total", "counter", ("where",), "Errors outside any call."),
    Metric("gateway_build_info", "gauge", ("version", "python"), "Always 1; the labels name the build."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainUse:
    """How full a domain is."""

    in_use: int
    slots: int
    queue_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What only others know, asked for at scrape time. None leaves a figure out."""

    domains: Mapping[str, DomainUse] = field(default_factory=dict)
    open_trajectories: Mapping[str, int] = field(default_factory=dict)
    journal_queue: int | None = None
    journal_oldest_queued_s: float | None = None
    journal_is_healthy: bool | None = None
    rules: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    quarantines_in_force: int | None = None
    artifact_edges: int | None = None


class Names(dict[str, str]):
    """Label values by name; a name that is not known reads as `other`, and at most `limit` are ever known."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        super().__init__()
        self._limit = limit

    def __missing__(self, name: str) -> str:
        return OTHER

    def learn(self, name: str) -> str:
        """Return the label value of a name that comes from ourselves, not from a caller."""
        if name not in self and len(self) < self._limit:
            self[name] = str(name)
        return self[name]


class Tally(dict[tuple[str, ...], int]):
    """Counts by label values that the metric does not know yet. Counting is an addition; each scrape hands them over.

    To be used on one thread, that of the event loop, which also scrapes.
    """

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __missing__(self, values: tuple[str, ...]) -> int:
        return 0

    def hand_over(self) -> None:
        """Add what was counted to the metric."""
        for values, count in self.items():
            self._counter.labels(*values).inc(count)
        self.clear()


class Spread:
    """A histogram whose observation is one search and one addition. For the event loop's thread, which also scrapes.

    It has one label, or none: then every value is counted under an empty one, and it is on the page from the beginning.
    """

    def __init__(self, row: Metric) -> None:
        self._row = row
        self._buckets = row.buckets
        self._seen: dict[str, list[float]] = {} if row.labels else {"": self._nothing()}

    def observe(self, label: str, value: float) -> None:
        """Count a value under the one label that there is."""
        seen = self._seen.get(label)
        if seen is None:
            seen = self._seen[label] = self._nothing()
        seen[bisect_left(self._buckets, value)] += 1
        seen[-1] += value

    def _nothing(self) -> list[float]:
        return [0.0] * (len(self._row.buckets) + 2)

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = self._family()
        bounds = [*map(floatToGoString, self._row.buckets), "+Inf"]
        for label, seen in self._seen.items():
            counts = accumulate(seen[:-1])
            labels = (label,) if self._row.labels else ()
            family.add_metric(labels, list(zip(bounds, counts, strict=True)), seen[-1])
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._row.name, self._row.help, labels=self._row.labels)


class _Reaper:
    """Stands first in the registry: before anything is read, every tally is handed over."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for tally in self.tallies:
            tally.hand_over()
        return iter(())


class Children(dict[tuple[str, ...], Any]):
    """The children of one metric by label values, made at first use."""

    def __init__(self, metric: Counter | Gauge) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, values: tuple[str, ...]) -> Any:
        child = self[values] = self._metric.labels(*values)
        return child


class Metrics:
    """The numbers of one gateway."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.tools = Names()
        self.causes = Names(limit=MAX_WORDS)
        self.places = Names(limit=MAX_WORDS)
        reaper = _Reaper()
        self.registry.register(reaper)
        self._made = {row.name: _make(row, self.registry) for row in CATALOGUE if not row.kind.startswith("scraped")}
        self.calls = Tally(self._made["gateway_calls_total"])
        self.call_seconds: Spread = self._made["gateway_call_duration_seconds"]
        self.attempts = Tally(self._made["gateway_attempts_total"])
        self.refusals = Tally(self._made["gateway_refusals_total"])
        self.retries = self._children("gateway_retries_total")
        self.queue_wait: Spread = self._made["gateway_queue_wait_seconds"]
        self.breaker_state = self._children("gateway_breaker_state")
        self.breaker_transitions = self._children("gateway_breaker_transitions_total")
        self.steps = Tally(self._made["gateway_steps_total"])
        self.compensations = self._children("gateway_compensations_total")
        self.stale_leases: Any = self._made["gateway_leases_over_total"]
        self.trajectories = self._children("gateway_trajectories_total")
        self.loops = self._children("gateway_loops_total")
        self.quarantines = self._children("gateway_quarantines_total")
        self.quarantine_stages: Spread = self._made["gateway_quarantine_stage_seconds"]
        self.severed: Any = self._made["gateway_severed_total"]
        self.entropy: Spread = self._made["gateway_action_entropy"]
        self.background_failures = self._children("gateway_background_failures_total")
        reaper.tallies += (self.calls, self.attempts, self.refusals, self.steps)
        self.journal_seconds: Spread = self._made["gateway_journal_commit_seconds"]
        self.journal_entries: Any = self._made["gateway_journal_entries_total"]
        self._children("gateway_build_info")[(version, platform.python_version())].set(1)

    def _children(self, name: str) -> Children:
        return Children(self._made[name])

    def know(self, tools: Iterable[str]) -> None:
        """Take the manifest's tools as label values; breakers of tools that are gone leave the page."""
        named = set(tools)
        for tool in {tool for tool, _ in self.breaker_state} - named:
            for state in BREAKER_STATES:
                self.breaker_state.pop((tool, state), None)
                self._made["gateway_breaker_state"].remove(tool, state)
        for tool in sorted(named):
            label = self.tools.learn(tool)
            if label != OTHER and (label, "closed") not in self.breaker_state:
                self.set_breaker(label, "closed")

    def set_breaker(self, label: str, state: str) -> None:
        """Show which of its states a breaker is in."""
        for known in BREAKER_STATES:
            self.breaker_state[(label, known)].set(known == state)

    def observe(self, statistics: Callable[[], Statistics]) -> None:
        """Ask for these figures at each scrape."""
        self.registry.register(_Scraped(statistics))

    def render(self, accept: str = "") -> bytes:
        """Return the page, as Prometheus text, or as OpenMetrics where `accept` asks for it."""
        encode, _ = choose_encoder(accept)
        return encode(self.registry)

    @staticmethod
    def content_type(accept: str = "") -> str:
        """Return the media type of what `render` returns."""
        return choose_encoder(accept)[1]


def _make(row: Metric, registry: CollectorRegistry) -> Any:
    if row.kind == "histogram":
        spread = Spread(row)
        registry.register(spread)
        return spread
    return (Counter if row.kind == "counter" else Gauge)(row.name, row.help, row.labels, registry=registry)


class _Scraped:
    def __init__(self, statistics: Callable[[], Statistics]) -> None:
        self._statistics = statistics

    def describe(self) -> Iterator[Family]:
        yield from _families().values()

    def collect(self) -> Iterator[Family]:
        now = self._statistics()
        families = _families()
        for domain, use in now.domains.items():
            families["gateway_bulkhead_in_use"].add_metric((domain,), use.in_use)
            families["gateway_bulkhead_slots"].add_metric((domain,), use.slots)
            families["gateway_bulkhead_queue_length"].add_metric((domain,), use.queue_length)
        for state, count in now.open_trajectories.items():
            families["gateway_trajectories_open"].add_metric((state,), count)
        for name, value in (
            ("gateway_journal_queue", now.journal_queue),
            ("gateway_journal_oldest_queued_seconds", now.journal_oldest_queued_s),
            ("gateway_journal_healthy", now.journal_is_healthy),
            ("gateway_quarantines_in_force", now.quarantines_in_force),
            ("gateway_artifact_edges", now.artifact_edges),
        ):
            if value is not None:
                families[name].add_metric((), float(value))
        for labels, count in now.rules.items():
            families["gateway_rules_total"].add_metric(labels, count)
        yield from (family for family in families.values() if family.samples)


Family = GaugeMetricFamily | CounterMetricFamily

_FAMILIES: Mapping[str, type[Family]] = {"scraped": GaugeMetricFamily, "scraped_total": CounterMetricFamily}


def _families() -> dict[str, Family]:
    return {
        row.name: _FAMILIES[row.kind](row.name, row.help, labels=row.labels)
        for row in CATALOGUE
        if row.kind in _FAMILIES
    }


_KINDS = {"scraped": "gauge", "scraped_total": "counter"}


def metrics_page() -> str:
    """Return `docs/metrics.md`."""
    rows = "\n".join(
        f"| `{row.name}` | {_KINDS.get(row.kind, row.kind)} "
        f"| {', '.join(f'`{label}`' for label in row.labels) or '–'} | {row.help} |"
        for row in CATALOGUE
    )
    return f"""# Metrics

Served by the control port at `/metrics`, as Prometheus text or OpenMetrics. Generated from `gateway/telemetry/metrics.py`.

Units are seconds and counts. `tool` and `domain` are names from the manifest; a tool that it does not name is `{OTHER}`.
No label ever holds an agent, a run or a payload.

| name | kind | labels | meaning |
|---|---|---|---|
{rows}
"""
