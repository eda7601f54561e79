"""The call leaves: idempotency key and trace context are put on, the answer is judged by one table (`core/verdict.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from gateway.clock import Clock
from gateway.core.call import Call, Lane
from gateway.core.manifest import KeyFormat
from gateway.core.message import BytesBody, Headers, Reply, Request, without_headers
from gateway.core.outcome import Outcome, Rejected
from gateway.core.verdict import classify
from gateway.egress import Egress, Timings
from gateway.stages.flights import Cuttable, Flights, cut_off, quarantined
from gateway.telemetry import Telemetry, outgoing

__all__ = ["Dispatch"]


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
        self._telemetry = telemetry

    async def __call__(self, call: Call) -> Outcome:
        """Send once and return what became of it."""
        flights = self._flights
        state = flights.state
        if (state.runs or state.agents) and (quarantine := flights.severed(call)) is not None:
            return Rejected(quarantined(call, quarantine))
        started = self._clock.now()
        span = self._telemetry.attempt_started(call)
        flights.flying[call] = asyncio.current_task()
        try:
            exchange = await self._egress.send(call.tool, self._request(call), self._timings(call, started))
            call.exchange_s = self._clock.now() - started
            outcome = classify(exchange, call.tool, call.operation, self._clock.at())
            if isinstance(exchange, Reply) and (isinstance(outcome, Rejected) or outcome.reply is not exchange):
                await exchange.aclose()
            elif isinstance(exchange, Reply) and type(exchange.body) is not BytesBody and hasattr(exchange.body, "cut"):
                flights.streams(call, cast(Cuttable, exchange.body))
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError) or not flights.was_cut(call):
                self._telemetry.attempt_finished(span, call, error, self._clock.now() - started)
                raise
            outcome = cut_off(call, flights.severed(call) or "lifted since")
        finally:
            del flights.flying[call]
        self._telemetry.attempt_finished(span, call, outcome, self._clock.now() - started)
        return outcome

    def _timings(self, call: Call, now: float) -> Timings:
        bounds = call.operation.timeouts
        return Timings(
            connect_s=bounds.connect,
            first_byte_s=bounds.first_byte,
            idle_s=bounds.idle,
            total_s=max(0.0, call.deadline - now),
        )

    def _request(self, call: Call) -> Request:
        request = call.request
        headers = (*outgoing(call), *self._marks)
        if not call.operation.is_read or call.lane is Lane.COMPENSATION:
            headers = self._for_writes(call, headers)
        exchange = call.trajectory if request.exchange is None else request.exchange
        return replace(request, headers=headers, exchange=exchange)

    def _for_writes(self, call: Call, headers: Headers) -> Headers:
        keys, ours = call.tool.idempotency, dict[bytes, tuple[bytes, bytes]]()
        if keys is not None and call.key is not None:
            name = keys.header.encode("ascii")
            ours[name.lower()] = (name, _written(call.key, keys.format))
        if call.operation.compensator is not None or call.operation.postcondition is not None:
            # Their expressions read the answer, so it has to come in a coding that we can undo.
            ours[b"accept-encoding"] = (b"Accept-Encoding", b"identity")
        return (*without_headers(headers, ours), *ours.values()) if ours else headers


def _written(key: str, form: KeyFormat) -> bytes:
    """Return a key as it goes into its header: bare, or as a structured-field string (RFC 9651 section 3.3.3)."""
    if form is KeyFormat.RAW:
        return key.encode("ascii")
    quoted = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'.encode("ascii")
