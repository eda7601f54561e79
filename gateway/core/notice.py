"""How an incident is told to the outside: the same facts in the three shapes that people's alerting understands.

Every notice has an event id, the run's name and the position of its record, which is the same however often it is sent, so
that who takes it twice can tell; and per run the position is a cursor. Webhooks are signed, so that nobody else can raise
an alarm: `webhook-signature` is an HMAC-SHA256 over id, time and body.

Source: the Standard Webhooks specification 1.0 (headers, signature); PagerDuty, "Events API v2" (trigger, acknowledge,
resolve with one dedup key; a summary of at most 1024 characters); Prometheus Alertmanager, "Alerts API v2".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from gateway.core.manifest import SinkKind
from gateway.core.message import Headers
from gateway.core.trajectory import Incident, Notice

__all__ = ["Told", "event_id", "sign", "tell"]

_SUMMARY: Final = 1024
_ACTIONS: Final = {"opened": "trigger", "acknowledged": "acknowledge", "resolved": "resolve"}
_FIRING: Final = timedelta(days=7)
"""Alertmanager resolves by itself what nobody repeats; an incident stays until it is resolved, but not for ever."""


@dataclass(frozen=True, slots=True)
class Told:
    """A notice on the wire."""

    headers: Headers
    body: bytes


def event_id(run: str, notice: Notice) -> str:
    """Return the name of a notice, the same each time it is sent."""
    return f"{run}~{notice.position}"


def tell(
    kind: SinkKind,
    run: str,
    incident: Incident,
    notice: Notice,
    view: Mapping[str, object],
    *,
    secret: str | None,
    source: str,
    at: int,
) -> Told:
    """Return a notice in the shape of a sink.

    Args:
        kind: the shape.
        run, incident, notice: what it is about.
        view: everything a person needs (`core/incident.py`).
        secret: signs a webhook, is PagerDuty's routing key, Alertmanager's bearer token.
        source: names this gateway.
        at: UTC milliseconds, of this attempt.
    """
    if kind is SinkKind.PAGERDUTY:
        return Told(_JSON, orjson.dumps(_pagerduty(run, incident, notice, view, secret or "", source)))
    if kind is SinkKind.ALERTMANAGER:
        bearer: Headers = () if secret is None else ((b"Authorization", b"Bearer " + secret.encode()),)
        return Told((*_JSON, *bearer), orjson.dumps([_alert(run, incident, notice, source)]))
    body = orjson.dumps(
        {
            "event_id": event_id(run, notice),
            "event": f"incident.{notice.kind}",
            "cursor": notice.position,
            "at": notice.at,
            "principal": notice.principal,
            "reason": notice.reason,
            "source": source,
            "incident": view,
        }
    )
    name, seconds = event_id(run, notice).encode("ascii"), b"%d" % (at // 1000)
    signature = b"v1," + sign(secret or "", name, seconds, body)
    return Told(
        (*_JSON, (b"webhook-id", name), (b"webhook-timestamp", seconds), (b"webhook-signature", signature)), body
    )


_JSON: Final[Headers] = ((b"Content-Type", b"application/json"),)


def sign(secret: str, name: bytes, seconds: bytes, body: bytes) -> bytes:
    """Return the base64 HMAC-SHA256 over `id.timestamp.body` that a receiver compares with what it computes itself.

    Source: Standard Webhooks 1.0, "Verifying webhook authenticity".
    """
    return base64.b64encode(hmac.digest(secret.encode(), b"%b.%b.%b" % (name, seconds, body), hashlib.sha256))


def _pagerduty(
    run: str, incident: Incident, notice: Notice, view: Mapping[str, object], key: str, source: str
) -> dict[str, object]:
    event: dict[str, object] = {
        "routing_key": key,
        "event_action": _ACTIONS[notice.kind],
        "dedup_key": incident.id,
        "client": "Seawall",
    }
    if notice.kind == "opened":
        event["payload"] = {
            "summary": f"{incident.kind}: run {run} is frozen. {incident.detail}"[:_SUMMARY],
            "source": source,
            "severity": "critical",
            "timestamp": _time(incident.at),
            "component": run,
            "class": incident.kind,
            "custom_details": {"event_id": event_id(run, notice), **view},
        }
    return event


def _alert(run: str, incident: Incident, notice: Notice, source: str) -> dict[str, object]:
    ends = _time(notice.at) if notice.kind == "resolved" else _time(incident.at + round(_FIRING.total_seconds() * 1000))
    return {
        "labels": {
            "alertname": "SeawallIncident",
            "severity": "critical",
            "class": incident.kind,
            "incident": incident.id,
            "trajectory": run,
            "gateway": source,
        },
        "annotations": {
            "summary": f"Run {run} is frozen: {incident.kind}",
            "description": incident.detail,
            "event_id": event_id(run, notice),
            "state": incident.state,
        },
        "startsAt": _time(incident.at),
        "endsAt": ends,
    }


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
