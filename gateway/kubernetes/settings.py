"""How the sidecar is put into a pod: what `seawall inject` and the webhook may be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from annotated_types import Ge, Gt, Le, MinLen

from gateway import __version__
from gateway.core.setting import SECONDS, Doc

__all__ = ["DEFAULT_IMAGE", "REPOSITORY", "InjectSettings"]

REPOSITORY: Final = "localhost/seawall"
"""Where the image is unless somebody says otherwise: the name that `docker/build` gives it, which no registry serves.
A release that publishes it sets this (docs/release.md); a name of somebody else's would pull somebody else's code."""

DEFAULT_IMAGE: Final = f"{REPOSITORY}:{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectSettings:
    """The sidecar as it is put into a pod."""

    image: Annotated[str, MinLen(1), Doc("The gateway's image.")] = DEFAULT_IMAGE
    pull_policy: Annotated[Literal["IfNotPresent", "Always", "Never"], Doc("When to pull it.")] = "IfNotPresent"
    config_map: Annotated[str, MinLen(1), Doc("ConfigMap with `manifest.yaml`, in the pod's namespace.")] = "seawall"
    server_file: Annotated[bool, Doc("The ConfigMap holds `seawall.yaml` too: settings of the gateway itself.")] = False
    secret: Annotated[str | None, Doc("Secret with the tools' credentials, in the pod's namespace.")] = None
    journal_keys: Annotated[str | None, Doc("Key of that Secret that is the journal's key ring.")] = None
    claim: Annotated[str | None, Doc("PVC for the journal.")] = None
    workload_volume: Annotated[bool, Doc("The pod brings a volume named `seawall-data` itself.")] = False
    accept_journal_loss: Annotated[bool, Doc("The journal may lie on an emptyDir and die with the pod.")] = False
    size: Annotated[str, MinLen(1), Doc("Limit of that emptyDir.")] = "1Gi"
    drain: Annotated[float, SECONDS, Gt(0), Doc("Time for calls in flight when the pod ends.")] = 120.0
    agents_port: Annotated[int, Ge(1024), Le(65535), Doc("Port of loopback where the agent connects.")] = 8080
    metrics_port: Annotated[int, Ge(1024), Le(65535), Doc("Port of health and metrics.")] = 9091
    env: Annotated[Mapping[str, str], Doc("Variable of the agent to `tool` or `tool/path`.")] = field(
        default_factory=dict
    )
    http_proxy: Annotated[
        bool,
        Doc("Also set HTTP_PROXY, for plain-http tools of agents that know no base URL, and the NO_PROXY it needs."),
    ] = False
    containers: Annotated[tuple[str, ...], Doc("Containers that get the variables; empty: all.")] = ()
    resources: Annotated[Mapping[str, object], Doc("Of the gateway's container.")] = field(
        default_factory=lambda: {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    )
