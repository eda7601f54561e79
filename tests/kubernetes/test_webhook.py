"""The webhook: real reviews, patches that Kubernetes would accept, refusals with reasons, and a certificate that turns."""

from __future__ import annotations

import base64
import copy
import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes_validate
import pytest
from aiohttp import web

from gateway.kubernetes.settings import InjectSettings
from gateway.kubernetes.sidecar import inject
from gateway.kubernetes.webhook import BadReview, Certificate, json_patch, review, webhook_app
from tests.kubernetes.certificates import make_certificate
from tests.kubernetes.patching import apply_patch
from tests.kubernetes.reviews import admission_review

SETTINGS = InjectSettings(accept_journal_loss=True, env={"STRIPE_API_BASE": "payments"})


def answer(body: dict[str, Any], settings: InjectSettings = SETTINGS) -> dict[str, Any]:
    told = review(body, settings)
    assert (told["kind"], told["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    assert told["response"]["uid"] == body["request"]["uid"]
    response: dict[str, Any] = told["response"]
    return response


def patched(body: dict[str, Any], settings: InjectSettings = SETTINGS) -> dict[str, Any]:
    response = answer(body, settings)
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    return apply_patch(body["request"]["object"], json.loads(base64.b64decode(response["patch"])))


def test_a_pod_of_a_replica_set_gets_the_sidecar_and_stays_valid() -> None:
    """The object that comes out is the one that `seawall inject` makes, and the API server can take it."""
    body = admission_review()
    before = copy.deepcopy(body)
    pod = patched(body)
    assert body == before
    assert pod == inject(body["request"]["object"], SETTINGS)
    pod["metadata"]["name"] = "agent-6d4cf56db6-abcde"
    kubernetes_validate.validate(pod, "1.37", strict=True)


def test_a_pod_that_has_it_is_admitted_as_it_is() -> None:
    """Templates that `seawall inject` wrote meet the webhook too."""
    response = answer(admission_review(labels={"seawall.dev/injected": "true"}))
    assert response == {"uid": response["uid"], "allowed": True}


def test_annotations_of_the_pod_choose_claim_variables_containers_and_config_map() -> None:
    """What differs from agent to agent is written at the agent."""
    body = admission_review(
        {
            "seawall.dev/claim": "journal",
            "seawall.dev/env": "PAY=payments/v1, MAIL=mail",
            "seawall.dev/containers": "agent",
            "seawall.dev/config-map": "tools",
        }
    )
    spec = patched(body, InjectSettings())["spec"]
    assert {"name": "seawall-data", "persistentVolumeClaim": {"claimName": "journal"}} in spec["volumes"]
    assert {"name": "seawall-config", "configMap": {"name": "tools"}} in spec["volumes"]
    assert {"name": "PAY", "value": "http://127.0.0.1:8080/payments/v1"} in spec["containers"][0]["env"]


def test_a_stateful_pod_keeps_its_journal_on_its_own_claim() -> None:
    """By now the StatefulSet's controller has put the volume in."""
    data = {"name": "seawall-data", "persistentVolumeClaim": {"claimName": "seawall-data-agent-0"}}
    spec = patched(admission_review(volumes=[data]), InjectSettings())["spec"]
    assert [volume for volume in spec["volumes"] if volume["name"] == "seawall-data"] == [data]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (admission_review(), "name a claim, or accept the loss by name"),
        (admission_review({"seawall.dev/claim": "j", "seawall.dev/env": "PAY"}), "must be NAME=tool"),
        (admission_review({"seawall.dev/claim": "j"}, hostNetwork=True), "node's network"),
        (admission_review({"seawall.dev/claim": "j", "seawall.dev/containers": "x"}), "no container named x"),
    ],
)
def test_a_pod_that_cannot_be_guarded_is_not_admitted(body: dict[str, Any], why: str) -> None:
    """Fail closed: it asked for the sidecar, so that it must not run without it. kubectl shows the reason."""
    response = answer(body, InjectSettings())
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert why in response["status"]["message"]
    assert "patch" not in response


@pytest.mark.parametrize(("operation", "kind"), [("UPDATE", "Pod"), ("CREATE", "Deployment")])
def test_what_it_was_not_asked_about_passes(operation: str, kind: str) -> None:
    """A wider rule in somebody's configuration must not break the cluster."""
    body = admission_review()
    body["request"]["operation"], body["request"]["kind"]["kind"] = operation, kind
    assert answer(body) == {"uid": body["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}},
     {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"},
     {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": ""}}],
)  # fmt: skip
def test_what_is_no_review_is_refused(body: object) -> None:
    """An answer without the uid would be worthless to the API server."""
    with pytest.raises(BadReview):
        review(body, SETTINGS)


def test_a_patch_escapes_keys_and_removes_what_is_gone() -> None:
    """RFC 6901: a slash in a label would point elsewhere."""
    old = {"a/b": {"c~d": 1}, "gone": 1, "list": [1]}
    new = {"a/b": {"c~d": 2, "e": []}, "list": [1, 2]}
    patch = json_patch(old, new)
    assert {"op": "replace", "path": "/a~1b/c~0d", "value": 2} in patch
    assert apply_patch(old, patch) == new
    assert json_patch(new, new) == []


async def test_over_tls_with_a_certificate_that_is_replaced_while_it_runs(tmp_path: Path) -> None:
    """Certificates are rotated under running webhooks; a bad one leaves the earlier one in force."""
    first = make_certificate(tmp_path / "tls")
    first_ca = first.read_text()
    certificate = Certificate(tmp_path / "tls")
    runner = web.AppRunner(webhook_app(SETTINGS), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context).start()
    url = f"https://localhost:{runner.addresses[0][1]}"

    async def ask(ca: str, path: str = "/inject", body: object = None, method: str = "POST") -> tuple[int, Any]:
        trust = ssl.create_default_context(cadata=ca)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url + path, json=body, ssl=trust) as response,
        ):
            return response.status, await response.json()

    try:
        status, told = await ask(first_ca, body=admission_review())
        assert (status, told["response"]["allowed"]) == (200, True)
        assert await ask(first_ca, "/healthz", method="GET") == (200, {"status": "alive"})
        assert (await ask(first_ca, body=["no review"]))[0] == 400
        assert (await ask(first_ca, body={"nested": [[[]]]}))[0] == 400

        second_ca = make_certificate(tmp_path / "tls").read_text()
        assert certificate.reload() is True
        assert certificate.reload() is False
        assert (await ask(second_ca, body=admission_review()))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(first_ca, body=admission_review())

        (tmp_path / "tls" / "tls.crt").write_text("no certificate")
        with pytest.raises(ssl.SSLError):
            certificate.reload()
        assert (await ask(second_ca, body=admission_review()))[0] == 200
    finally:
        await runner.cleanup()


async def test_the_watch_outlives_a_bad_certificate(tmp_path: Path) -> None:
    """One bad rotation must not end all later ones."""
    make_certificate(tmp_path)
    certificate = Certificate(tmp_path)
    good = (tmp_path / "tls.crt").read_text(), (tmp_path / "tls.key").read_text()
    rounds = iter([("no certificate", good[1]), good])

    class Enough(Exception):
        pass

    async def look_again() -> None:
        now = next(rounds, None)
        if now is None:
            raise Enough
        (tmp_path / "tls.crt").write_text(now[0])
        (tmp_path / "tls.key").write_text(now[1])

    with pytest.raises(Enough):
        await certificate.keep_fresh(look_again)
    assert certificate.reload() is False
