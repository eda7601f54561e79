"""The demo's first act in a pod, told inside a network namespace of its own; prints what happened as one JSON line.

podman 4.3 knows neither native sidecars nor probes without systemd, so that the rendered pod is changed in four places:
the init container becomes a container, probes go (the agent waits for readiness itself), ports go (podman would publish
them), and volumes become folders.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from gateway.demo.checks import TAKEN_CLUSTER, WORKSPACE
from gateway.demo.sidecar import demo_manifest
from gateway.demo.snapshot import differences
from gateway.demo.world import PAYMENTS_KEY, TOOLS, World, authorization
from tests.containers.engine import IMAGE, Podman
from tests.helm.objects import named
from tests.helm.tools import Helm

RUN = "demo-in-a-pod"


async def tell(folder: Path) -> dict[str, Any]:
    """Run it all."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    podman, world = Podman(folder), World(folder)
    pod = folder / "pod.yaml"
    try:
        await world.start()
        card = await world.furnish()
        before = await world.look()
        pod.write_text(json.dumps(pod_of(folder, world, card)))
        await podman.run_beside("play", "kube", "--network", "host", str(pod))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            records = await agents_records(podman)
            made = differences(before, await world.look())
            base = f"http://127.0.0.1:8080/seawall/v1/trajectories/{RUN}"
            await session.post(f"{base}/abort", json={"reason": "the agent gave up"})
            async with asyncio.timeout(60):
                while (shown := await (await session.get(base)).json())["state"] in ("preparing", "compensating"):
                    await asyncio.sleep(0.2)
        return {
            "agent": records,
            "steps": shown["steps"],
            "state": shown["state"],
            "made": made,
            "differences": differences(before, await world.look()),
        }
    finally:
        if pod.exists():
            print((await podman.run_beside("logs", "agent-seawall", is_checked=False)).stderr[-3000:], file=sys.stderr)
            await podman.run_beside("pod", "rm", "--force", "--time", "0", "agent", is_checked=False)
        await world.stop()
        for child in world.children:
            child.kill()


async def agents_records(podman: Podman) -> list[dict[str, Any]]:
    """Wait for the agent's end and return what it told."""
    await podman.run_beside("wait", "agent-agent")
    lines = (await podman.run_beside("logs", "agent-agent")).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def pod_of(folder: Path, world: World, card: str) -> dict[str, Any]:
    """Return the pod that the example chart renders, as podman can run it."""
    helm = Helm("4", folder)
    manifest = yaml.safe_load(demo_manifest({tool: world.port(tool) for tool in TOOLS}))
    values = {"seawall": {"manifest": manifest, "image": {"repository": IMAGE.split(":")[0]}}}
    objects = helm.template(chart=helm.example(), values=values)
    pod = named(objects, "StatefulSet")["spec"]["template"]
    spec = pod["spec"]
    files = {
        "seawall-config": named(objects, "ConfigMap", "r-seawall")["data"],
        "seawall-secrets": {tool: PAYMENTS_KEY if tool == "payments" else authorization(tool) for tool in TOOLS},
        "seawall-run": {},
        "seawall-data": {},
    }
    spec["volumes"] = [
        {"name": name, "hostPath": {"path": str(_folder(folder / name, content)), "type": "Directory"}}
        for name, content in files.items()
    ]
    (sidecar,) = spec.pop("initContainers")
    agent = spec["containers"][0]
    url = next(item["value"] for item in agent["env"] if item["name"] == "SEAWALL_URL")
    agent.update(
        image=IMAGE,
        command=["/usr/bin/python3.11", "-c", _WAIT.strip()],
        args=[url, "/opt/seawall/gateway/demo/agent.py", f"--base-url={url}", f"--header=Seawall-Trajectory:{RUN}",
              f"--card={card}", f"--workspace={WORKSPACE}", f"--cluster={TAKEN_CLUSTER}"],
    )  # fmt: skip
    for key in ("startupProbe", "readinessProbe", "livenessProbe", "restartPolicy", "ports"):
        sidecar.pop(key, None)
    spec["containers"] = [sidecar, agent]
    spec["restartPolicy"] = "Never"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "labels": pod["metadata"]["labels"]},
        "spec": spec,
    }


_WAIT = """
import os, sys, time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen("http://127.0.0.1:9091/readyz")
        break
    except OSError:
        time.sleep(0.1)
os.execv("/usr/bin/python3.11", ["python3.11", "-IS", *sys.argv[2:]])
"""
"""Stands for the startup probe, which keeps an agent from starting before the gateway."""


def _folder(path: Path, content: dict[str, str]) -> Path:
    path.mkdir()
    for name, text in content.items():
        (path / name).write_text(text)
    os.chown(path, 65532, 65532)
    return path


if __name__ == "__main__":
    print(json.dumps(asyncio.run(tell(Path(sys.argv[1])))))
