"""What the chart refuses, on both Helms: combinations that lose effects or let anybody in, each with a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helm.tools import Helm, HelmError

PLAIN = {"tools": {"search": {"upstream": "https://search.example.com"}}}


def undoable(tier: str) -> dict[str, Any]:
    operation = {"match": "POST /x", "tier": tier, "compensator": "DELETE /x/1"}
    return {"tools": {"pay": {"upstream": "https://pay.example.com", "operations": {"hold": operation}}}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"manifest": undoable("compensable"), "persistence": {"type": "ephemeral"}}, "pay.hold must be undone"),
    ({"manifest": undoable("pivot"), "persistence": {"type": "ephemeral"}}, "acceptJournalLoss"),
    ({"manifest": undoable("compensable"), "mode": "sidecar"}, "pay.hold must be undone"),
    ({"manifest": PLAIN, "replicas": 2}, "an SQLite journal has one writer"),
    ({"manifest": PLAIN, "control": {"listen": ":9090"}}, "can be reached from other machines"),
    ({"manifest": PLAIN, "control": {"listen": "0.0.0.0:9090"}}, "kubectl port-forward"),
    ({"manifest": PLAIN, "control": {"listen": "127.0.0.1.example.com:9090"}}, "can be reached from other machines"),
    ({"manifest": PLAIN, "networkPolicy": {"enabled": False}}, "without authentication of agents"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "169.254.169.254/32"}]}}, "serve credentials"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "169.254.0.0/16"}]}}, "serve credentials"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "fd00:ec2::254/128"}]}}, "metadata"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "fe80::1/128"}]}}, "link-local"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "f000::/4"}]}}, "narrower"),
    ({"manifest": PLAIN, "networkPolicy": {"egress": [{"cidr": "10.0.0.1"}]}}, "is no network"),
    ({"manifest": PLAIN, "image": {"tag": "latest"}}, "changes under a running release"),
    ({"manifest": PLAIN, "terminationGracePeriodSeconds": 60}, "the manifest allows a call 120 s"),
    ({"manifest": PLAIN, "persistence": {"type": "existing"}}, "needs persistence.existingClaim"),
    ({"manifest": PLAIN, "persistence": {"type": "workload"}}, "for sidecar mode"),
    ({"manifest": PLAIN, "persistence": {"type": "claim"}, "mode": "sidecar"}, "volumeClaimTemplates"),
    ({"manifest": PLAIN, "egressGuard": {"enabled": True}}, "confineAgents"),
    ({"manifest": PLAIN, "extraEnv": {"SEAWALL_SECRET_PAY": "x"}}, "a credential into the pod's description"),
    ({"manifest": PLAIN, "manifestText": "tools: {}"}, "not as both"),
    ({"manifest": PLAIN, "injector": {"tls": {"existingSecret": "s"}}}, "needs injector.tls.caBundle"),
    ({"manifest": PLAIN, "secrets": {"tokens": "tokens.json"}}, "which names no Secret"),
    ({"manifest": PLAIN, "secrets": {"journalKeys": "ring.json"}}, "journalKeys is a key of secrets.existingSecret"),
    (
        {
            "manifest": PLAIN,
            "secrets": {"existingSecret": "s", "journalKeys": "ring.json"},
            "server": {"journal": {"keys": "/elsewhere"}},
        },
        "named twice",
    ),
    ({}, "names no tool"),
    ({"manifestText": "a: ["}, "is no YAML"),
    ({"manifestText": "include: [other.yaml]\ntools: {a: {upstream: 'https://a.example'}}"}, "not in the image"),
    (
        {"manifestText": "tools: {a: {upstream: 'https://a.example', credentials: {value: '${secret:k}'}}}"},
        "secrets.existingSecret names no Secret",
    ),
]


@pytest.mark.parametrize(("values", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_an_unsafe_combination_is_refused_with_a_sentence(helm: Helm, values: dict[str, Any], why: str) -> None:
    """Before anything is installed; the sentence says what to do instead."""
    with pytest.raises(HelmError, match="seawall: ") as caught:
        helm.template(values=values)
    assert why in str(caught.value)


MISSPELT: list[tuple[dict[str, Any], str]] = [
    ({"manifest": PLAIN, "replica": 1}, "replica"),
    ({"manifest": PLAIN, "persistence": {"typ": "claim"}}, "typ"),
    ({"manifest": PLAIN, "mode": "side-car"}, "mode"),
    ({"manifest": PLAIN, "ports": {"agents": 80}}, "agents"),
    ({"manifest": {"tools": {"a": {"upstrem": "https://a.example"}}}}, "upstrem"),
    ({"manifest": {"tools": {"a": {"upstream": "https://a.example", "timeouts": {"total": "5 min"}}}}}, "total"),
    ({"manifest": PLAIN, "server": {"limits": {"bdy": 1}}}, "bdy"),
    ({"manifest": PLAIN, "server": {"listen": ":80"}}, "listen"),
    ({"manifest": PLAIN, "server": {"allow_unauthenticated": True}}, "allow_unauthenticated"),
]


@pytest.mark.parametrize(("values", "key"), MISSPELT, ids=[key for _, key in MISSPELT])
def test_a_value_that_means_nothing_is_refused_by_name(helm: Helm, values: dict[str, Any], key: str) -> None:
    """The schema is made from the gateway's own fields; Helm 3's validator is older, and must refuse as well."""
    with pytest.raises(HelmError, match="schema") as caught:
        helm.template(values=values)
    assert key in str(caught.value)


def test_ephemeral_is_possible_when_it_is_said_by_name(helm: Helm) -> None:
    """Somebody may know better."""
    accepted = {"type": "ephemeral", "acceptJournalLoss": True}
    assert helm.template(values={"manifest": undoable("compensable"), "persistence": accepted})
