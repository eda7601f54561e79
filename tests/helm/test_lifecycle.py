"""Install, upgrade, roll back, uninstall: real Helm against an API server that refuses what Kubernetes would drop."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.kubernetes.sidecar import INJECTED
from tests.gateway.harness import serving
from tests.helm.apiserver import ApiServer
from tests.helm.tools import CHART, Helm, HelmError, tool
from tests.origin import Origin


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ApiServer]:
    """An empty cluster."""
    server = ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Release:
    """Helm and kubectl at one cluster."""

    def __init__(self, helm: Helm, cluster: ApiServer, folder: Path) -> None:
        self.helm = helm
        self.config = ApiServer.kubeconfig(folder, cluster.url)

    async def do(self, *arguments: str | Path) -> str:
        return await self.helm.run_beside(*arguments, "--kubeconfig", self.config, "-n", "gateways")

    async def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(tool("kubectl", self.helm.version)), "--kubeconfig", str(self.config), *arguments]
        return await asyncio.to_thread(
            subprocess.run, command, input=stdin, capture_output=True, text=True, env=self.helm.environment, timeout=60
        )


@pytest.fixture
def release(helm: Helm, cluster: ApiServer, tmp_path: Path) -> Release:
    return Release(helm, cluster, tmp_path)


async def test_a_release_is_installed_upgraded_rolled_back_and_gone(cluster: ApiServer, release: Release) -> None:
    """What an operator does over a year. Nothing but the claim is left."""
    install = ("install", "r", CHART, "-f", CHART / "ci" / "standalone-values.yaml")
    told = await release.do(*install)
    assert "STATUS: deployed" in told
    notes = told.split("NOTES:")[1]
    assert "PAYMENTS_BASE_URL=http://r-seawall.gateways.svc:8080/payments" in notes
    assert "kubectl -n gateways exec r-seawall-0 -- seawall trajectories ls" in notes
    assert "Agents do not prove who they are" in notes
    assert cluster.names() == {
        "configmaps/r-seawall", "configmaps/r-seawall-dashboard", "services/r-seawall", "serviceaccounts/r-seawall",
        "statefulsets/r-seawall", "networkpolicies/r-seawall", "networkpolicies/r-seawall-agents",
        "poddisruptionbudgets/r-seawall", "servicemonitors/r-seawall", "prometheusrules/r-seawall",
    }  # fmt: skip
    before = cluster.get("statefulsets", "r-seawall")["spec"]["template"]

    values = ("--reuse-values", "--set", "server.limits.in_flight=64", "--set", "podDisruptionBudget.enabled=false")
    await release.do("upgrade", "r", CHART, *values)
    after = cluster.get("statefulsets", "r-seawall")["spec"]["template"]
    assert after["metadata"]["annotations"] != before["metadata"]["annotations"]
    assert "in_flight: 64" in cluster.get("configmaps", "r-seawall")["data"]["seawall.yaml"]
    assert "poddisruptionbudgets/r-seawall" not in cluster.names()

    await release.do("rollback", "r", "1")
    assert cluster.get("statefulsets", "r-seawall")["spec"]["template"]["metadata"] == before["metadata"]
    assert "poddisruptionbudgets/r-seawall" in cluster.names()
    history = json.loads(await release.do("history", "r", "-o", "json"))
    assert [entry["revision"] for entry in history] == [1, 2, 3]

    await release.do("uninstall", "r")
    assert cluster.names() == set()


async def test_a_change_of_the_manifest_alone_does_not_restart_the_gateway(
    cluster: ApiServer, release: Release
) -> None:
    """It is taken while running; calls in flight and open runs stay."""
    minimal = ("-f", CHART / "ci" / "minimal-values.yaml")
    await release.do("install", "r", CHART, *minimal)
    before = json.dumps(cluster.get("statefulsets", "r-seawall")["spec"], sort_keys=True)
    await release.do("upgrade", "r", CHART, *minimal, "--set", "manifest.tools.mail.upstream=https://mail.example.com")
    assert "mail.example.com" in cluster.get("configmaps", "r-seawall")["data"]["manifest.yaml"]
    assert json.dumps(cluster.get("statefulsets", "r-seawall")["spec"], sort_keys=True) == before


async def test_a_refused_upgrade_changes_nothing(cluster: ApiServer, release: Release) -> None:
    """The running release stays as it is."""
    minimal = ("-f", CHART / "ci" / "minimal-values.yaml")
    await release.do("install", "r", CHART, *minimal)
    before = json.dumps(sorted(cluster.names()))
    with pytest.raises(HelmError, match="one writer"):
        await release.do("upgrade", "r", CHART, *minimal, "--set", "replicas=2")
    assert json.dumps(sorted(cluster.names())) == before


async def test_the_server_refuses_what_kubernetes_would_drop(release: Release) -> None:
    """The stand-in must be strict, else all of the above proves little."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"portz": []}}
    told = await release.kubectl("create", "--validate=false", "-f", "-", stdin=json.dumps(service))
    assert told.returncode != 0
    assert "portz" in told.stderr


async def test_the_notes_name_the_proxy_and_what_seals_the_journal(release: Release) -> None:
    """NOTES.txt tells the next step; with a ring of the Secret there is none to take."""
    told = await release.do("install", "r", CHART, "-f", CHART / "ci" / "sealed-values.yaml")
    assert "HTTP_PROXY=http://r-seawall.gateways.svc:8080" in told
    assert "NO_PROXY=127.0.0.1,localhost,r-seawall.gateways.svc" in told
    assert "seawall key make" not in told
    told = await release.do("install", "plain", CHART, "-f", CHART / "ci" / "minimal-values.yaml")
    assert "HTTP_PROXY" not in told
    assert "seawall key make --keys ring.json" in told


async def test_helm_test_asks_the_gateway_itself(cluster: ApiServer, release: Release, tmp_path: Path) -> None:
    """The hook's pod is run as it is rendered, against a real gateway behind the Service's name: it passes while the gateway
    is ready, and fails, for the operator to see, once it is gone."""
    await release.do("install", "r", CHART, "-f", CHART / "ci" / "minimal-values.yaml")
    ran: list[dict[str, Any]] = []
    address = ""

    async def kubelet(pod: dict[str, Any]) -> int:
        ran.append(pod)
        (container,) = pod["spec"]["containers"]
        arguments = [each.replace("r-seawall.gateways.svc:9091", address) for each in container["args"]]
        assert arguments != container["args"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "gateway", *arguments, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait()

    cluster.kubelet = kubelet
    async with Origin() as origin, serving(tmp_path, origin.port) as running:
        address = running.gateway.control.removeprefix("http://")
        told = await release.do("test", "r", "--timeout", "30s")
        assert "Phase:          Succeeded" in told
    with pytest.raises(HelmError):
        await release.do("test", "r", "--timeout", "30s")
    assert len(ran) == 2
    assert {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in ran} == {"test"}


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "agent",
        "namespace": "agents",
        "labels": {"seawall.dev/inject": "enabled"},
        "annotations": {"seawall.dev/claim": "journal", "seawall.dev/env": "STRIPE_API_BASE=payments"},
    },
    "spec": {"containers": [{"name": "agent", "image": "example/agent:1"}]},
}


async def test_the_installed_webhook_puts_the_sidecar_in_and_fails_closed(
    cluster: ApiServer, release: Release, tmp_path: Path
) -> None:
    """From the chart's own certificate and settings: the API server asks our process, over TLS, for a pod of kubectl's."""
    injector = ("-f", CHART / "ci" / "injector-values.yaml")
    await release.do("install", "r", CHART, *injector)
    create = ("create", "--validate=false", "-f", "-")

    down = await release.kubectl(*create, stdin=json.dumps(POD))
    assert down.returncode != 0
    assert "failed calling webhook" in down.stderr
    assert "pods/agent" not in cluster.names()

    for name, content in cluster.get("secrets", "r-seawall-injector-tls")["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    settings = cluster.get("configmaps", "r-seawall-injector")["data"]["injector.yaml"]
    (tmp_path / "injector.yaml").write_text(settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "gateway", "webhook", "--settings", str(tmp_path / "injector.yaml"),
        "--tls", str(tmp_path), "--listen", "127.0.0.1:0", stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        cluster.webhooks["gateways/r-seawall-injector"] = json.loads(await process.stdout.readline())["listen"]
        made = await release.kubectl(*create, stdin=json.dumps(POD))
        assert made.returncode == 0, made.stderr
        pod = cluster.get("pods", "agent")
        assert pod["metadata"]["labels"][INJECTED] == "true"
        (sidecar,) = pod["spec"]["initContainers"]
        assert "--secrets=/run/secrets/seawall" in sidecar["args"]
        assert {"name": "STRIPE_API_BASE", "value": "http://127.0.0.1:8080/payments"} in pod["spec"]["containers"][0][
            "env"
        ]

        unlabelled = {**POD, "metadata": {"name": "other", "namespace": "agents"}}
        assert (await release.kubectl(*create, stdin=json.dumps(unlabelled))).returncode == 0
        assert "initContainers" not in cluster.get("pods", "other")["spec"]

        lossy = {**POD, "metadata": {**POD["metadata"], "name": "lossy", "annotations": {}}}
        refused = await release.kubectl(*create, stdin=json.dumps(lossy))
        assert refused.returncode != 0
        assert "lost with the pod" in refused.stderr
    finally:
        process.terminate()
        await process.wait()

    key = cluster.get("secrets", "r-seawall-injector-tls")["data"]["tls.key"]
    await release.do("upgrade", "r", CHART, *injector, "--set", "injector.replicas=3")
    assert cluster.get("secrets", "r-seawall-injector-tls")["data"]["tls.key"] == key
