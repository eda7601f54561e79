"""What a pod gets, what it is refused for, and that it can be taken back from the values alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import kubernetes_validate
import pytest

from gateway.kubernetes.settings import InjectSettings
from gateway.kubernetes.sidecar import INJECTED, RECORD, Unsuitable, container, inject, uninject

SETTINGS = InjectSettings(claim="journal", env={"STRIPE_API_BASE": "payments/v1"})


def pod(**spec: Any) -> dict[str, Any]:
    """A pod as a person would write it."""
    agent = {"name": "agent", "image": "example/agent:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent"},
        "spec": {"containers": [agent], **spec},
    }


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("settings", [SETTINGS, InjectSettings(accept_journal_loss=True, secret="tools")])
def test_the_pod_is_valid_to_kubernetes(version: str, settings: InjectSettings) -> None:
    """Strictly: an unknown field would be dropped in silence, and with it what it was to protect."""
    kubernetes_validate.validate(inject(pod(), settings), version, strict=True)


def test_the_sidecar_comes_first_restarts_by_itself_and_has_no_pre_stop() -> None:
    """Other init containers may need it; a preStop would drain it while the agent still works (istio/istio#60649)."""
    spec = inject(pod(initContainers=[{"name": "migrate"}]), SETTINGS)["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["seawall", "migrate"]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert "lifecycle" not in spec["initContainers"][0]


def test_the_pod_may_take_as_long_to_end_as_a_call_may_take() -> None:
    """A call that is cut off is in doubt. A longer time that somebody chose stays."""
    assert inject(pod(), SETTINGS)["spec"]["terminationGracePeriodSeconds"] == 130
    assert inject(pod(terminationGracePeriodSeconds=600), SETTINGS)["spec"]["terminationGracePeriodSeconds"] == 600


def test_a_variable_that_is_there_is_replaced_and_never_doubled() -> None:
    """Server-side apply refuses a name that is there twice."""
    given = pod()
    given["spec"]["containers"][0]["env"] = [
        {"name": "STRIPE_API_BASE", "value": "https://api.stripe.com"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
    ]
    env = inject(given, SETTINGS)["spec"]["containers"][0]["env"]
    assert [item["name"] for item in env] == ["SEAWALL_URL", "STRIPE_API_BASE", "TOKEN"]
    assert env[1] == {"name": "STRIPE_API_BASE", "value": "http://127.0.0.1:8080/payments/v1"}


def test_an_agents_own_no_proxy_is_kept() -> None:
    """It names hosts that must not be asked through any proxy; ours are added, and taken out again."""
    settings = InjectSettings(claim="journal", http_proxy=True)
    given = pod()
    given["spec"]["containers"][0]["env"] = [{"name": "NO_PROXY", "value": "db.internal, localhost"}]
    env = {item["name"]: item["value"] for item in inject(given, settings)["spec"]["containers"][0]["env"]}
    assert env["NO_PROXY"] == "db.internal,localhost,127.0.0.1"
    assert env["no_proxy"] == "127.0.0.1,localhost"
    assert uninject(inject(given, settings)) == given


def test_only_the_named_containers_get_variables() -> None:
    """A log shipper has no business with them."""
    given = pod()
    given["spec"]["containers"].append({"name": "logs", "image": "logs"})
    containers = inject(given, InjectSettings(claim="j", containers=("agent",)))["spec"]["containers"]
    assert "env" in containers[0]
    assert "env" not in containers[1]


def test_injecting_twice_is_injecting_once_and_nothing_given_is_changed() -> None:
    """A webhook is asked again; the values belong to the caller."""
    given = pod()
    before = copy.deepcopy(given)
    once = inject(given, SETTINGS)
    assert given == before
    assert inject(once, SETTINGS) == once


@pytest.mark.parametrize(
    ("spec", "settings", "why"),
    [
        ({}, InjectSettings(), "emptyDir"),
        ({"hostNetwork": True}, SETTINGS, "node's network"),
        ({"containers": []}, SETTINGS, "no containers"),
        ({"initContainers": [{"name": "seawall"}]}, SETTINGS, "named seawall already"),
        ({"volumes": [{"name": "seawall-run", "emptyDir": {}}]}, SETTINGS, "volume named seawall-run"),
        ({}, InjectSettings(workload_volume=True), "brings no volume"),
        ({}, InjectSettings(claim="j", journal_keys="ring.json"), "no Secret is named"),
        (
            {
                "containers": [
                    {"name": "a", "env": [{"name": "NO_PROXY", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}
                ]
            },
            InjectSettings(claim="j", http_proxy=True),
            "NO_PROXY is taken from elsewhere",
        ),
        ({}, InjectSettings(claim="j", containers=("agnet",)), "no container named agnet"),
        (
            {"containers": [{"name": "agent", "ports": [{"containerPort": 8080}]}]},
            SETTINGS,
            "listens on 8080, which the gateway needs",
        ),
    ],
)
def test_a_pod_that_would_not_be_safe_is_refused(spec: dict[str, Any], settings: InjectSettings, why: str) -> None:
    """With the reason, since somebody has to change something."""
    with pytest.raises(Unsuitable, match=why):
        inject(pod(**spec), settings)


@pytest.mark.parametrize(
    "given",
    [
        pod(),
        pod(terminationGracePeriodSeconds=5, volumes=[{"name": "a", "emptyDir": {}}], initContainers=[{"name": "i"}]),
        pod(containers=[{"name": "agent", "env": [{"name": "STRIPE_API_BASE", "value": "x"}, {"name": "B"}]}]),
        {"spec": {"containers": [{"name": "agent"}]}},
        {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"containers": [{"name": "agent"}]}},
    ],
)
def test_uninject_gives_back_what_was_there(given: dict[str, Any]) -> None:
    """From the annotation alone: the original may be gone."""
    injected = json.loads(json.dumps(inject(given, SETTINGS)))
    assert uninject(injected) == given
    assert uninject(given) == given


@pytest.mark.parametrize("record", ["", "{", "[]", "{}"])
def test_uninject_survives_a_damaged_record(record: str) -> None:
    """People edit annotations. The sidecar still goes; only what it replaced cannot come back."""
    injected = inject(pod(), SETTINGS)
    injected["metadata"]["annotations"][RECORD] = record
    spec = uninject(injected)["spec"]
    assert "initContainers" not in spec
    assert "volumes" not in spec


def test_the_container_is_restricted() -> None:
    """The strictest Pod Security Standard has to admit it."""
    security = container(SETTINGS)["securityContext"]
    assert security["runAsUser"] == 65532
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert inject(pod(), SETTINGS)["metadata"]["labels"] == {INJECTED: "true"}
