"""Strict checks of rendered objects: Kubernetes' own schemas, and those of the Prometheus operator that we fill in."""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate

__all__ = ["VERSIONS", "check", "named", "pods_of"]

VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_SELECTOR = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"matchLabels": _TEXTS},
}
_DURATION = {
    "type": "string",
    "pattern": "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?)$",
}
_ENDPOINTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["port"],
        "properties": {"port": {"type": "string"}, "path": {"type": "string"}, "interval": _DURATION},
    },
}


def _spec(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


_OPERATOR = {
    "ServiceMonitor": _spec({"selector": _SELECTOR, "endpoints": _ENDPOINTS}, ["selector", "endpoints"]),
    "PodMonitor": _spec({"selector": _SELECTOR, "podMetricsEndpoints": _ENDPOINTS}, ["selector", "podMetricsEndpoints"]),
    "PrometheusRule": _spec(
        {
            "groups": {
                "type": "array",
                "minItems": 1,
                "items": _spec(
                    {
                        "name": {"type": "string"},
                        "rules": {
                            "type": "array",
                            "minItems": 1,
                            "items": _spec(
                                {"alert": {"type": "string"}, "expr": {"type": "string"}, "for": _DURATION,
                                 "labels": _TEXTS, "annotations": _TEXTS},
                                ["alert", "expr", "labels", "annotations"],
                            ),
                        },
                    },
                    ["name", "rules"],
                ),
            }
        },
        ["groups"],
    ),
}  # fmt: skip
"""The published schemas let unknown keys pass, so that `intervall` would be dropped in silence; these do not."""


def check(thing: dict[str, Any], version: str) -> None:
    """Raise if Kubernetes of that version would drop or refuse anything in the object."""
    if thing["apiVersion"] == "monitoring.coreos.com/v1":
        jsonschema.validate(thing["spec"], _OPERATOR[thing["kind"]])
        meta = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": thing["metadata"]}
        kubernetes_validate.validate(meta, version, strict=True)
        return
    kubernetes_validate.validate(thing, version, strict=True)


def named(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """Return the one object of a kind (and name)."""
    (found,) = [each for each in objects if each["kind"] == kind and (not name or each["metadata"]["name"] == name)]
    return found


def pods_of(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the spec of every pod that the objects would make."""
    found = []
    for each in objects:
        if each["kind"] == "Pod":
            found.append(each["spec"])
        elif each["kind"] in ("StatefulSet", "Deployment"):
            found.append(each["spec"]["template"]["spec"])
    return found
