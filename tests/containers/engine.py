"""Podman with runc, as this machine allows it: no daemon, no systemd, and everything that Kubernetes' restricted profile
takes away."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway import __version__
from tests.helm.tools import ROOT
from tests.lacking import lacking

__all__ = ["BASES", "GUARD", "IMAGE", "REVISION", "Podman", "build_environment", "build_images"]

IMAGE = f"localhost/seawall:{__version__}"
GUARD = f"localhost/seawall-guard:{__version__}"
BASES = ("localhost/seawall-build:12", "localhost/seawall-run:12")
RESTRICTED = (
    "--read-only", "--read-only-tmpfs=false", "--user", "65532:65532", "--cap-drop", "all",
    "--security-opt", "no-new-privileges", "--memory", "512m",
)  # fmt: skip
"""Without podman's own tmpfs on /run, which Kubernetes does not mount either."""
NEEDED = (
    "buildah", "mmdebstrap", "podman", "runc", "conmon", "nft", "iptables", "unshare", "ip", "podman-compose", "skopeo",
)  # fmt: skip

REVISION = "5ea" + "0" * 37
"""Instead of the commit, so that each commit does not make other images of the same files."""

ATTEMPTS, BUILD_S = 3, 400
"""Of downloading and building, each: a mirror that is away for a moment must not fail everything else."""

_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "host"
cgroupns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def build_images() -> None:
    """Build bases and images; layers that are there are used again."""
    if os.geteuid() != 0:
        lacking("containers: this needs root")
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        lacking(f"containers: no {', '.join(missing)}; tests/containers/setup installs them")
    for command in (["docker/bases", str(ROOT / "var" / "images")], ["docker/build", *BASES]):
        for attempt in range(1, ATTEMPTS + 1):
            try:
                made = subprocess.run(
                    command, cwd=ROOT, env=build_environment(), capture_output=True, text=True, timeout=BUILD_S
                )
                if made.returncode == 0:
                    break
                told = made.stderr
            except subprocess.TimeoutExpired as error:
                told = f"it did not end within {BUILD_S} s: {error.stderr!r}"
            print(f"{command[0]}, attempt {attempt} of {ATTEMPTS}: {told[-2000:]}", file=sys.__stderr__, flush=True)
        else:
            lacking(f"containers: {command[0]} failed {ATTEMPTS} times:\n{told[-2000:]}")


def build_environment() -> dict[str, str]:
    """Return what the scripts under docker/ need on this machine."""
    environment = {**os.environ, "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "REVISION": REVISION}
    if "PIP_CERT" not in environment and Path("/etc/ssl/certs/ca-certificates.crt").exists():
        environment["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"
    return environment


class Podman:
    """One machine's containers, as far as a test made them."""

    def __init__(self, folder: Path) -> None:
        configuration = folder / "containers.conf"
        configuration.write_text(_CONFIGURATION)
        self.bridged = folder / "bridged.conf"
        """The same for containers with networks of their own; only inside a network namespace of the test's own."""
        self.bridged.write_text(_CONFIGURATION.replace('netns = "host"\n', ""))
        self.environment = {**os.environ, "STORAGE_DRIVER": "overlay", "CONTAINERS_CONF": str(configuration)}

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return ["podman", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc", *arguments]

    def run(
        self, *arguments: str, is_checked: bool = True, wrapper: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run podman."""
        done = subprocess.run(
            [*wrapper, *self.command(*arguments)], env=self.environment, capture_output=True, text=True, timeout=120
        )
        if is_checked and done.returncode:
            raise AssertionError(f"podman {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done

    async def run_beside(self, *arguments: str, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """The same, without standing in the way of servers in this loop."""
        return await asyncio.to_thread(lambda: self.run(*arguments, is_checked=is_checked))

    async def serve(self, name: str, mounts: Mapping[Path, str], *arguments: str) -> None:
        """Start the gateway under the restricted profile."""
        binds = [part for path, place in mounts.items() for part in ("-v", f"{path}:{place}")]
        run_folder = ("--mount", "type=tmpfs,destination=/run/seawall,tmpfs-mode=1777")
        await self.run_beside(
            "run", "--detach", "--name", name, "--network", "host", *RESTRICTED, *run_folder, *binds, IMAGE, *arguments
        )

    async def remove(self, name: str) -> None:
        """End and forget a container."""
        await self.run_beside("rm", "--force", "--time", "0", name, is_checked=False)
