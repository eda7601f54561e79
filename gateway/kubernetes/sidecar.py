"""What a pod gets when the sidecar is put into it, and how it is taken out again. Values in, values out.

The container is the one that the chart's template `seawall.container` makes; a test compares the two. What an injection
changed is written into an annotation of the pod, so that it can be undone without the original at hand.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, Final

from gateway.kubernetes.settings import InjectSettings

__all__ = ["INJECTED", "RECORD", "Unsuitable", "inject", "is_injected", "uninject"]

Pod = dict[str, Any]
"""A Pod, or the template of one: `metadata` and `spec`."""

INJECTED: Final = "seawall.dev/injected"
"""Label of pods that have the sidecar."""
RECORD: Final = "seawall.dev/injection"
"""Annotation that says what to restore."""

_UID: Final = 65532
_DEFAULT_GRACE_S: Final = 30
_MARGIN_S: Final = 10
_CONTROL: Final = "unix:/run/seawall/control.sock"
_NO_PROXY: Final = ("NO_PROXY", "no_proxy")
_OWN: Final = "127.0.0.1,localhost"
"""Hosts that are never asked through the proxy: what listens in the pod, and the gateway under its base URLs."""
_VOLUMES: Final = ("seawall-config", "seawall-run", "seawall-secrets", "seawall-data")


class Unsuitable(Exception):
    """The sidecar cannot be put into this pod; the message says why and what to change."""


def is_injected(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has the sidecar."""
    return INJECTED in ((pod.get("metadata") or {}).get("labels") or {})


def inject(pod: Mapping[str, Any], settings: InjectSettings, claims: Collection[str] = ()) -> Pod:
    """Return the pod with the sidecar; one that has it is returned as it is.

    Args:
        pod: it, or its template.
        settings: the sidecar.
        claims: names of volumes that the pod will get from its StatefulSet.

    Raises:
        Unsuitable: it must not be done.
    """
    changed: Pod = copy.deepcopy(dict(pod))
    if is_injected(pod):
        return changed
    spec = changed.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise Unsuitable("it has no containers")
    _check(spec, settings, claims)
    record: dict[str, Any] = {
        "grace": spec.get("terminationGracePeriodSeconds"),
        "env": _add_variables(spec, settings),
        "volumes": [volume["name"] for volume in volumes(settings)],
    }
    spec["initContainers"] = [container(settings), *(spec.get("initContainers") or [])]
    spec["volumes"] = [*volumes(settings), *(spec.get("volumes") or [])]
    grace_s = _DEFAULT_GRACE_S if record["grace"] is None else record["grace"]
    spec["terminationGracePeriodSeconds"] = max(grace_s, math.ceil(settings.drain) + _MARGIN_S)
    metadata = changed["metadata"] = dict(changed.get("metadata") or {})
    metadata["labels"] = {INJECTED: "true", **(metadata.get("labels") or {})}
    metadata["annotations"] = {
        RECORD: json.dumps(record, sort_keys=True, separators=(",", ":")),
        **(metadata.get("annotations") or {}),
    }
    return changed


def uninject(pod: Mapping[str, Any]) -> Pod:
    """Return the pod without the sidecar and with what it replaced; one that has none is returned as it is."""
    changed: Pod = copy.deepcopy(dict(pod))
    if not is_injected(pod):
        return changed
    spec, metadata = changed["spec"], changed["metadata"]
    record = _record(metadata)
    _drop(spec, "initContainers", ("seawall",))
    _drop(spec, "volumes", record.get("volumes", _VOLUMES))
    for each in spec["containers"]:
        _restore_variables(each, record.get("env", {}).get(each.get("name"), {}))
    if (grace := record.get("grace")) is None:
        spec.pop("terminationGracePeriodSeconds", None)
    else:
        spec["terminationGracePeriodSeconds"] = grace
    for key, name in (("labels", INJECTED), ("annotations", RECORD)):
        metadata[key].pop(name, None)
        if not metadata[key]:
            del metadata[key]
    if not metadata:
        del changed["metadata"]
    return changed


def container(settings: InjectSettings) -> dict[str, Any]:
    """Return the gateway's container: a native sidecar, which starts before the agent and ends after it."""
    mounts = [
        {"name": "seawall-config", "mountPath": "/etc/seawall", "readOnly": True},
        {"name": "seawall-data", "mountPath": "/var/lib/seawall"},
        {"name": "seawall-run", "mountPath": "/run/seawall"},
    ]
    if settings.secret:
        mounts.append({"name": "seawall-secrets", "mountPath": "/run/secrets/seawall", "readOnly": True})
    ready = {"path": "/readyz", "port": "seawall-metrics"}
    return {
        "name": "seawall",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "args": list(_arguments(settings)),
        "env": [{"name": name, "value": value} for name, value in _environment(settings).items()],
        "ports": [{"name": "seawall-metrics", "containerPort": settings.metrics_port}],
        "startupProbe": {"httpGet": ready, "periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": {"httpGet": dict(ready), "periodSeconds": 5},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "seawall-metrics"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "resources": copy.deepcopy(dict(settings.resources)),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _UID,
            "runAsGroup": _UID,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts,
        "restartPolicy": "Always",
    }


def volumes(settings: InjectSettings) -> list[dict[str, Any]]:
    """Return the volumes that the container mounts, without one that the workload brings itself."""
    found: list[dict[str, Any]] = [
        {"name": "seawall-config", "configMap": {"name": settings.config_map}},
        {"name": "seawall-run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
    ]
    if settings.secret:
        found.append({"name": "seawall-secrets", "secret": {"secretName": settings.secret, "defaultMode": 0o444}})
    if settings.workload_volume:
        return found
    if settings.claim:
        return [*found, {"name": "seawall-data", "persistentVolumeClaim": {"claimName": settings.claim}}]
    return [*found, {"name": "seawall-data", "emptyDir": {"sizeLimit": settings.size}}]


def variables(settings: InjectSettings) -> dict[str, str]:
    """Return what the agent's environment gets."""
    base = f"http://127.0.0.1:{settings.agents_port}"
    proxy: dict[str, str] = {}
    if settings.http_proxy:
        proxy = {"HTTP_PROXY": base, "http_proxy": base, **dict.fromkeys(_NO_PROXY, _OWN)}
    return dict(
        sorted({"SEAWALL_URL": base, **proxy, **{name: f"{base}/{to}" for name, to in settings.env.items()}}.items())
    )


def _environment(settings: InjectSettings) -> dict[str, str]:
    """Return the gateway's variables: those that `kubectl exec` needs too."""
    keys = {"SEAWALL_JOURNAL_KEYS": f"/run/secrets/seawall/{settings.journal_keys}"} if settings.journal_keys else {}
    return {"SEAWALL_CONTROL": _CONTROL, **keys}


def _arguments(settings: InjectSettings) -> Iterator[str]:
    yield "serve"
    if settings.server_file:
        yield "--config=/etc/seawall/seawall.yaml"
    yield "--manifest=/etc/seawall/manifest.yaml"
    yield "--data=/var/lib/seawall/journal"
    if settings.secret:
        yield "--secrets=/run/secrets/seawall"
    yield f"--listen=127.0.0.1:{settings.agents_port}"
    yield f"--control={_CONTROL}"
    yield f"--metrics=:{settings.metrics_port}"
    yield f"--drain={math.ceil(settings.drain)}s"


def _check(spec: Mapping[str, Any], settings: InjectSettings, claims: Collection[str]) -> None:
    if spec.get("hostNetwork"):
        raise Unsuitable("it uses the node's network, where every process of the node could call as this agent")
    if not (settings.claim or settings.workload_volume or settings.accept_journal_loss):
        raise Unsuitable(
            "its journal would lie on an emptyDir and be lost with the pod, and with it the power to undo; "
            "name a claim, or accept the loss by name"
        )
    if settings.journal_keys and not settings.secret:
        raise Unsuitable("the journal's key ring is a key of the Secret, and no Secret is named")
    everyone = [*(spec.get("initContainers") or []), *spec["containers"]]
    if any(each.get("name") == "seawall" for each in everyone):
        raise Unsuitable("it has a container named seawall already")
    ours = {settings.agents_port, settings.metrics_port}
    for each in everyone:
        for port in each.get("ports") or []:
            if port.get("containerPort") in ours:
                raise Unsuitable(
                    f"container {each.get('name')} listens on {port['containerPort']}, which the gateway needs; "
                    "give the gateway other ports"
                )
    names = {volume.get("name") for volume in spec.get("volumes") or []}
    if settings.workload_volume and "seawall-data" not in {*names, *claims}:
        raise Unsuitable("it brings no volume named seawall-data")
    taken = names & {volume["name"] for volume in volumes(settings)}
    if taken:
        raise Unsuitable(f"it has a volume named {min(taken)} already")
    if unknown := set(settings.containers) - {each.get("name") for each in spec["containers"]}:
        raise Unsuitable(f"it has no container named {min(unknown)}")


def _add_variables(spec: MutableMapping[str, Any], settings: InjectSettings) -> dict[str, Any]:
    """Set the variables, each name once (a duplicate is an error to server-side apply), and return what to restore."""
    record: dict[str, Any] = {}
    wanted = variables(settings)
    for each in spec["containers"]:
        if settings.containers and each.get("name") not in settings.containers:
            continue
        given = each.get("env") or []
        replaced = [item for item in given if item.get("name") in wanted]
        names = {item["name"] for item in replaced}
        added = [name for name in wanted if name not in names]
        values = wanted | {item["name"]: _joined(item, wanted) for item in replaced if item["name"] in _NO_PROXY}
        each["env"] = [
            *({"name": name, "value": wanted[name]} for name in added),
            *(
                {"name": item["name"], "value": values[item["name"]]} if item.get("name") in wanted else item
                for item in given
            ),
        ]
        record[str(each.get("name"))] = {"added": added, "replaced": replaced}
    return record


def _joined(item: Mapping[str, Any], wanted: Mapping[str, str]) -> str:
    """Return the agent's own NO_PROXY with what the gateway needs in it."""
    if "valueFrom" in item:
        raise Unsuitable(f"its variable {item['name']} is taken from elsewhere, and loopback has to be added to it")
    own = [part.strip() for part in str(item.get("value") or "").split(",") if part.strip()]
    return ",".join(dict.fromkeys([*own, *wanted[item["name"]].split(",")]))


def _restore_variables(each: MutableMapping[str, Any], record: Mapping[str, Any]) -> None:
    before = {item["name"]: item for item in record.get("replaced", [])}
    added = set(record.get("added", []))
    kept = [before.get(item.get("name"), item) for item in each.get("env") or [] if item.get("name") not in added]
    if kept:
        each["env"] = kept
    else:
        each.pop("env", None)


def _record(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        record = json.loads((metadata.get("annotations") or {}).get(RECORD, "{}"))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _drop(spec: MutableMapping[str, Any], key: str, names: Collection[str]) -> None:
    kept = [item for item in spec.get(key) or [] if item.get("name") not in names]
    if kept:
        spec[key] = kept
    else:
        spec.pop(key, None)
