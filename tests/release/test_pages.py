"""The pages that tell people what to do: their commands run, their files exist, their workflows are sound."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helm.tools import ROOT
from tests.lacking import lacking

PAGES = [
    "docs/kubernetes.md",
    "docs/threat-model.md",
    "docs/runbooks.md",
    "docs/release.md",
    "SECURITY.md",
    "helm/seawall/README.md",
]
FENCE = re.compile(r"^```(\w+)(?: (run|file=\S+))?\n(.*?)^```$", re.M | re.S)


def test_the_newcomers_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    """Its files are written, its commands run in order, and what it promises of the result holds."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    ran = 0
    for language, mark, text in FENCE.findall(page):
        if mark.startswith("file="):
            assert language == "yaml"
            (tmp_path / mark.removeprefix("file=")).write_text(text)
        elif mark == "run":
            line, _, target = text.replace("\\\n", " ").strip().partition(" > ")
            command = [sys.executable, "-P", "-m", "gateway", *shlex.split(line)[1:]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
            assert done.returncode == 0, done.stderr
            if target:
                (tmp_path / target).write_text(done.stdout)
            ran += 1
    assert ran == 2
    config_map, workload = yaml.safe_load_all((tmp_path / "guarded.yaml").read_text())
    assert config_map["kind"] == "ConfigMap"
    (agent,) = workload["spec"]["template"]["spec"]["containers"]
    assert {"name": "STRIPE_API_BASE", "value": "http://127.0.0.1:8080/payments"} in agent["env"]
    back = subprocess.run(
        [sys.executable, "-P", "-m", "gateway", "uninject", "-f", "guarded.yaml"],
        cwd=tmp_path, capture_output=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert back.stdout == (tmp_path / "agent.yaml").read_bytes()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    """A proof that is not there proves nothing."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), target
    for target in re.findall(r"(?<![\w/.])((?:tests|gateway|docker|helm)/[\w./-]*\w)", text):
        assert (ROOT / target).exists(), target


def test_every_value_that_the_newcomers_page_sets_exists() -> None:
    """Chart values are checked by the schema only where somebody installs."""
    values = yaml.safe_load((ROOT / "helm" / "seawall" / "values.yaml").read_text())
    for page in ("docs/kubernetes.md", "helm/seawall/README.md"):
        for path in re.findall(r"--set(?:-file)? '?([a-zA-Z.]+)", (ROOT / page).read_text()):
            place = values
            for step in path.split("."):
                assert step in place, path
                place = place[step]


def test_the_workflows_are_sound() -> None:
    """zizmor: every action by commit, no permission that is not needed, no text of strangers in a script."""
    program = shutil.which("zizmor") or str(Path(sys.executable).with_name("zizmor"))
    if not Path(program).exists():
        lacking("the workflows' audit: no zizmor (extra `k8s`)")
    done = subprocess.run([program, "--offline", str(ROOT / ".github")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflows_read_no_secret() -> None:
    """Publishing is by trust in the workflow itself; a fork's pull request finds nothing to take."""
    for path in (ROOT / ".github" / "workflows").glob("*.yaml"):
        text = path.read_text()
        assert "secrets." not in text
        assert yaml.safe_load(text)["permissions"] == {}
        for target in re.findall(r"make (\w+)", text):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) or target == "python3"
