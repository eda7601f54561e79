"""Enough of a Kubernetes API server for real Helm and kubectl: discovery, objects, patches, strict validation, admission.

Objects are checked against Kubernetes' own schemas, so that a field which a real server would drop is refused here. A
pod that a mutating webhook selects is sent to it over TLS, trusted by the configuration's `caBundle` alone, and a webhook
that cannot be reached refuses the pod if its policy says so. There is no controller, and no kubelet but the one that a test
brings.

Helm sends its release Secrets as protobuf; of that only what Secrets use is read.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import json
import ssl
import uuid
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes_validate
import yaml
from aiohttp import web

from tests.helm.objects import check
from tests.kubernetes.patching import apply_patch

__all__ = ["ApiServer"]

_ALL = ["create", "delete", "get", "list", "patch", "update", "watch"]
_KINDS: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "configmaps": ("ConfigMap", True), "namespaces": ("Namespace", False), "pods": ("Pod", True),
        "persistentvolumeclaims": ("PersistentVolumeClaim", True), "secrets": ("Secret", True),
        "serviceaccounts": ("ServiceAccount", True), "services": ("Service", True),
    },
    "apps/v1": {"deployments": ("Deployment", True), "statefulsets": ("StatefulSet", True)},
    "policy/v1": {"poddisruptionbudgets": ("PodDisruptionBudget", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
    "admissionregistration.k8s.io/v1": {"mutatingwebhookconfigurations": ("MutatingWebhookConfiguration", False)},
    "monitoring.coreos.com/v1": {
        "servicemonitors": ("ServiceMonitor", True), "podmonitors": ("PodMonitor", True),
        "prometheusrules": ("PrometheusRule", True),
    },
}  # fmt: skip
_LIST_KEYS = ("name", "containerPort", "port", "mountPath", "key")
"""What strategic merge tells items of a list apart by."""

Object = dict[str, Any]
Kubelet = Callable[[Object], Awaitable[int]]
Key = tuple[str, str, str, str]


class ApiServer:
    """One cluster that holds objects and runs nothing.

    Attributes:
        objects: by resource, group and version, namespace and name.
        webhooks: where the Service of a webhook is reached, by `namespace/name`.
        kubelet: runs a pod and returns its exit code; without one pods stay pending.
        url: where it listens, once started.
    """

    def __init__(self, version: str = "1.37") -> None:
        self.objects: dict[Key, Object] = {}
        self.webhooks: dict[str, str] = {}
        self.kubelet: Kubelet | None = None
        self.url = ""
        self._is_stopped = False
        self._changed = asyncio.Event()
        self._pods: set[asyncio.Task[None]] = set()
        self._version = version
        self._counter = itertools.count(1)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on loopback."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """End."""
        self._is_stopped = True
        self._tell()
        for task in self._pods:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    @staticmethod
    def kubeconfig(folder: Path, url: str) -> Path:
        """Write a kubeconfig for the server."""
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        return path

    def get(self, resource: str, name: str) -> Object:
        """Return the one object of a name."""
        (found,) = [each for key, each in self.objects.items() if key[1] == resource and key[3] == name]
        return found

    def names(self) -> set[str]:
        """Return every object as `resource/name`, Helm's own Secrets left out."""
        return {f"{key[1]}/{key[3]}" for key in self.objects if not key[3].startswith("sh.helm.release")}

    # --- HTTP

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = [part for part in request.path.split("/") if part]
        if (told := self._discovery(path)) is not None:
            return web.json_response(told)
        group = path[1] if path[0] == "api" else "/".join(path[1:3])
        rest = path[2:] if path[0] == "api" else path[3:]
        if group not in _KINDS:
            return _status(404, "NotFound", request.path)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name = rest[0], rest[1] if len(rest) > 1 else ""
        if resource not in _KINDS[group]:
            return _status(404, "NotFound", request.path)
        return await self._act(request, (group, resource, namespace, name))

    async def _act(self, request: web.Request, key: Key) -> web.StreamResponse:
        if request.method == "GET":
            if request.query.get("watch") in ("1", "true"):
                return await self._watch(request, key)
            return self._read(request, key)
        if request.method == "DELETE":
            gone = self.objects.pop(key, None)
            self._tell()
            return web.json_response(gone) if gone else _status(404, "NotFound", key[3])
        raw = await request.read()
        body = _secret(raw) if "protobuf" in request.content_type else yaml.safe_load(raw)
        if request.method == "POST":
            key = (*key[:3], body["metadata"].get("name") or f"{body['metadata']['generateName']}{next(self._counter)}")
            if key in self.objects:
                return _status(409, "AlreadyExists", f"{key[1]} {key[3]} already exists")
        elif request.method == "PATCH":
            if key not in self.objects and "apply-patch" not in request.content_type:
                return _status(404, "NotFound", key[3])
            body = _patched(self.objects.get(key, {}), body, request.content_type)
        return await self._store(key, body, is_new=key not in self.objects)

    async def _store(self, key: Key, body: Object, *, is_new: bool) -> web.Response:
        group, resource, namespace, name = key
        body.update(apiVersion=group, kind=_KINDS[group][resource][0])
        metadata = body["metadata"]
        metadata["name"] = name
        if namespace:
            metadata.setdefault("namespace", namespace)
        try:
            if is_new and resource == "pods":
                body = await self._admit(body)
            check(json.loads(json.dumps(body)), self._version)
        except _Denied as reason:
            return _status(400, "BadRequest", str(reason))
        except (kubernetes_validate.ValidationError, ValueError) as error:
            return _status(422, "Invalid", str(error).splitlines()[0])
        metadata = body["metadata"]
        metadata["resourceVersion"] = str(next(self._counter))
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.objects[key] = body
        self._tell()
        if is_new and resource == "pods" and self.kubelet is not None:
            self._pods.add(asyncio.create_task(self._run(key, self.kubelet)))
        return web.json_response(body, status=201 if is_new else 200)

    def _read(self, request: web.Request, key: Key) -> web.Response:
        group, resource, _, name = key
        if name:
            found = self.objects.get(key)
            return web.json_response(found) if found else _status(404, "NotFound", f'{resource} "{name}" not found')
        kind = _KINDS[group][resource][0]
        items = list(self._chosen(request, key).values())
        return web.json_response(
            {"kind": f"{kind}List", "apiVersion": group, "metadata": {"resourceVersion": "1"}, "items": items}
        )

    def _chosen(self, request: web.Request, key: Key) -> dict[Key, Object]:
        group, resource, namespace, _ = key
        labels = _selector(request.query.get("labelSelector", ""))
        name = _selector(request.query.get("fieldSelector", "")).get("metadata.name")
        return {
            its: each
            for its, each in self.objects.items()
            if its[:2] == (group, resource)
            and namespace in ("", its[2])
            and name in (None, its[3])
            and labels.items() <= each["metadata"].get("labels", {}).items()
        }

    async def _watch(self, request: web.Request, key: Key) -> web.StreamResponse:
        """Tell every change since the watch began, as one JSON line each, until the client leaves."""
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        seen: dict[Key, Object] = {}
        wants_bookmark = request.query.get("sendInitialEvents") == "true"
        while not self._is_stopped and request.transport is not None:
            changed, now = self._changed, self._chosen(request, key)
            events = [("DELETED", seen[its]) for its in seen.keys() - now.keys()]
            events += [
                ("MODIFIED" if its in seen else "ADDED", each) for its, each in now.items() if seen.get(its) != each
            ]
            if wants_bookmark:  # what client-go 1.35 and newer waits for instead of listing first
                events.append(("BOOKMARK", self._bookmark(key)))
                wants_bookmark = False
            seen = {its: copy.deepcopy(each) for its, each in now.items()}
            try:
                for kind, each in events:
                    await stream.write(json.dumps({"type": kind, "object": each}).encode() + b"\n")
            except ConnectionResetError:
                break
            await changed.wait()
        return stream

    def _bookmark(self, key: Key) -> Object:
        metadata = {
            "resourceVersion": str(next(self._counter)),
            "annotations": {"k8s.io/initial-events-end": "true"},
            "creationTimestamp": None,
        }
        return {"apiVersion": key[0], "kind": _KINDS[key[0]][key[1]][0], "metadata": metadata}

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, key: Key, kubelet: Kubelet) -> None:
        code = await kubelet(self.objects[key])
        if key in self.objects:
            self.objects[key]["status"] = {"phase": "Failed" if code else "Succeeded"}
            self._tell()

    def _discovery(self, path: list[str]) -> Object | None:
        if path == ["version"]:
            major, minor = self._version.split(".")
            return {"major": major, "minor": minor, "gitVersion": f"v{self._version}.0"}
        if path == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == ["apis"]:
            groups = [
                {
                    "name": each.split("/")[0],
                    "versions": [{"groupVersion": each, "version": "v1"}],
                    "preferredVersion": {"groupVersion": each, "version": "v1"},
                }
                for each in _KINDS
                if "/" in each
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path[:2] == ["openapi", "v3"]:
            return _openapi("/".join(path[2:]))
        group = "/".join(path[1:])
        if group not in _KINDS:
            return None
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": is_namespaced, "kind": kind, "verbs": _ALL}
            for name, (kind, is_namespaced) in _KINDS[group].items()
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}

    # --- admission

    async def _admit(self, pod: Object) -> Object:
        for key, configuration in list(self.objects.items()):
            if key[1] != "mutatingwebhookconfigurations":
                continue
            for webhook in configuration["webhooks"]:
                if self._selects(webhook, pod):
                    pod = await self._ask(webhook, pod)
        return pod

    def _selects(self, webhook: Object, pod: Object) -> bool:
        labels = pod["metadata"].get("labels", {})
        wanted = webhook.get("objectSelector", {}).get("matchLabels", {})
        namespace = pod["metadata"]["namespace"]
        excluded = [
            value
            for expression in webhook.get("namespaceSelector", {}).get("matchExpressions", [])
            if expression["operator"] == "NotIn"
            for value in expression["values"]
        ]
        return wanted.items() <= labels.items() and namespace not in excluded

    async def _ask(self, webhook: Object, pod: Object) -> Object:
        service = webhook["clientConfig"]["service"]
        host = f"{service['name']}.{service['namespace']}.svc"
        trust = ssl.create_default_context(cadata=base64.b64decode(webhook["clientConfig"]["caBundle"]).decode())
        review = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": str(uuid.uuid4()), "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE",
                "namespace": pod["metadata"]["namespace"], "object": pod, "oldObject": None, "dryRun": False,
            },
        }  # fmt: skip
        try:
            address = self.webhooks[f"{service['namespace']}/{service['name']}"]
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=webhook["timeoutSeconds"])) as session,
                session.post(address + service["path"], json=review, ssl=trust, server_hostname=host) as response,
            ):
                answer = (await response.json())["response"]
        except (KeyError, aiohttp.ClientError, TimeoutError) as error:
            if webhook["failurePolicy"] == "Ignore":
                return pod
            raise _Denied(f"failed calling webhook {webhook['name']}: {error}") from None
        if answer["uid"] != review["request"]["uid"] or not answer["allowed"]:
            raise _Denied(f"admission webhook {webhook['name']} denied the request: {answer['status']['message']}")
        patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
        changed: Object = apply_patch(pod, patch)
        return changed


class _Denied(Exception):
    """Admission said no."""


def _openapi(place: str) -> Object | None:
    """Return the index or one group's paths, with what clients look for: that fields are validated here, not by them."""
    places = {f"apis/{each}" if "/" in each else f"api/{each}": each for each in _KINDS}
    if not place:
        return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in places}}
    if place not in places:
        return None
    group, _, version = places[place].rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
    paths = {
        f"/{place}/namespaces/{{namespace}}/{name}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
                "parameters": parameters,
            }
        }
        for name, (kind, _) in _KINDS[places[place]].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "a cluster", "version": "1"}, "paths": paths}


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return web.json_response(body, status=code)


def _selector(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.replace("==", "=").split(",") if "=" in part and "!=" not in part)


def _patched(old: Object, body: Object, content_type: str) -> Object:
    if "apply-patch" in content_type:
        kept = {key: old["metadata"][key] for key in ("uid", "creationTimestamp") if key in old.get("metadata", {})}
        return {**body, "metadata": {**body["metadata"], **kept}}
    merged: Object = _merge(old, body, is_strategic="strategic" in content_type)
    return merged


def _merge(old: Any, new: Any, *, is_strategic: bool) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        result = dict(old)
        for key, value in new.items():
            if key.startswith("$"):
                continue
            if value is None:
                result.pop(key, None)
            else:
                result[key] = _merge(result.get(key), value, is_strategic=is_strategic)
        return result
    if is_strategic and isinstance(old, list) and isinstance(new, list) and new and isinstance(new[0], dict):
        key = next((name for name in _LIST_KEYS if all(name in item for item in new)), None)
        if key is not None:
            return _merge_items(old, new, key)
    return new


def _merge_items(old: list[Any], new: list[Any], key: str) -> list[Any]:
    items = {item[key]: item for item in old}
    for item in new:
        if item.get("$patch") == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = _merge(items.get(item[key], {}), item, is_strategic=True)
    return list(items.values())


# --- protobuf, as far as Secrets use it


def _secret(raw: bytes) -> Object:
    if raw[:4] != b"k8s\0":
        raise ValueError("this is no Kubernetes protobuf")
    unknown = dict(_fields(raw[4:]))
    secret: Object = {"metadata": {"labels": {}}, "data": {}}
    for number, value in _fields(unknown[2]):
        if number == 1:
            _metadata(value, secret["metadata"])
        elif number == 2:
            name, content = _pair(value)
            secret["data"][name] = base64.b64encode(content).decode()
        elif number == 3:
            secret["type"] = value.decode()
    return secret


def _metadata(raw: bytes, metadata: Object) -> None:
    for number, value in _fields(raw):
        if number == 1:
            metadata["name"] = value.decode()
        elif number == 3 and value:
            metadata["namespace"] = value.decode()
        elif number == 11:
            name, content = _pair(value)
            metadata["labels"][name] = content.decode()


def _pair(raw: bytes) -> tuple[str, bytes]:
    fields = dict(_fields(raw))
    return fields.get(1, b"").decode(), fields.get(2, b"")


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = raw[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while place < len(raw):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            length = varint()
            yield tag >> 3, raw[place : place + length]
            place += length
        else:
            raise ValueError(f"wire type {tag & 7} is not read here")
