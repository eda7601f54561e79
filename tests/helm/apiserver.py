"""Enough of a Kubernetes API server for real Helm and kubectl: discovery, objects, patches, strict validation, admission.

Objects are checked against Kubernetes' own schemas, so that a field which a real server would drop is refused here. A
pod that a mutating webhook selects is sent to it over TLS, trusted by the configuration's `caBundle` alone, and a webhook
that cannot be reached refuses the pod if its policy says so. Nothing runs: no controller, no kubelet.

Helm sends its release Secrets as protobuf; of that only what Secrets use is read.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import uuid
from collections.abc import Iterator
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

_ALL = ["create", "delete", "get", "list", "patch", "update"]
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
Key = tuple[str, str, str, str]


class ApiServer:
    """One cluster that holds objects and runs nothing.

    Attributes:
        objects: by resource, group and version, namespace and name.
        webhooks: where the Service of a webhook is reached, by `namespace/name`.
        url: where it listens, once started.
    """

    def __init__(self, version: str = "1.37") -> None:
        self.objects: dict[Key, Object] = {}
        self.webhooks: dict[str, str] = {}
        self.url = ""
        self._version = version
        self._counter = itertools.count(1)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on loopback."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """End."""
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

    async def _answer(self, request: web.Request) -> web.Response:
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

    async def _act(self, request: web.Request, key: Key) -> web.Response:
        if request.method == "GET":
            return self._read(request, key)
        if request.method == "DELETE":
            gone = self.objects.pop(key, None)
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
        return web.json_response(body, status=201 if is_new else 200)

    def _read(self, request: web.Request, key: Key) -> web.Response:
        group, resource, namespace, name = key
        if name:
            found = self.objects.get(key)
            return web.json_response(found) if found else _status(404, "NotFound", f'{resource} "{name}" not found')
        wanted = _selector(request.query.get("labelSelector", ""))
        items = [
            each
            for (its_group, its_resource, its_namespace, _), each in self.objects.items()
            if (its_group, its_resource) == (group, resource)
            and namespace in ("", its_namespace)
            and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        kind = _KINDS[group][resource][0]
        return web.json_response(
            {"kind": f"{kind}List", "apiVersion": group, "metadata": {"resourceVersion": "1"}, "items": items}
        )

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
