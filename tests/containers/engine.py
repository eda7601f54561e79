"""Podman with runc, as this machine allows it: no daemon, no systemd, and everything that Kubernetes' restricted profile
takes away."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway import __version__
from tests.helm.tools import ROOT
from tests.lacking import lacking

__all__ = ["GUARD", "IMAGE", "Podman", "build_images"]

IMAGE = f"localhost/seawall:{__version__}"
GUARD = f"localhost/seawall-guard:{__version__}"
RESTRICTED = (
    "--read-only", "--read-only-tmpfs=false", "--user", "65532:65532", "--cap-drop", "all",
    "--security-opt", "no-new-privileges", "--memory", "512m",
)  # fmt: skip
"""Without podman's own tmpfs on /run, which Kubernetes does not mount either."""
NEEDED = ("buildah", "podman", "runc", "conmon", "nft", "unshare", "ip")

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
    folder = ROOT / "var" / "images"
    environment = {**os.environ, "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    if "PIP_CERT" not in environment and Path("/etc/ssl/certs/ca-certificates.crt").exists():
        environment["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"
    for command in (
        ["docker/bases", str(folder)],
        ["docker/build", "localhost/seawall-build:12", "localhost/seawall-run:12"],
    ):
        made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if made.returncode:
            lacking(f"containers: {command[0]} failed:\n{made.stderr[-2000:]}")


class Podman:
    """One machine's containers, as far as a test made them."""

    def __init__(self, folder: Path) -> None:
        configuration = folder / "containers.conf"
        configuration.write_text(_CONFIGURATION)
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
