"""The admission webhook: an API server asks before it creates a pod, and is told how to put the sidecar into it.

It answers AdmissionReview v1 with a JSON Patch (RFC 6902), or with a refusal and its reason: a pod that was to be guarded
must not start unguarded. It calls nobody and keeps nothing, so that any number of replicas may answer.
Source: Kubernetes, "Dynamic Admission Control", admission.k8s.io/v1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from gateway.kubernetes.settings import InjectSettings
from gateway.kubernetes.sidecar import Unsuitable, inject, is_injected

__all__ = ["CLAIM", "ENV", "BadReview", "Certificate", "json_patch", "review", "webhook_app"]

CLAIM: Final = "seawall.dev/claim"
"""Annotation of a pod: the PVC for its journal."""
ENV: Final = "seawall.dev/env"
"""Annotation of a pod: `NAME=tool,NAME=tool/path`, variables of the agent."""
CONTAINERS: Final = "seawall.dev/containers"
"""Annotation of a pod: the containers that get them, joined by commas."""
CONFIG_MAP: Final = "seawall.dev/config-map"
"""Annotation of a pod: another ConfigMap than the webhook's own."""

_API: Final = "admission.k8s.io/v1"
_BODY_BYTES: Final = 4 << 20  # an object is at most 1.5 MiB in etcd, and a review may hold two
_LOOK_AGAIN_S: Final = 10.0

_log = logging.getLogger("gateway.webhook")


class BadReview(ValueError):
    """The body is no AdmissionReview v1; the message says what is missing."""


def review(body: object, settings: InjectSettings) -> dict[str, Any]:
    """Return the answer to an AdmissionReview.

    Raises:
        BadReview: it is none.
    """
    if not isinstance(body, dict) or body.get("kind") != "AdmissionReview" or body.get("apiVersion") != _API:
        raise BadReview(f"expected an AdmissionReview of {_API}")
    request = body.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise BadReview("the review holds no request with a uid")
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    pod = request.get("object")
    if (request.get("kind") or {}).get("kind") == "Pod" and request.get("operation") == "CREATE":
        try:
            response.update(_answer(pod, settings))
        except Unsuitable as reason:
            message = f"seawall cannot put its sidecar into this pod: {reason}"
            response.update(allowed=False, status={"code": 422, "reason": "Invalid", "message": message})
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def _answer(pod: object, settings: InjectSettings) -> dict[str, Any]:
    if not isinstance(pod, dict):
        raise Unsuitable("the request holds no object")
    if is_injected(pod):
        return {}
    patch = json_patch(pod, inject(pod, _settings_of(pod, settings)))
    return {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}


def _settings_of(pod: Mapping[str, Any], settings: InjectSettings) -> InjectSettings:
    """Return the settings with what the pod's annotations say."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    volumes = (pod.get("spec") or {}).get("volumes") or []
    env = dict(settings.env)
    for pair in filter(None, str(annotations.get(ENV, "")).split(",")):
        name, equals, tool = (part.strip() for part in pair.partition("="))
        if not (name and equals and tool):
            raise Unsuitable(f"its annotation {ENV} must be NAME=tool, joined by commas")
        env[name] = tool
    containers = tuple(filter(None, (name.strip() for name in str(annotations.get(CONTAINERS, "")).split(","))))
    return replace(
        settings,
        env=env,
        claim=annotations.get(CLAIM) or settings.claim,
        config_map=annotations.get(CONFIG_MAP) or settings.config_map,
        containers=containers or settings.containers,
        workload_volume=any(volume.get("name") == "seawall-data" for volume in volumes),
    )


def json_patch(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[dict[str, Any]]:
    """Return the operations that make `old` into `new`: mappings key by key, everything else as a whole (RFC 6902)."""
    patch: list[dict[str, Any]] = [
        {"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in sorted(old.keys() - new.keys())
    ]
    for key, value in new.items():
        place = f"{path}/{_escaped(key)}"
        if key not in old:
            patch.append({"op": "add", "path": place, "value": value})
        elif isinstance(value, dict) and isinstance(old[key], dict):
            patch += json_patch(old[key], value, place)
        elif value != old[key]:
            patch.append({"op": "replace", "path": place, "value": value})
    return patch


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def webhook_app(settings: InjectSettings) -> web.Application:
    """Return the application: `POST /inject`, `GET /healthz`."""

    async def answer(request: web.Request) -> web.Response:
        try:
            told = review(json.loads(await request.read()), settings)
        except (BadReview, ValueError, RecursionError) as error:
            return web.json_response({"detail": f"This is no AdmissionReview: {error}"}, status=400)
        response = told["response"]
        _log.info("review", extra={"event": "review", "uid": response["uid"], "allowed": response["allowed"]})
        return web.json_response(told)

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    app = web.Application(client_max_size=_BODY_BYTES)
    app.router.add_post("/inject", answer)
    app.router.add_get("/healthz", health)
    return app


class Certificate:
    """A certificate and key in a folder, as a kubernetes.io/tls Secret is mounted; taken again when they change."""

    def __init__(self, folder: Path) -> None:
        """Load them.

        Raises:
            OSError, ssl.SSLError: they cannot be used.
        """
        self._chain, self._key = folder / "tls.crt", folder / "tls.key"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = b""
        self.reload()

    def reload(self) -> bool:
        """Load them again if they changed; connections that are open keep theirs. Returns whether they had changed.

        Raises:
            OSError, ssl.SSLError: they cannot be used; the earlier ones stay in force.
        """
        now = self._chain.read_bytes() + self._key.read_bytes()
        if now == self._seen:
            return False
        self.context.load_cert_chain(self._chain, self._key)
        self._seen = now
        return True

    async def keep_fresh(self, look_again: Callable[[], Awaitable[object]] | None = None) -> None:
        """Look again, for ever."""
        while True:
            await (look_again() if look_again is not None else asyncio.sleep(_LOOK_AGAIN_S))
            try:
                if await asyncio.to_thread(self.reload):
                    _log.info("certificate taken", extra={"event": "certificate"})
            except (OSError, ssl.SSLError) as error:
                _log.error(
                    "certificate refused, the earlier one stays", extra={"event": "certificate", "why": str(error)}
                )
