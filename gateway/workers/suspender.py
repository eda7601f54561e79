"""Stops the process of whoever is quarantined, by what the operator configured, and lets it go on afterwards.

Writing to a cgroup and sending a signal are done at once, in a thread, so that a slow file system holds nobody up. Webhooks
and Kubernetes are asked over HTTP, each within its own time.

Source: Linux `Documentation/admin-guide/cgroup-v2.rst` (cgroup.freeze); Kubernetes API conventions (JSON merge patch).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import signal
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from gateway.clock import Clock
from gateway.core.manifest import SuspendKind
from gateway.core.tool import Suspension
from gateway.workers.quarantine import Outside, Subject

__all__ = ["SIGNATURE", "Suspender"]

SIGNATURE: Final = "Seawall-Signature"
"""Header of a webhook: `t=MILLISECONDS,v1=HEX`, the HMAC-SHA256 of `MILLISECONDS.BODY` under its secret."""

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CLUSTER: Final = "https://kubernetes.default.svc"


class Suspender:
    """Runs the hooks of the manifest in force."""

    def __init__(self, hooks: Callable[[], dict[str, Suspension]], clock: Clock, account: Path = _ACCOUNT) -> None:
        """`account`: folder of the pod's own token and certificate authority."""
        self._hooks = hooks
        self._clock = clock
        self._account = account

    def suspend(self) -> dict[str, Outside]:
        """Return what stops a process, by name."""
        return {name: partial(self._run, hook, is_stop=True) for name, hook in self._hooks().items()}

    def resume(self) -> dict[str, Outside]:
        """Return what lets it go on, by name; a signal other than STOP cannot be taken back."""
        return {
            name: partial(self._run, hook, is_stop=False)
            for name, hook in self._hooks().items()
            if hook.settings.kind is not SuspendKind.SIGNAL or hook.settings.signal == "STOP"
        }

    async def _run(self, hook: Suspension, subject: Subject, *, is_stop: bool) -> str:
        env = {"trajectory": {"id": subject.run, "agent": subject.agent, "labels": subject.labels}}
        async with asyncio.timeout(hook.settings.timeout):
            match hook.settings.kind:
                case SuspendKind.CGROUP:
                    return await asyncio.to_thread(_freeze, Path(hook.fill("path", env)), is_stop=is_stop)
                case SuspendKind.SIGNAL:
                    name = hook.settings.signal if is_stop else "CONT"
                    return await asyncio.to_thread(_signal, Path(hook.fill("path", env)), name)
                case SuspendKind.WEBHOOK:
                    return await self._post(hook, subject, is_stop=is_stop)
                case SuspendKind.KUBERNETES:
                    return await self._label(hook, hook.fill("namespace", env), hook.fill("pod", env), is_stop=is_stop)

    async def _post(self, hook: Suspension, subject: Subject, *, is_stop: bool) -> str:
        body = orjson.dumps({
            "event": "quarantined" if is_stop else "lifted",
            "quarantine": subject.quarantine,
            "trajectory": subject.run or None,
            "agent": subject.agent,
            "labels": subject.labels,
        })  # fmt: skip
        headers = {"Content-Type": "application/json"}
        if hook.secret is not None:
            at = self._clock.at()
            digest = hmac.new(hook.secret.encode(), b"%d.%b" % (at, body), hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"t={at},v1={digest}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(hook.settings.url or "", data=body, headers=headers, allow_redirects=False) as answer,
        ):
            return _good(answer)

    async def _label(self, hook: Suspension, namespace: str, pod: str, *, is_stop: bool) -> str:
        base = (hook.settings.url or _CLUSTER).rstrip("/")
        token = hook.secret or await asyncio.to_thread(_read, self._account / "token")
        context = await asyncio.to_thread(_trust, self._account / "ca.crt") if base.startswith("https:") else None
        patch = orjson.dumps({"metadata": {"labels": {hook.settings.label: "true" if is_stop else None}}})
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        url = f"{base}/api/v1/namespaces/{namespace}/pods/{pod}"
        async with (
            aiohttp.ClientSession() as session,
            session.patch(url, data=patch, headers=headers, ssl=context or True, allow_redirects=False) as answer,
        ):
            return _good(answer)


def _good(answer: aiohttp.ClientResponse) -> str:
    if answer.status // 100 != 2:
        raise RuntimeError(f"it answered {answer.status}")
    return f"answered {answer.status}"


def _freeze(path: Path, *, is_stop: bool) -> str:
    # Opened as it is: a path that is not there must not become a file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"1" if is_stop else b"0")
    finally:
        os.close(descriptor)
    return "frozen" if is_stop else "thawed"


def _signal(path: Path, name: str) -> str:
    text = path.read_text("ascii").strip()
    if not text.isdigit() or int(text) <= 1:
        raise RuntimeError(f"{path} holds no process number")
    os.kill(int(text), signal.Signals[f"SIG{name}"])
    return f"SIG{name} to {text}"


def _read(path: Path) -> str:
    return path.read_text("ascii").strip()


def _trust(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(path) if path.exists() else None)
