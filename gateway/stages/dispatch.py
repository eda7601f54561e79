"""The call leaves: idempotency key and trace context are put on, the answer is judged by one table (`core/verdict.py`)."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, cast

from gateway.clock import Clock
from gateway.core.call import COMPENSATION, Call
from gateway.core.fault import Broken
from gateway.core.headers import Sieve
from gateway.core.manifest import KeyFormat
from gateway.core.message import BytesBody, Headers, Reply, Request
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.core.tool import Operation, ToolSpec
from gateway.core.verdict import classify
from gateway.egress import Egress, Timings
from gateway.egress.framing import never_passed
from gateway.stages.flights import Cuttable, Flights, cut_off, quarantined
from gateway.telemetry import CONTEXT_HEADERS, Telemetry, Told, outgoing

__all__ = ["Dispatch"]

# Members that every call is compared with, looked up once (docs/adr/0092).
_RAW: Final = KeyFormat.RAW


class Dispatch:
    """The end of the pipeline: one attempt at the tool."""

    def __init__(
        self,
        egress: Egress,
        clock: Clock,
        telemetry: Telemetry,
        marks: Headers = (),
        flights: Flights | None = None,
    ) -> None:
        """`marks` are put on every request, so that it can be seen to have come through here."""
        self._flights = Flights() if flights is None else flights
        self._marks = marks
        self._egress = egress
        self._clock = clock
        self._now = clock.now
        self._telemetry = telemetry
        self._dresses: dict[Operation, _Dress] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # asking for it costs a system call, until Python 3.12

    async def __call__(self, call: Call) -> Outcome:
        """Send once and return what became of it."""
        flights = self._flights
        state = flights.state
        if (state.runs or state.agents) and (quarantine := flights.severed(call)) is not None:
            return Rejected(quarantined(call, quarantine))
        dress = self._dresses.get(call.operation)
        if dress is None or dress.tool is not call.tool:
            dress = self._dress(call.tool, call.operation)
        started = self._now()
        telemetry = self._telemetry
        span = telemetry.attempt_started(call)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        flights.flying[call] = asyncio.current_task(self._loop)
        try:
            bounds, left_s = call.operation.timeouts, call.deadline - started
            timings = Timings(bounds.connect, bounds.first_byte, bounds.idle, left_s if left_s > 0.0 else 0.0)
            exchange = await self._egress.send(call.tool, self._request(call, dress), timings)
            seconds = call.exchange_s = self._now() - started
            if type(exchange) is Reply and 200 <= exchange.status < 400:
                outcome: Outcome = Success(exchange)  # what `classify` says of it, whatever the time
                if type(exchange.body) is not BytesBody and hasattr(exchange.body, "cut"):
                    flights.streams(call, cast(Cuttable, exchange.body))
            else:
                outcome = await self._judged(call, exchange)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or not flights.was_cut(call):
                telemetry.attempt_finished(span, call, error, self._now() - started)
                raise
            seconds = self._now() - started
            outcome = cut_off(call, flights.severed(call) or "lifted since")
        finally:
            del flights.flying[call]
        telemetry.attempt_ended(span, call, outcome, seconds, dress.told)
        return outcome

    async def _judged(self, call: Call, exchange: Reply | Broken) -> Outcome:
        """Return what became of a call; a reply that the outcome does not carry is closed."""
        outcome = classify(exchange, call.tool, call.operation, self._clock.at())
        if not isinstance(exchange, Reply):
            pass
        elif isinstance(outcome, Rejected) or outcome.reply is not exchange:
            await exchange.aclose()
        elif type(exchange.body) is not BytesBody and hasattr(exchange.body, "cut"):
            self._flights.streams(call, cast(Cuttable, exchange.body))
        return outcome

    def _request(self, call: Call, dress: _Dress) -> Request:
        """Return what is sent: the agent's fields, less those that may not pass or are set here."""
        request = call.request
        if call.operation.is_read and call.lane is not COMPENSATION:
            kept, put_on = dress.of_reads(request.headers), dress.on_reads
        elif dress.key is None or call.key is None:
            kept, put_on = dress.of_writes(request.headers), dress.on_writes
        else:
            key = (dress.key, _written(call.key, dress.form))
            kept, put_on = dress.of_keyed(request.headers), (*self._marks, key, *dress.coding)
        if call.traceparent is not None:
            put_on = outgoing(call) + put_on
        return Request(
            request.method,
            request.target,
            kept + put_on,
            request.body,
            request.has_side_effects,
            request.capture_answer,
            request.fresh_connection,
            call.trajectory if request.exchange is None else request.exchange,
            True,
            request.upgrade,
        )

    def _dress(self, tool: ToolSpec, operation: Operation) -> _Dress:
        if len(self._dresses) >= _DRESSES:
            self._dresses.clear()
        keys, of_reads = tool.idempotency, never_passed(tool) | CONTEXT_HEADERS
        key = None if keys is None else keys.header.encode("ascii")
        # Expressions that read the answer need it in a coding that we can undo.
        artifacts = operation.artifacts
        is_read_by_us = (
            operation.compensator is not None
            or operation.postcondition is not None
            or (artifacts is not None and artifacts.has_answer_names)
        )
        coding = ((b"Accept-Encoding", b"identity"),) if is_read_by_us else ()
        of_writes = of_reads | {name.lower() for name, _ in coding}
        of_reads = of_reads if artifacts is None else of_writes
        of_keyed = of_writes | ({key.lower()} if key else set())
        form = keys.format if keys else KeyFormat.RAW
        dress = self._dresses[operation] = _Dress(
            tool,
            Sieve(of_reads),
            Sieve(of_writes),
            Sieve(of_keyed),
            self._marks if artifacts is None else self._marks + coding,
            self._marks + coding,
            key,
            form,
            coding,
            self._telemetry.told_of(tool, operation),
        )
        return dress


class _Dress(NamedTuple):
    """How the requests of an operation are dressed: what is taken off and put on; and how its successes are counted."""

    tool: ToolSpec
    of_reads: Sieve
    of_writes: Sieve
    of_keyed: Sieve
    on_reads: Headers
    on_writes: Headers
    key: bytes | None
    form: KeyFormat
    coding: Headers
    told: Told


_DRESSES = 10_000


def _written(key: str, form: KeyFormat) -> bytes:
    """Return a key as it goes into its header: bare, or as a structured-field string (RFC 9651 section 3.3.3)."""
    if form is _RAW:
        return key.encode("ascii")
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'.encode("ascii")
