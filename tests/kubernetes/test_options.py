"""Settings of an injection: file, options, and what the manifest knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.errors import ConfigError
from gateway.kubernetes.options import inject_settings
from gateway.kubernetes.settings import InjectSettings

MANIFEST = """
version: 1
include: ["seawall:policies/local.yaml"]
tools:
  web-search: {upstream: "https://search.example.com", domain: local}
"""
UNDOABLE = """
tools:
  web:
    upstream: https://web.example.com
    operations:
      hold: {match: POST /holds, tier: compensable, compensator: "POST /holds/1/cancel", timeouts: {total: 90s}}
"""


def test_an_option_wins_over_the_file(tmp_path: Path) -> None:
    """And everything else is the default."""
    file = tmp_path / "injector.yaml"
    file.write_text("claim: a\nenv: {A: b}\ndrain: 2m\nresources: {limits: {memory: 1Gi}}\n")
    settings = inject_settings(file, {"claim": "b"})
    assert settings == InjectSettings(claim="b", env={"A": "b"}, drain=120.0, resources={"limits": {"memory": "1Gi"}})


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    """As everywhere."""
    file = tmp_path / "injector.yaml"
    file.write_text("clam: a\nagents_port: 80\n")
    with pytest.raises(ConfigError) as caught:
        inject_settings(file)
    assert "clam" in str(caught.value)
    assert "agents_port" in str(caught.value)
    with pytest.raises(ConfigError, match="No such file"):
        inject_settings(tmp_path / "gone")


def test_the_manifest_gives_base_urls_and_the_longest_call(tmp_path: Path) -> None:
    """Nobody should have to say twice what the manifest says."""
    file = tmp_path / "manifest.yaml"
    file.write_text(MANIFEST)
    settings = inject_settings(options={"env": {"SEARCH": "web-search/v1"}}, manifest=file)
    assert settings.env == {"WEB_SEARCH_BASE_URL": "web-search", "SEARCH": "web-search/v1"}
    assert settings.drain == 2.0
    assert settings.accept_journal_loss is True


def test_a_manifest_with_something_to_undo_wants_a_lasting_journal(tmp_path: Path) -> None:
    """Without one the power to undo dies with the pod."""
    file = tmp_path / "manifest.yaml"
    file.write_text(
        UNDOABLE.replace(", domain: local}\n", "\n    domain: local\n").replace("{upstream:", "\n    upstream:")
    )
    settings = inject_settings(manifest=file)
    assert settings.accept_journal_loss is False
    assert settings.drain == 120.0


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        (MANIFEST, {"env": {"A": "serach"}}, "names no tool `serach`"),
        (MANIFEST.replace("seawall:policies/local.yaml", "other.yaml"), {}, "other.yaml"),
        (MANIFEST + "    credentials: {value: '${secret:key}'}\n", {}, "manifest.yaml:6"),
        ("tools: {a: {upstream: 'https://a.example', credentials: {value: '${secret:key}'}}}", {}, "--secret"),
        ("tools: {a: {}}", {}, "upstream"),
    ],
)
def test_a_manifest_that_would_not_work_in_the_pod_is_refused(
    tmp_path: Path, text: str, options: dict[str, object], why: str
) -> None:
    """Better here than in a pod that never becomes ready."""
    (tmp_path / "other.yaml").write_text("domains: {local: {}}")
    file = tmp_path / "manifest.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        inject_settings(options=options, manifest=file)
    with pytest.raises(ConfigError, match="it is a folder"):
        inject_settings(manifest=tmp_path)
