"""Everything the Helm chart may be told. `values.yaml`, its JSON Schema and the table in the chart's README are written
from these fields, so that the three agree; the manifest and the server's settings are the gateway's own.

Names are in Helm's spelling. Objects that Kubernetes defines (`resources`, `tolerations`, …) pass through untouched; the
API server checks those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le, MinLen

from gateway.core.manifest import Manifest
from gateway.core.server import ServerSettings
from gateway.core.setting import Doc
from gateway.kubernetes.settings import REPOSITORY

__all__ = ["ChartValues"]

Object = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageValues:
    """Which image."""

    repository: Annotated[
        str, MinLen(1), Doc("Registry and name; without a registry of yours, as `docker/build` makes it.")
    ] = REPOSITORY
    tag: Annotated[str, Doc("Tag; empty: the chart's appVersion. `latest` is refused.")] = ""
    digest: Annotated[str, Doc("`sha256:…`; wins over the tag.")] = ""
    pullPolicy: Annotated[Literal["IfNotPresent", "Always", "Never"], Doc("When to pull it.")] = "IfNotPresent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsValues:
    """The tools' credentials: one Secret, mounted as files, never as variables."""

    existingSecret: Annotated[str, Doc("Secret whose keys are the names in `${secret:NAME}`.")] = ""
    tokens: Annotated[
        str, Doc("Key of it that is a file of tokens (`seawall token issue`); agents must then prove who they are.")
    ] = ""
    journalKeys: Annotated[
        str, Doc("Key of it that is the journal's key ring (`seawall key make`); empty: made on the journal's volume.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceValues:
    """Where the journal lies. What is not on a volume of its own is lost with the pod, and so is the power to undo."""

    type: Annotated[
        Literal["auto", "claim", "existing", "workload", "ephemeral"],
        Doc(
            "`claim`: a PVC by the StatefulSet (standalone); `existing`: the PVC in `existingClaim`; `workload`: your "
            "workload brings a volume named `seawall-data`; `ephemeral`: an emptyDir; `auto`: `claim` where standalone, "
            "else `ephemeral`."
        ),
    ] = "auto"
    size: Annotated[str, MinLen(1), Doc("Size of the claim, or limit of the emptyDir.")] = "1Gi"
    storageClass: Annotated[str | None, Doc("Storage class; block storage, never NFS or SMB.")] = None
    accessMode: Annotated[
        Literal["ReadWriteOncePod", "ReadWriteOnce"], Doc("Of the claim; the journal has one writer.")
    ] = "ReadWriteOncePod"
    existingClaim: Annotated[str, Doc("Name of a PVC.")] = ""
    acceptJournalLoss: Annotated[
        bool, Doc("Allow `ephemeral` though the manifest has compensable or pivot operations.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsValues:
    """Ports."""

    agents: Annotated[int, Ge(1024), Le(65535), Doc("Where agents connect.")] = 8080
    metrics: Annotated[
        int, Ge(1024), Le(65535), Doc("Health and metrics alone; probes and Prometheus connect here.")
    ] = 9091


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentValues:
    """What the agent's container is told (`seawall.agentEnv`)."""

    env: Annotated[
        Mapping[str, str], Doc("Variable to `tool` or `tool/path`: `STRIPE_API_BASE: payments/v1` is its base URL.")
    ] = field(default_factory=dict)
    baseUrls: Annotated[bool, Doc("Also `<TOOL>_BASE_URL` for each tool of the manifest.")] = True
    httpProxy: Annotated[
        bool, Doc("Also HTTP_PROXY, for plain-http tools of agents that know no base URL, and the NO_PROXY it needs.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlValues:
    """The control plane: it changes runs, so nothing but the pod itself reaches it."""

    listen: Annotated[
        str, Doc("Empty: loopback (standalone), or a Unix socket that the agent does not see (sidecar).")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressGuardValues:
    """Sidecar mode: an init container with NET_ADMIN lets only the gateway's user out of the pod (nftables, by uid)."""

    enabled: Annotated[bool, Doc("The namespace must allow NET_ADMIN, which the restricted profile does not.")] = False
    image: Annotated[ImageValues, Doc("The image with `nft`: the target `guard` of docker/Containerfile.")] = (
        ImageValues(repository=f"{REPOSITORY}-guard")
    )
    allowDns: Annotated[bool, Doc("Let the agent ask DNS; a way out for data, and not needed to reach us.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceValues:
    """Standalone: the Service agents connect to."""

    type: Annotated[Literal["ClusterIP", "NodePort", "LoadBalancer"], Doc("Its type.")] = "ClusterIP"
    annotations: Annotated[Mapping[str, str], Doc("Its annotations.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressValues:
    """Addresses that the gateway may reach."""

    cidr: Annotated[str, MinLen(1), Doc("Network; link-local and metadata addresses are always cut out.")]
    ports: Annotated[tuple[int, ...], Doc("TCP ports; empty: 443.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPolicyValues:
    """Standalone: who reaches the gateway, and whom it reaches. It stands in for agents' authentication."""

    enabled: Annotated[bool, Doc("Without it a standalone gateway is refused: nobody proves who they are.")] = True
    agents: Annotated[
        tuple[Object, ...], Doc("Peers that may call; empty: pods labelled `seawall.dev/agent: true`.")
    ] = ()
    metrics: Annotated[tuple[Object, ...], Doc("Peers that may scrape; empty: namespaces named `monitoring`.")] = ()
    egress: Annotated[tuple[EgressValues, ...], Doc("Networks of the tools.")] = ()
    egressPeers: Annotated[tuple[Object, ...], Doc("Peers of tools inside the cluster, all ports.")] = ()
    dns: Annotated[tuple[Object, ...], Doc("Peers that answer DNS; empty: kube-dns in kube-system.")] = ()
    confineAgents: Annotated[
        bool, Doc("Let pods labelled `seawall.dev/agent: true` reach the gateway and DNS alone.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionValues:
    """Standalone: PodDisruptionBudget."""

    enabled: Annotated[bool, Doc("Make one.")] = False
    maxUnavailable: Annotated[int, Ge(0), Doc("0 keeps drains waiting until someone moves the pod.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountValues:
    """The pod's identity; its token is not mounted, because the gateway never calls the API server."""

    create: Annotated[bool, Doc("Make one.")] = True
    name: Annotated[str, Doc("Its name; empty: the release's.")] = ""
    annotations: Annotated[Mapping[str, str], Doc("Its annotations, as for a cloud's workload identity.")] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorValues:
    """ServiceMonitor (standalone) or PodMonitor (sidecar) of the Prometheus operator."""

    enabled: Annotated[bool, Doc("Make one.")] = False
    interval: Annotated[str, MinLen(1), Doc("How often to scrape.")] = "30s"
    labels: Annotated[Mapping[str, str], Doc("Labels that your Prometheus selects by.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesValues:
    """PrometheusRule with the alerts in `files/alerts.yaml`."""

    enabled: Annotated[bool, Doc("Make one.")] = False
    labels: Annotated[Mapping[str, str], Doc("Labels that your Prometheus selects by.")] = field(default_factory=dict)
    runbooks: Annotated[str, Doc("Where the runbooks are; an alert's name is the anchor.")] = "docs/runbooks.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardValues:
    """ConfigMap with a Grafana dashboard."""

    enabled: Annotated[bool, Doc("Make one.")] = False
    labels: Annotated[Mapping[str, str], Doc("Labels that Grafana's side-car selects by.")] = field(
        default_factory=lambda: {"grafana_dashboard": "1"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsValues:
    """What watches the gateway."""

    monitor: Annotated[MonitorValues, Doc("Scraping.")] = MonitorValues()
    rules: Annotated[RulesValues, Doc("Alerts.")] = RulesValues()
    dashboard: Annotated[DashboardValues, Doc("Dashboard.")] = field(default_factory=DashboardValues)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectorTlsValues:
    """The webhook's certificate."""

    existingSecret: Annotated[str, Doc("A kubernetes.io/tls Secret; empty: one is made and kept.")] = ""
    caBundle: Annotated[str, Doc("Base64 of the CA that signed it; needed with `existingSecret`.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectorValues:
    """The webhook that puts the sidecar into pods labelled `seawall.dev/inject: enabled`; fails closed."""

    enabled: Annotated[bool, Doc("Install it.")] = False
    replicas: Annotated[int, Ge(1), Doc("It holds no state.")] = 2
    configMap: Annotated[str, MinLen(1), Doc("ConfigMap with `manifest.yaml`, in the pod's namespace.")] = "seawall"
    secret: Annotated[str, Doc("Secret with the tools' credentials, in the pod's namespace.")] = ""
    drain: Annotated[int, Ge(1), Doc("Seconds that calls in flight have when a pod ends.")] = 120
    acceptJournalLoss: Annotated[
        bool, Doc("Admit pods that name no claim (annotation `seawall.dev/claim`); their journal dies with them.")
    ] = False
    namespaceSelector: Annotated[Object, Doc("Namespaces to look at, besides never kube-system and our own.")] = field(
        default_factory=dict
    )
    timeoutSeconds: Annotated[int, Ge(1), Le(30), Doc("How long the API server waits.")] = 5
    tls: Annotated[InjectorTlsValues, Doc("Certificate.")] = InjectorTlsValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartValues:
    """Values of the chart `seawall`."""

    mode: Annotated[
        Literal["standalone", "sidecar"],
        Doc("`standalone`: a gateway of its own; `sidecar`: templates for your own workload, and what they refer to."),
    ] = "standalone"
    nameOverride: Annotated[str, Doc("Instead of the chart's name.")] = ""
    fullnameOverride: Annotated[str, Doc("Instead of release and chart name.")] = ""
    image: Annotated[ImageValues, Doc("The gateway's image.")] = ImageValues()
    imagePullSecrets: Annotated[tuple[Object, ...], Doc("As in a pod.")] = ()
    manifest: Annotated[
        Manifest, Doc("What the tools are and what their operations do; see docs/configuration.md.")
    ] = field(default_factory=Manifest)
    manifestText: Annotated[str, Doc("The same as text: `--set-file manifestText=manifest.yaml`.")] = ""
    server: Annotated[ServerSettings, Doc("Settings of the gateway itself, except those that the chart sets.")] = field(
        default_factory=ServerSettings
    )
    secrets: Annotated[SecretsValues, Doc("Credentials.")] = SecretsValues()
    ports: Annotated[PortsValues, Doc("Ports.")] = PortsValues()
    control: Annotated[ControlValues, Doc("Control plane.")] = ControlValues()
    persistence: Annotated[PersistenceValues, Doc("The journal's volume.")] = PersistenceValues()
    agent: Annotated[AgentValues, Doc("The agent's variables.")] = field(default_factory=AgentValues)
    resources: Annotated[Object, Doc("Of the gateway's container.")] = field(
        default_factory=lambda: {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    )
    terminationGracePeriodSeconds: Annotated[
        int | None, Ge(1), Doc("Null: the longest time bound in the manifest and a margin; less than that is refused.")
    ] = None
    egressGuard: Annotated[EgressGuardValues, Doc("Keep the agent from going around us.")] = EgressGuardValues()
    replicas: Annotated[int, Ge(0), Doc("Standalone; at most 1, since an SQLite journal has one writer.")] = 1
    service: Annotated[ServiceValues, Doc("Service.")] = field(default_factory=ServiceValues)
    networkPolicy: Annotated[NetworkPolicyValues, Doc("Network policies.")] = NetworkPolicyValues()
    podDisruptionBudget: Annotated[DisruptionValues, Doc("Disruption budget.")] = DisruptionValues()
    serviceAccount: Annotated[ServiceAccountValues, Doc("Service account.")] = field(
        default_factory=ServiceAccountValues
    )
    metrics: Annotated[MetricsValues, Doc("Monitoring.")] = field(default_factory=MetricsValues)
    injector: Annotated[InjectorValues, Doc("Admission webhook.")] = field(default_factory=InjectorValues)
    podLabels: Annotated[Mapping[str, str], Doc("Further labels of our pods.")] = field(default_factory=dict)
    podAnnotations: Annotated[Mapping[str, str], Doc("Further annotations of our pods.")] = field(default_factory=dict)
    nodeSelector: Annotated[Mapping[str, str], Doc("As in a pod.")] = field(default_factory=dict)
    tolerations: Annotated[tuple[Object, ...], Doc("As in a pod.")] = ()
    affinity: Annotated[Object, Doc("As in a pod.")] = field(default_factory=dict)
    topologySpreadConstraints: Annotated[tuple[Object, ...], Doc("As in a pod.")] = ()
    priorityClassName: Annotated[str, Doc("As in a pod.")] = ""
    extraEnv: Annotated[Mapping[str, str], Doc("Further variables of the gateway; never credentials.")] = field(
        default_factory=dict
    )
    extraObjects: Annotated[tuple[Object, ...], Doc("Further objects to install.")] = ()
    tests: Annotated[bool, Doc("Add the pod that `helm test` runs.")] = True
