"""The result as text: the same Markdown on the terminal and in `docs/performance.md`, between two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from loadtests.figures import Point, Row, Spread
from loadtests.targets import Verdict

__all__ = ["BEGIN", "END", "render", "replace_section"]

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
_NOISE_CORES = 0.1  # above this share of a core taken by others, the absolute figures are not to be trusted
_TITLES = {
    "read": "Reads",
    "write": "Writes",
    "refused": "Refusals by an open breaker",
    "tls": "Reads from a tool behind TLS",
    "large": "Reads of 64 KiB",
    "stream": "Streams of eight events",
}


def render(
    machine: Mapping[str, object],
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    *,
    base: str,
    absent: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the whole section: targets, a table for each kind of load, what was proved, and the machine.

    `absent` says of each system that was not there what it takes to install it.
    """
    parts = [_verdicts(verdicts)] if verdicts else []
    for point in dict.fromkeys(Point(row.point.workload, 0, row.point.rate) for row in rows):
        mine = [row for row in rows if (row.point.workload, row.point.rate) == (point.workload, point.rate)]
        parts.append(f"### {_title(point)}\n\n{_figures(mine, base)}")
    if absent:
        lines = [f"- {name}: {install}" for name, install in absent.items()]
        parts.append("### Not installed here, so not measured\n\n" + "\n".join(lines))
    parts += [_proof(rows), _machine(machine)]
    return "\n\n".join(parts) + "\n"


def replace_section(page: str, section: str, name: str = "bench") -> str:
    """Return the page with everything between the markers of that name replaced.

    Raises:
        ValueError: the page does not hold both markers, in this order.
    """
    begins, ends = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = page.partition(begins)
    _, end, after = rest.partition(ends)
    if not begin or not end:
        raise ValueError(f"the page must hold {begins} and, after it, {ends}")
    return f"{before}{begin}\n\n{section}\n{end}{after}"


def _title(point: Point) -> str:
    load = f"{point.rate:g} calls/s at random times" if point.rate else "each connection calls again when answered"
    return f"{_TITLES[point.workload]}: {load}"


def _figures(rows: Sequence[Row], base: str) -> str:
    has_ratio = any(row.ratio is not None for row in rows) and not rows[0].point.rate
    has_added = any(row.added_p50_us is not None for row in rows)
    header = ["connections", "system", "calls/s"]
    header += [f"x {base} (min..max)"] if has_ratio else []
    header += ["p50 ms", "p99 ms"]
    header += ["added p50", "added p99"] if has_added else []
    header += ["CPU us/call", "RSS MiB"]
    lines = []
    for row in sorted(rows, key=lambda row: row.point.connections):
        line = [str(row.point.connections), row.system + (" (invalid)" if row.problems else "")]
        line += [f"{row.calls_per_s.median:,.0f}"]
        line += [_ratio(row.ratio)] if has_ratio else []
        line += [_ms(row.p50_us), _ms(row.p99_us)]
        line += [_ms(row.added_p50_us), _ms(row.added_p99_us)] if has_added else []
        line += [f"{row.cpu_us.median:,.0f}", f"{row.rss_mib.median:.0f}"]
        lines.append(line)
    return _table(header, lines)


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    lines = [
        (
            verdict.claim,
            f"{verdict.limit:g}",
            f"{_figure(verdict.measured.median)} ({_figure(verdict.measured.low)}..{_figure(verdict.measured.high)})",
            str(verdict.connections),
            "met" if verdict.is_met else "missed",
        )
        for verdict in verdicts
    ]
    header = ("target", "limit", "measured (min..max)", "connections", "")
    return f"### Targets\n\n{_table(header, lines)}"


def _proof(rows: Sequence[Row]) -> str:
    calls = sum(row.calls for row in rows)
    problems = [
        f"- {row.system}, {_title(row.point)}, {row.point.connections} connections: {problem}"
        for row in rows
        for problem in row.problems
    ]
    noise = max((row.foreign_cores.median for row in rows), default=0.0)
    text = [f"### Proof\n\n{calls:,} calls were measured."]
    if problems:
        text.append("**Not all of them did what they should, so the rows marked invalid count for nothing:**\n")
        text += problems
    else:
        text.append(
            "Every answer was the tool's own, byte for byte (of a refusal, its code), each call reached the tool exactly"
            " once and a refused one never, and each journaled write left its intent and its outcome."
        )
    if noise > _NOISE_CORES:
        text.append(
            f"\nOther processes took up to {noise:.1f} cores meanwhile: trust the ratios, not the absolute figures."
        )
    return "\n".join(text)


def _machine(machine: Mapping[str, object]) -> str:
    return "### Machine\n\n" + "\n".join(f"- {name}: {_plain(value)}" for name, value in machine.items())


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    rule = ["-" * max(3, width) for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(len(dashes)) for cell, dashes in zip(line, rule, strict=True)) + " |"
        for line in (header, rule, *lines)
    )


def _ratio(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"


def _ms(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median / 1e3:.2f}"


def _figure(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"


def _plain(value: object) -> str:
    return ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, Mapping) else str(value)
