"""The chart, rendered by real Helm 3 and 4: every scenario valid to every Kubernetes we name, restricted, and consistent."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import __version__
from gateway.config.server import load_server
from gateway.config.source import ManifestSource
from gateway.kubernetes.settings import DEFAULT_IMAGE, InjectSettings
from gateway.kubernetes.sidecar import container, variables, volumes
from tests.helm.objects import VERSIONS, check, named, pods_of
from tests.helm.tools import CHART, ROOT, Helm

SCENARIOS = sorted((CHART / "ci").glob("*.yaml"))
MINIMAL = {"manifest": {"tools": {"search": {"upstream": "https://search.example.com"}}}}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_is_clean_and_valid_to_every_kubernetes(helm: Helm, scenario: Path) -> None:
    """Strictly: an unknown field would be dropped in silence."""
    assert "0 chart(s) failed" in helm.run("lint", "--strict", CHART, "-f", scenario)
    objects = helm.template("-f", scenario)
    assert objects
    for version in VERSIONS:
        for each in objects:
            check(each, version)


def test_the_example_chart_is_valid_too(helm: Helm) -> None:
    """It is what people copy."""
    objects = helm.template(chart=helm.example())
    for version in VERSIONS:
        for each in objects:
            check(each, version)
    helm.run("lint", "--strict", helm.example())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_every_pod_meets_the_restricted_profile(helm: Helm, scenario: Path) -> None:
    """Pod Security Standards, restricted; and what they do not ask for: read-only roots, limits, no token."""
    for spec in pods_of(helm.template("-f", scenario)):
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            security = each["securityContext"]
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] == 65532
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert each["resources"]["limits"]["memory"]
            assert not [item for item in each.get("env", []) if "secretKeyRef" in item.get("valueFrom", {})]
        for volume in spec.get("volumes", []):
            assert "hostPath" not in volume


def test_the_sidecar_is_the_one_that_inject_makes(helm: Helm) -> None:
    """One container, whichever way it gets into a pod."""
    spec = pods_of(helm.template(chart=helm.example()))[0]
    settings = InjectSettings(
        config_map="r-seawall", secret="seawall-tools", workload_volume=True, drain=60.0, env={
            "PAYMENTS_BASE_URL": "payments", "STRIPE_API_BASE": "payments"}
    )  # fmt: skip
    (sidecar,) = spec["initContainers"]
    assert sidecar == container(settings)
    key = lambda volume: volume["name"]  # noqa: E731
    assert sorted(spec["volumes"], key=key) == sorted(volumes(settings), key=key)
    assert {item["name"]: item["value"] for item in spec["containers"][0]["env"]} == variables(settings)
    assert spec["terminationGracePeriodSeconds"] == 70


def test_an_agent_that_knows_no_base_url_gets_a_proxy(helm: Helm) -> None:
    """As `inject --http-proxy` does it; and what listens in the pod, or the gateway itself, is never asked through it."""
    spec = pods_of(helm.template("--set", "seawall.agent.httpProxy=true", chart=helm.example()))[0]
    told = {item["name"]: item["value"] for item in spec["containers"][0]["env"]}
    settings = InjectSettings(env={"PAYMENTS_BASE_URL": "payments", "STRIPE_API_BASE": "payments"}, http_proxy=True)
    assert told == variables(settings)
    assert told["HTTP_PROXY"] == told["http_proxy"] == "http://127.0.0.1:8080"
    assert told["NO_PROXY"] == told["no_proxy"] == "127.0.0.1,localhost"


def test_the_key_ring_comes_from_the_secret(helm: Helm) -> None:
    """For `serve` and for commands in the container alike, so that its place is a variable; the ring itself is a file."""
    (pod,) = [spec for spec in pods_of(helm.template("-f", CHART / "ci" / "sealed-values.yaml")) if "volumes" in spec]
    (container_,) = pod["containers"]
    variable = {"name": "SEAWALL_JOURNAL_KEYS", "value": "/run/secrets/seawall/ring.json"}
    assert variable in container_["env"]
    settings = InjectSettings(secret="seawall-tools", journal_keys="ring.json")
    assert variable in container(settings)["env"]
    (mount,) = [each for each in container_["volumeMounts"] if each["mountPath"] == "/run/secrets/seawall"]
    assert mount["readOnly"] is True


def test_the_image_is_the_one_that_the_build_makes(helm: Helm) -> None:
    """No registry serves `localhost`: until somebody names theirs, nobody else's image can come in its place."""
    (pod,) = pods_of(helm.template("--set", "tests=false", values=MINIMAL))
    assert pod["containers"][0]["image"] == DEFAULT_IMAGE == f"localhost/seawall:{__version__}"
    build = (ROOT / "docker" / "build").read_text()
    assert "base=${NAME:-localhost/seawall}" in build


def test_the_guard_goes_first_and_alone_is_not_restricted(helm: Helm) -> None:
    """Rules have to stand before anything runs; only this container ever holds NET_ADMIN."""
    spec = pods_of(helm.template("--set", "seawall.egressGuard.enabled=true", chart=helm.example()))[0]
    guard, sidecar = spec["initContainers"]
    assert guard["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert "restartPolicy" not in guard
    assert sidecar["name"] == "seawall"


TIMEOUTS: list[dict[str, Any]] = [
    {"tools": {"a": {}}},
    {"tools": {"a": {"domain": "external"}}, "include": ["seawall:policies/external.yaml"]},
    {"tools": {"a": {"domain": "d"}}, "domains": {"d": {"timeouts": {"total": "1h30m"}}}},
    {"tools": {"a": {"domain": "d"}}, "domains": {"d": {"concurrency": 3}}},
    {"tools": {"a": {"timeouts": {"total": "1.5s"}}}},
    {"tools": {"a": {"timeouts": {"total": 300}}, "b": {"timeouts": {"total": "250ms"}}}},
    {"tools": {"a": {"timeouts": {"total": "1s"}, "operations": {
        "o": {"match": "POST /x", "tier": "reversible", "timeouts": {"total": "7m"}}}}}},
]  # fmt: skip


@pytest.mark.parametrize("manifest", TIMEOUTS, ids=range(len(TIMEOUTS)))
def test_the_grace_period_is_the_longest_call_that_the_gateway_itself_reads(
    helm: Helm, manifest: dict[str, Any], tmp_path: Path
) -> None:
    """The template computes it; the gateway's own loader says whether it computed right."""
    whole = {
        **manifest,
        "tools": {name: {"upstream": "https://a.example", **tool} for name, tool in manifest["tools"].items()},
    }
    (tmp_path / "manifest.yaml").write_text(yaml.safe_dump(whole))
    catalog = ManifestSource(tmp_path / "manifest.yaml", is_offline=True).load()
    longest = max(each.timeouts.total for tool in catalog.tools.values() for each in tool.operations.values())
    spec = pods_of(helm.template(values={"manifest": whole}))[0]
    assert f"--drain={math.ceil(longest)}s" in spec["containers"][0]["args"]
    assert spec["terminationGracePeriodSeconds"] == math.ceil(longest) + 15


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_the_gateway_takes_the_files_that_the_chart_writes(helm: Helm, scenario: Path, tmp_path: Path) -> None:
    """Numbers survive Helm (which holds them as floats), and both files decode."""
    for each in helm.template("-f", scenario):
        data = each.get("data", {})
        if each["kind"] != "ConfigMap" or "manifest.yaml" not in data:
            continue
        (tmp_path / "manifest.yaml").write_text(data["manifest.yaml"])
        ManifestSource(tmp_path / "manifest.yaml", is_offline=True).load()
        if "seawall.yaml" in data:
            (tmp_path / "seawall.yaml").write_text(data["seawall.yaml"])
            settings = load_server(tmp_path / "seawall.yaml", {})
            assert settings.limits.body == 67_108_864
            assert settings.limits.in_flight == 1_000_000


def test_a_manifest_file_is_taken_as_it_is(helm: Helm, tmp_path: Path) -> None:
    """`seawall check` looked at that very text, comments and all."""
    text = (ROOT / "config" / "payments.yaml").read_text().replace("../policies", "seawall:policies")
    (tmp_path / "m.yaml").write_text(text)
    objects = helm.template("--set-file", f"manifestText={tmp_path}/m.yaml", "--set", "secrets.existingSecret=s")
    assert named(objects, "ConfigMap")["data"]["manifest.yaml"] == text


def test_policies_fence_the_standalone_gateway(helm: Helm) -> None:
    """Agents by label to the one port, scrapers to the other; out only to what is listed, never to metadata."""
    objects = helm.template("-f", CHART / "ci" / "standalone-values.yaml")
    policy = named(objects, "NetworkPolicy", "r-seawall")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    agents, scrapers = policy["ingress"]
    assert agents["from"] == [{"podSelector": {"matchLabels": {"seawall.dev/agent": "true"}}}]
    assert [port["port"] for port in agents["ports"]] == [8080]
    assert [port["port"] for port in scrapers["ports"]] == [9091]
    blocks = [peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer]
    assert blocks == [
        {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]},
        {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::/32"]},
        {"cidr": "203.0.113.0/24"},
    ]
    (confined,) = [each for each in objects if each["metadata"]["name"] == "r-seawall-agents"]
    assert confined["spec"]["policyTypes"] == ["Egress"]
    assert [port["port"] for rule in confined["spec"]["egress"] for port in rule["ports"]] == [8080, 53, 53]


@pytest.mark.parametrize(
    ("cidr", "cut"),
    [("0.0.0.0/0", True), ("128.0.0.0/1", True), ("168.0.0.0/7", True), ("169.0.0.0/8", True), ("169.254.0.0/15", True),
     ("0.0.0.0/1", False), ("170.0.0.0/8", False), ("10.0.0.0/8", False), ("169.253.0.0/16", False),
     ("192.0.2.1/32", False)],
)  # fmt: skip
def test_metadata_is_cut_out_of_every_network_that_holds_it(helm: Helm, cidr: str, cut: bool) -> None:
    """169.254.169.254 gives away the node's credentials."""
    objects = helm.template(values={**MINIMAL, "networkPolicy": {"egress": [{"cidr": cidr}]}})
    (block,) = [peer["ipBlock"] for rule in named(objects, "NetworkPolicy")["spec"]["egress"] for peer in rule["to"]
                if "ipBlock" in peer]  # fmt: skip
    assert block == {"cidr": cidr, **({"except": ["169.254.0.0/16"]} if cut else {})}


def test_tokens_take_the_place_of_the_network_policy(helm: Helm) -> None:
    """Then, and only then, the gateway is told that it may listen beyond loopback for another reason."""
    objects = helm.template("-f", CHART / "ci" / "tokens-values.yaml")
    arguments = pods_of(objects)[0]["containers"][0]["args"]
    assert "--tokens=/run/secrets/seawall/tokens.json" in arguments
    assert "--allow-unauthenticated=true" not in arguments
    assert not [each for each in objects if each["kind"] == "NetworkPolicy"]
    plain = pods_of(helm.template("-f", CHART / "ci" / "minimal-values.yaml"))[0]["containers"][0]["args"]
    assert "--allow-unauthenticated=true" in plain


def test_the_version_is_the_package_s(helm: Helm) -> None:
    """An image of another version than the chart names would be somebody else's gateway."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__
    (pod,) = pods_of(helm.template("--set", "tests=false", values=MINIMAL))
    assert pod["containers"][0]["image"].endswith(f":{__version__}")


def test_a_digest_wins_over_a_tag(helm: Helm) -> None:
    """A tag can be moved."""
    pod = pods_of(helm.template("-f", CHART / "ci" / "scheduling-values.yaml"))[0]
    assert pod["containers"][0]["image"] == "registry.example.com/seawall@sha256:" + "0" * 64
