"""The wheel and the sdist: what is in them, that they run, and that one version stands everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from gateway import __version__
from tests.helm.tools import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def build(folder: Path) -> dict[str, Path]:
    """Build both, as `make dist` does."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1764374400"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_carries_policies_migrations_and_types(built: dict[str, Path]) -> None:
    """Everything that is read at run time, and nothing beside the package."""
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
    policies = {f"gateway/_policies/{path.name}" for path in (ROOT / "policies").glob("*.yaml")}
    migrations = {str(path.relative_to(ROOT)) for path in (ROOT / "gateway").rglob("*.sql")}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "gateway").rglob("*.py")}
    assert names >= policies | migrations | sources
    tops = {name.split("/")[0] for name in names}
    assert tops == {"gateway", f"seawall-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_same_sources_give_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    """Else nobody can check that a package is what the sources say."""
    again = build(tmp_path)
    assert {kind: sha256(path.read_bytes()).hexdigest() for kind, path in again.items()} == {
        kind: sha256(path.read_bytes()).hexdigest() for kind, path in built.items()
    }


def test_the_sdist_holds_what_it_takes_to_build(built: dict[str, Path]) -> None:
    """Packagers start from it."""
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "gateway/__init__.py",
        "policies/external.yaml",
    } <= names
    assert not [name for name in names if name.startswith((".git/", "tests/", "var/", ".venv/"))]


def test_the_installed_wheel_runs_away_from_the_sources(built: dict[str, Path], tmp_path: Path) -> None:
    """Shipped policies are found, and the schema can be printed, where there is no repository."""
    with zipfile.ZipFile(built["wheel"]) as wheel:
        wheel.extractall(tmp_path / "site")
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        'include: ["seawall:policies/external.yaml"]\ntools: {a: {upstream: "https://a.example", domain: external}}\n'
    )
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for arguments in (["check", str(manifest)], ["schema"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gateway", *arguments],
            cwd=tmp_path, env={**kept, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_one_version_stands_everywhere() -> None:
    """Package, metadata, chart and change log."""
    chart = yaml.safe_load((ROOT / "helm" / "seawall" / "Chart.yaml").read_text())
    assert PROJECT["project"]["version"] == __version__ == chart["version"] == chart["appVersion"]
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"ARG VERSION={__version__}\n" in (ROOT / "docker" / "Containerfile").read_text()


def test_the_lock_pins_everything_and_names_no_host() -> None:
    """A host in it would be somebody's own mirror."""
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    pins = [line for line in text.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    assert pins
    assert all(line.endswith("\\") for line in pins)
