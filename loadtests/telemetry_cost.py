"""What spans and metrics cost a call, in bytecode instructions: the gateway's own and those of the OpenTelemetry SDK.

    python -m loadtests.telemetry_cost          # exit code 1: sampling one call in ten costs more than 15 %

Compared with a gateway that tells nothing at all: neither metrics nor spans. Spans are made by the SDK's provider, sampled
by trace as `OTEL_TRACES_SAMPLER=parentbased_traceidratio` does, and handed to a processor that drops them, since what
exports them runs on a thread of its own. Trace ids are drawn in order, so that of ten calls one is sampled.
"""

from __future__ import annotations

import sys
from itertools import count as counter

import click
import uvloop
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from gateway.telemetry import Telemetry
from gateway.telemetry.roots import Roots, foreseeing
from loadtests.hotpath import standing, watched
from loadtests.opcodes import Opcodes
from loadtests.wire import WORKLOADS

__all__ = ["LIMIT", "SAMPLED", "count", "telemetry_at"]

LIMIT = 1.15
SAMPLED = 0.1
_CALLS = 80
_STRIDE = 0x1999999999999999
"""A tenth of the range that the sampler looks at: the lower 64 bits of a trace id."""


class _InOrder(Roots):
    """Ids such that exactly one trace in ten lies below a tenth of the range."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = counter(1)

    def draw(self) -> int:
        """Return the next one."""
        number = next(self._numbers)
        return number << 64 | (number % 10 * _STRIDE + _STRIDE // 2)


class _Silent(Telemetry):
    """Tells nothing of calls and attempts: what a gateway without telemetry would be."""

    call_started = attempt_started = staticmethod(lambda *told: None)  # type: ignore[assignment]
    call_finished = attempt_finished = staticmethod(lambda *told: None)  # type: ignore[assignment]


def telemetry_at(share: float | None) -> Telemetry:
    """Return a gateway's telemetry with this share of calls sampled; 0: metrics only; None: nothing at all."""
    if share is None:
        return _Silent()
    if share == 0.0:
        return Telemetry()
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share), id_generator=_InOrder(), shutdown_on_exit=False)
    return Telemetry(tracer_provider=foreseeing(provider))


async def count(workload: str, share: float | None, calls: int = _CALLS) -> float:
    """Return the instructions of a call at this share of samples, warm-up not counted."""
    opcodes = Opcodes()
    async with standing(WORKLOADS[workload], is_still=True, telemetry=telemetry_at(share)) as rig:
        await rig.call(calls)
        await watched(rig, calls, opcodes)
    return opcodes.total / calls


@click.command()
def main() -> None:
    """Count a read and a write with nothing told, with metrics, and with spans. Exit code 1: spans cost too much."""
    is_over = False
    for workload in ("read", "write"):
        nothing = uvloop.run(count(workload, None))
        click.echo(f"{workload}: {nothing:,.0f} instructions with nothing told")
        for share in (0.0, SAMPLED, 1.0):
            ratio = uvloop.run(count(workload, share)) / nothing
            is_over = is_over or (share == SAMPLED and ratio > LIMIT)
            click.echo(f"  metrics, and spans of {share:4.0%} of calls: x {ratio:.3f}")
    sys.exit(is_over)


if __name__ == "__main__":
    main()
