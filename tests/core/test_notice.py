"""The three shapes in which an incident is told."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from gateway.core.manifest import SinkKind
from gateway.core.notice import Told, event_id, sign, tell
from gateway.core.trajectory import Incident, Notice

INCIDENT = Incident("r1~7", "COMPENSATION_CORRUPTED", 7, 1_700_000_000_000, "x" * 2000, 3, "gateway")
OPENED = Notice(7, "opened", 1_700_000_000_000)
RESOLVED = Notice(9, "resolved", 1_700_000_060_000, "ann", "done")


def told(kind: SinkKind, notice: Notice = OPENED, secret: str | None = "s3cret") -> Told:
    return tell(kind, "r1", INCIDENT, notice, {"id": "r1~7"}, secret=secret, source="gw", at=1_700_000_001_234)


def test_a_webhook_is_signed_as_standard_webhooks_says() -> None:
    one = told(SinkKind.WEBHOOK)
    fields = dict(one.headers)
    body = json.loads(one.body)
    assert (body["event"], body["event_id"], body["cursor"]) == ("incident.opened", "r1~7", 7)
    digest = hmac.digest(b"s3cret", b"r1~7.1700000001." + one.body, hashlib.sha256)
    assert fields[b"webhook-signature"] == b"v1," + base64.b64encode(digest)
    assert sign("other", b"r1~7", b"1700000001", one.body) != base64.b64encode(digest)
    assert b"s3cret" not in one.body


def test_an_event_has_the_same_name_however_often_it_is_sent() -> None:
    assert event_id("r1", OPENED) == event_id("r1", OPENED) == "r1~7"
    assert event_id("r1", RESOLVED) == "r1~9"


def test_pagerduty_gets_one_dedup_key_for_trigger_and_resolve_and_a_short_summary() -> None:
    trigger, resolve = json.loads(told(SinkKind.PAGERDUTY).body), json.loads(told(SinkKind.PAGERDUTY, RESOLVED).body)
    assert trigger["dedup_key"] == resolve["dedup_key"] == "r1~7"
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert len(trigger["payload"]["summary"]) == 1024
    assert trigger["payload"]["timestamp"] == "2023-11-14T22:13:20.000Z"
    assert "payload" not in resolve


def test_alertmanager_gets_an_alert_that_fires_until_it_is_resolved() -> None:
    (firing,) = json.loads(told(SinkKind.ALERTMANAGER).body)
    (resolved,) = json.loads(told(SinkKind.ALERTMANAGER, RESOLVED).body)
    assert firing["labels"] == resolved["labels"], "the labels are what the alert is known by"
    assert (firing["endsAt"], resolved["endsAt"]) == ("2023-11-21T22:13:20.000Z", "2023-11-14T22:14:20.000Z")
    assert dict(told(SinkKind.ALERTMANAGER).headers)[b"Authorization"] == b"Bearer s3cret"
    assert b"Authorization" not in dict(told(SinkKind.ALERTMANAGER, secret=None).headers)
