"""YAML as people write it: comments stay, the values are right, and taking the sidecar out gives the same bytes."""

from __future__ import annotations

import itertools
import json

import pytest
import yaml

from gateway.kubernetes.document import BadDocument, inject_text, namespace_of, uninject_text, with_config_map
from gateway.kubernetes.settings import InjectSettings
from gateway.kubernetes.sidecar import inject

SETTINGS = InjectSettings(claim="journal", env={"STRIPE_API_BASE": "payments"})

DEPLOYMENT = """\
# The agent of the payments team.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: agent   # its name
spec:
  selector: {matchLabels: {app: agent}}
  template:
METADATA    spec:
GRACEINIT      containers:
        # the one container
        - name: agent
          image: example/agent:1  # pinned
ENVVOLUMES"""

PIECES = {
    "METADATA": ["    metadata:\n      labels:\n        app: agent  # for the selector\n",
                 "    metadata: {labels: {app: agent}}\n",
                 "    metadata:\n      annotations: {a: b}\n      labels: {app: agent}\n", ""],
    "GRACE": ["", "      terminationGracePeriodSeconds: 20  # short\n"],
    "INIT": ["", "      initContainers:\n      # at the margin\n      - {name: migrate, image: x}\n"],
    "ENV": ["", "          env: []\n", "          env:\n            # where Stripe is\n            - name: STRIPE_API_BASE\n"
            "              value: https://api.stripe.com\n            - {name: OTHER, value: 'no'}\n"],
    "VOLUMES": ["", "      volumes: []\n", "      volumes:\n      - name: a\n        emptyDir: {}\n      # the end\n"],
}  # fmt: skip


def variants() -> list[str]:
    found = []
    for choice in itertools.product(*PIECES.values()):
        text = DEPLOYMENT
        for name, piece in zip(PIECES, choice, strict=True):
            text = text.replace(name, piece)
        found.append(text)
    return found


@pytest.mark.timeout(240)  # the YAML parser is Python's own, and a busy machine is five times slower
def test_every_shape_of_a_deployment_keeps_its_comments_and_comes_back_byte_for_byte() -> None:
    """144 files; where a piece is in flow style, that piece alone is written anew, and its original is kept beside it."""
    texts = variants()
    assert len(texts) == 4 * 2 * 2 * 3 * 3
    for text in texts:
        edited = inject_text(text, SETTINGS)
        assert edited.changed == ["deployment/agent"], text
        old, new = (yaml.safe_load(each)["spec"]["template"] for each in (text, edited.text))
        assert new == inject(old, SETTINGS), text
        back = uninject_text(edited.text)
        if not edited.rewritten:
            assert back.text == text
            assert all(line in edited.text for line in text.splitlines() if "#" in line)
        else:
            assert "metadata: {labels: {app: agent}}" in text
            assert yaml.safe_load(back.text)["spec"]["template"]["spec"]["containers"][0]["image"] == "example/agent:1"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n# the end", "\n---\n", "\n---\nkind: Service\nmetadata: {name: agent}"])
def test_line_ends_and_what_follows_stay(newline: str, end: str) -> None:
    """Files come from Windows, without a last line break, and with other objects in them."""
    text = (variants()[0].rstrip("\n") + end).replace("\n", newline)
    edited = inject_text(text, SETTINGS)
    assert edited.text != text
    assert not edited.rewritten
    assert uninject_text(edited.text).text == text


@pytest.mark.parametrize(
    ("kind", "head", "depth"),
    [
        ("Pod", "", 0),
        ("StatefulSet", "spec:\n  template:\n", 4),
        ("DaemonSet", "spec:\n  template:\n", 4),
        ("Job", "spec:\n  template:\n", 4),
        ("CronJob", "spec:\n  jobTemplate:\n    spec:\n      template:\n", 8),
    ],
)
def test_every_kind_of_workload(kind: str, head: str, depth: int) -> None:
    """Each keeps its pod elsewhere; a Job completes because the sidecar is a native one."""
    body = f"spec:\n  containers:\n    - name: agent\n      image: {kind.lower()}\n"
    indented = "".join(" " * depth + line for line in body.splitlines(keepends=True))
    text = f"kind: {kind}\nmetadata:\n  name: agent\n{head}{indented}"
    settings = InjectSettings(accept_journal_loss=True)
    edited = inject_text(text, settings)
    assert edited.changed == [f"{kind.lower()}/agent"]
    assert not edited.rewritten
    assert "restartPolicy: Always" in edited.text
    assert uninject_text(edited.text).text == text


def test_other_objects_and_what_was_not_chosen_stay() -> None:
    """A file holds more than workloads."""
    service = "kind: Service\nmetadata: {name: agent}\n"
    text = f"{variants()[0]}---\n{service}---\n{variants()[0].replace('name: agent ', 'name: other ')}"
    edited = inject_text(text, SETTINGS, lambda name: name == "deployment/other")
    assert edited.changed == ["deployment/other"]
    assert edited.unchanged == [("deployment/agent", "it was not chosen")]
    assert edited.text.startswith(f"{variants()[0]}---\n{service}---\n")
    assert inject_text(service, SETTINGS).text == service


def test_what_cannot_be_edited_is_written_anew_and_says_so() -> None:
    """A flow style pod, a shared anchor: the values are right, the comments are gone, and the caller is told."""
    flow = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: agent, image: x}]} # gone\n"
    anchored = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n    - name: a\n      env: &e\n        - {name: A}\n"
        "    - name: b\n      env: *e\n"
    )
    for text in (flow, anchored):
        edited = inject_text(text, SETTINGS)
        assert edited.rewritten == ["pod/p"]
        assert yaml.safe_load(edited.text) == inject(yaml.safe_load(text), SETTINGS)
        assert yaml.safe_load(uninject_text(edited.text).text) == yaml.safe_load(text)


def test_a_list_and_json() -> None:
    """What `kubectl get -o yaml` and `-o json` print."""
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "a"}]}} for name in "ab"]
    both = {"kind": "List", "items": pods}
    edited = inject_text(json.dumps(both), SETTINGS, lambda name: name == "pod/b")
    assert json.loads(edited.text)["items"] == [pods[0], inject(pods[1], SETTINGS)]
    text = yaml.safe_dump(both)
    edited = inject_text(text, SETTINGS, lambda name: name == "pod/b")
    assert yaml.safe_load(edited.text)["items"] == [pods[0], inject(pods[1], SETTINGS)]
    assert uninject_text(edited.text).text == text


def test_after_a_round_through_the_cluster_the_values_come_back() -> None:
    """kubectl drops comments; the annotation is enough."""
    text = variants()[-1]
    through = yaml.safe_dump(yaml.safe_load(inject_text(text, SETTINGS).text))
    template = yaml.safe_load(uninject_text(through).text)["spec"]["template"]
    assert template == yaml.safe_load(text)["spec"]["template"]


def test_a_hand_that_changed_something_in_between_keeps_its_change() -> None:
    """Only what we put there is taken out."""
    edited = inject_text(variants()[0], SETTINGS).text.replace("example/agent:1", "example/agent:2")
    assert uninject_text(edited).text == variants()[0].replace("example/agent:1", "example/agent:2")
    damaged = inject_text(variants()[0], SETTINGS).text.replace("# seawall:end", "# the end")
    assert "seawall" not in uninject_text(damaged).text.replace("# seawall", "")


def test_several_pods_do_not_share_one_journal() -> None:
    """The second would wait for the first one's lock for ever; a StatefulSet brings a claim for each."""
    text = variants()[0].replace("  selector:", "  replicas: 3\n  selector:")
    assert "one writer" in inject_text(text, SETTINGS).unchanged[0][1]
    stateful = text.replace("Deployment", "StatefulSet").rstrip("\n") + (
        "\n  volumeClaimTemplates:\n    - metadata: {name: seawall-data}\n"
    )
    assert inject_text(stateful, InjectSettings(workload_volume=True)).changed == ["statefulset/agent"]


def test_the_manifest_rides_in_front_and_goes_again() -> None:
    """One command gives everything the pod needs."""
    text = variants()[0].replace("  name: agent ", "  namespace: agents\n  name: agent ")
    edited = inject_text(text, SETTINGS).text
    manifest = "version: 1\n\ntools: {}  # none\n"
    whole = with_config_map(edited, "seawall", manifest, namespace_of(text))
    config_map, _ = yaml.safe_load_all(whole)
    assert config_map["data"]["manifest.yaml"] == manifest
    assert config_map["metadata"]["namespace"] == "agents"
    assert uninject_text(whole).text == text
    through = "---\n".join(yaml.safe_dump(document) for document in yaml.safe_load_all(whole))
    assert "ConfigMap" not in uninject_text(through).text


@pytest.mark.parametrize("text", ["a: [", "{", "\t- x", "a: !!python/object:os.x {}"])
def test_what_is_no_yaml_is_refused_with_its_place(text: str) -> None:
    """Nothing is printed that was not understood."""
    with pytest.raises(BadDocument, match=r"this is no (YAML|JSON)"):
        inject_text(text, SETTINGS)


def test_a_date_stays_text() -> None:
    """As Kubernetes reads it."""
    head = "kind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n"
    text = head + "    - name: a\n      env:\n        - {name: D, value: 2020-01-01}\n"
    edited = inject_text(text, SETTINGS)
    assert not edited.rewritten
    assert uninject_text(edited.text).text == text
