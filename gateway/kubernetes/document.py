"""Puts the sidecar into YAML as people write it, comments and order kept, and takes it out byte for byte.

The text is edited at the positions that the YAML parser reports: whole lines are inserted between the comments
`# seawall:begin` and `# seawall:end`, and a line that has to change is kept there as `# seawall:was …`. So the original
text is always in the result. Each edit is checked: read again, the text must be what `sidecar.inject` makes of the
values; where it is not (flow style, anchors, JSON), that document is written anew from the values, and says so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from gateway.kubernetes.settings import InjectSettings
from gateway.kubernetes.sidecar import INJECTED, RECORD, Unsuitable, inject, is_injected, uninject

__all__ = ["BadDocument", "Edited", "inject_text", "namespace_of", "uninject_text", "with_config_map"]

_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Where each kind keeps its pod."""

_BEGIN, _WAS, _END, _CUT = "# seawall:begin", "# seawall:was ", "# seawall:end", "# seawall:no-newline"


Path = tuple[str | int, ...]
Change = Callable[[str, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
"""Takes `kind/name`, pod and the workload around it; returns the pod changed, or raises `Unsuitable`."""


class BadDocument(Exception):
    """The text is no Kubernetes YAML; the message says where."""


@dataclass(slots=True)
class Edited:
    """The new text, and what to tell about it.

    Attributes:
        changed: workloads that were changed, as `kind/name`.
        unchanged: workloads that were not, with the reason.
        rewritten: those of `changed` whose text was written anew, so that comments are gone.
    """

    text: str = ""
    changed: list[str] = field(default_factory=list)
    unchanged: list[tuple[str, str]] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads it: a date is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def inject_text(text: str, settings: InjectSettings, is_chosen: Callable[[str], bool] = lambda name: True) -> Edited:
    """Return the text with the sidecar in every workload that `is_chosen` (by `kind/name`).

    Raises:
        BadDocument: it cannot be read.
    """

    def change(name: str, pod: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
        if not is_chosen(name):
            raise Unsuitable("it was not chosen")
        if is_injected(pod):
            raise Unsuitable("it has the sidecar already")
        if settings.claim and _has_several_pods(workload):
            raise Unsuitable(
                "its pods would share one claim, but a journal has one writer; make it a StatefulSet with a "
                "volumeClaimTemplate named seawall-data"
            )
        return inject(pod, settings, _claims(workload))

    return _edit(text, change, by_line=True)


def uninject_text(text: str) -> Edited:
    """Return the text without the sidecar: as it was, wherever `inject_text` left its comments.

    Raises:
        BadDocument: it cannot be read.
    """

    def change(name: str, pod: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
        if not is_injected(pod):
            raise Unsuitable("it has no sidecar")
        return uninject(pod)

    wanted = _edit(text, change, by_line=False)
    restored = _restore(text)
    if restored == text:
        return wanted
    try:
        edited = _edit(restored, change, by_line=False)
        is_same = _meaning(edited.text) == _meaning(wanted.text)
    except BadDocument:
        is_same = False
    return Edited(edited.text, wanted.changed, wanted.unchanged, edited.rewritten) if is_same else wanted


def with_config_map(text: str, name: str, manifest: str, namespace: str | None = None) -> str:
    """Return the text with a ConfigMap in front that holds the manifest; `uninject_text` takes it out again."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": {INJECTED: "true"}}
    head = _dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    body = "".join(f"    {line}".rstrip() + "\n" for line in manifest.splitlines())
    return f"{_BEGIN}\n{head}data:\n  manifest.yaml: |\n{body}---\n{_END}\n{text}"


def namespace_of(text: str) -> str | None:
    """Return the namespace that the workloads name, if they agree on one."""
    found = {
        (value.get("metadata") or {}).get("namespace")
        for _, value in _documents(text)
        if any(True for _ in _pods(value))
    }
    return next(iter(found)) if len(found) == 1 else None


def _edit(text: str, change: Change, *, by_line: bool) -> Edited:
    edited = Edited(text)
    if text.lstrip().startswith(("{", "[")):
        return _edit_json(text, change, edited)
    lines = _Lines(text)
    for number, (node, value) in reversed(list(enumerate(_documents(text)))):
        if not by_line and _is_ours(value):
            lines.rewrite(node, "")
            continue
        new = _changed(value, change, edited)
        if new is None:
            continue
        attempt = lines.copy()
        if not by_line or not _inserted(attempt, node, number, value, new):
            edited.rewritten += [
                name for name, _, _, path in _pods(value) if _value_at(new, path) != _value_at(value, path)
            ]
            attempt = lines.copy()
            attempt.rewrite(node, _dump(new))
        lines = attempt
    edited.text = lines.text()
    edited.changed.reverse()
    edited.unchanged.reverse()
    return edited


def _inserted(lines: _Lines, node: yaml.Node, number: int, value: object, new: object) -> bool:
    """Edit the text of one document line by line; False if the result does not read as `new`."""
    try:
        for _, old, _, path in _pods(value):
            if (wanted := _value_at(new, path)) != old:
                _insert(lines, _at(node, path), old, wanted)
        return bool(_documents(lines.text())[number][1] == new)
    except (_Untouchable, BadDocument):
        return False


def _changed(value: object, change: Change, edited: Edited) -> object:
    """Return the document with its pods changed, or None if none was."""
    new = copy.deepcopy(value)
    is_changed = False
    for name, pod, workload, path in reversed(list(_pods(value))):
        try:
            _replace(new, path, change(name, pod, workload))
        except Unsuitable as reason:
            edited.unchanged.append((name, str(reason)))
        else:
            edited.changed.append(name)
            is_changed = True
    return new if is_changed else None


def _edit_json(text: str, change: Change, edited: Edited) -> Edited:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadDocument(f"this is no JSON: {error}") from None
    new = _changed(value, change, edited)
    edited.changed.reverse()
    edited.unchanged.reverse()
    if new is not None:
        edited.text = json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        edited.rewritten = list(edited.changed)
    return edited


# --- reading


def _documents(text: str) -> list[tuple[yaml.Node, Any]]:
    """Return every document that is not empty, as nodes with positions and as values."""
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
        values = list(yaml.load_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError) as error:
        raise BadDocument(_told(error)) from None
    return [(node, value) for node, value in zip(nodes, values, strict=True) if value is not None]


def _told(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"this is no YAML: {place}{getattr(error, 'problem', None) or error}"


def _pods(value: object, path: Path = ()) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], Path]]:
    """Yield name, pod, workload and path of every pod in a document."""
    if not isinstance(value, dict):
        return
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        for number, item in enumerate(value["items"]):
            yield from _pods(item, (*path, "items", number))
        return
    below = _TEMPLATES.get(str(value.get("kind")))
    if below is None:
        return
    pod = _value_at(value, below)
    name = f"{str(value['kind']).lower()}/{(value.get('metadata') or {}).get('name', '')}"
    yield name, pod if isinstance(pod, dict) else {}, value, (*path, *below)


def _has_several_pods(workload: Mapping[str, Any]) -> bool:
    replicas = (workload.get("spec") or {}).get("replicas", 1)
    return workload.get("kind") == "DaemonSet" or (isinstance(replicas, int) and replicas > 1)


def _claims(workload: Mapping[str, Any]) -> set[str]:
    """Return the volumes that a StatefulSet gives each of its pods."""
    templates = (workload.get("spec") or {}).get("volumeClaimTemplates") or []
    return {str((template.get("metadata") or {}).get("name")) for template in templates}


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            return None
    return value


def _replace(value: Any, path: Path, pod: dict[str, Any]) -> None:
    if not path:
        value.clear()
        value.update(pod)
        return
    _value_at(value, path[:-1])[path[-1]] = pod


def _meaning(text: str) -> list[object]:
    """Return every document as Kubernetes understands it."""
    return [_pruned(value) for _, value in _documents(text)]


def _pruned(value: object) -> object:
    """Return a value without empty lists and mappings, which mean the same to Kubernetes as nothing."""
    if isinstance(value, dict):
        inner = {key: _pruned(below) for key, below in value.items()}
        return {key: below for key, below in inner.items() if below not in ({}, [], None)}
    return [_pruned(below) for below in value] if isinstance(value, list) else value


def _is_ours(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") == "ConfigMap"
        and INJECTED in ((value.get("metadata") or {}).get("labels") or {})
    )


# --- editing


class _Untouchable(Exception):
    """The text cannot be edited line by line here."""


class _Lines:
    """The text as lines, and what is to become of them; positions are those of the original."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._newline = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"
        self._edits: list[tuple[int, int, list[str]]] = []

    def copy(self) -> _Lines:
        other = _Lines("")
        other._lines, other._newline, other._edits = self._lines, self._newline, list(self._edits)
        return other

    def before(self, mark: yaml.Mark) -> str:
        """Return what stands left of a position on its line."""
        return self._lines[mark.line][: mark.column]

    def insert(self, line: int, column: int, text: str) -> None:
        """Insert text, indented to a column, before a line."""
        self._edits.append((line, line, self._block(column, [], text)))

    def replace(self, first: int, last: int, column: int, text: str) -> None:
        """Put text in place of lines, which are kept as comments."""
        self._edits.append((first, last + 1, self._block(column, self._lines[first : last + 1], text)))

    def rewrite(self, node: yaml.Node, text: str) -> None:
        """Put text in place of a whole document, which is not kept."""
        first, last = node.start_mark.line, node.end_mark.line
        end = last if node.end_mark.column == 0 else last + 1
        self._edits.append((first, max(end, first + 1), [line + self._newline for line in text.splitlines()]))

    def _block(self, column: int, was: list[str], text: str) -> list[str]:
        pad = " " * column
        kept = [f"{pad}{_WAS}{line.rstrip(chr(10)).rstrip(chr(13))}" for line in was]
        lines = [f"{pad}{_BEGIN}", *kept, *(f"{pad}{line}".rstrip() for line in text.splitlines()), f"{pad}{_END}"]
        return [line + self._newline for line in lines]

    def text(self) -> str:
        lines = list(self._lines)
        is_cut = bool(lines) and not lines[-1].endswith("\n")
        if is_cut and self._edits:
            lines[-1] += self._newline
        for first, end, new in sorted(self._edits, key=lambda edit: (edit[0], edit[1]), reverse=True):
            lines[first:end] = new
        return "".join(lines) + (_CUT if is_cut and self._edits else "")


def _restore(text: str) -> str:
    kept: list[str] = []
    is_inside = False
    newline = "\r\n" if "\r\n" in text else "\n"
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if bare == _BEGIN:
            is_inside = True
        elif bare == _END and is_inside:
            is_inside = False
        elif bare == _CUT and kept:
            kept[-1] = kept[-1].rstrip("\r\n")
        elif not is_inside:
            kept.append(line)
        elif bare.startswith(_WAS.strip()):
            kept.append(line.lstrip(" ").rstrip("\r\n").removeprefix(_WAS.rstrip()).removeprefix(" ") + newline)
    return text if is_inside else "".join(kept)


def _insert(lines: _Lines, pod: yaml.Node, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Edit the text of one pod so that it reads as `new`."""
    spec = _child(pod, "spec")
    if spec is None or old == new:
        raise _Untouchable
    old_spec, new_spec = old["spec"], new["spec"]
    _insert_metadata(lines, pod, old, new)
    for key in ("initContainers", "volumes"):
        added = new_spec[key][: len(new_spec[key]) - len(old_spec.get(key) or [])]
        _add_items(lines, spec, key, added, new_spec[key])
    if new_spec["terminationGracePeriodSeconds"] != old_spec.get("terminationGracePeriodSeconds"):
        _set(lines, spec, "terminationGracePeriodSeconds", new_spec["terminationGracePeriodSeconds"])
    containers = _child(spec, "containers")
    if not isinstance(containers, yaml.SequenceNode):
        raise _Untouchable
    for node, before, after in zip(containers.value, old_spec["containers"], new_spec["containers"], strict=True):
        if before != after:
            if _is_block(node):
                _insert_variables(lines, node, before.get("env") or [], after["env"])
            else:
                _replace_item(lines, containers, node, after)


def _insert_metadata(lines: _Lines, pod: yaml.Node, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    metadata = _child(pod, "metadata")
    if metadata is None:
        _insert_key(lines, pod, {"metadata": new["metadata"]})
        return
    if not _is_block(metadata):
        _set(lines, pod, "metadata", new["metadata"])
        return
    for key, name in (("labels", INJECTED), ("annotations", RECORD)):
        entry = {name: new["metadata"][key][name]}
        child = _child(metadata, key)
        if child is None:
            _insert_key(lines, metadata, {key: entry})
        elif _is_block(child):
            _insert_key(lines, child, entry)
        else:
            _set(lines, metadata, key, new["metadata"][key])


def _insert_variables(lines: _Lines, node: yaml.Node, before: list[Any], after: list[Any]) -> None:
    added = after[: len(after) - len(before)]
    _add_items(lines, node, "env", added, after)
    env = _child(node, "env")
    if env is None or not _is_block(env):
        return
    for item, old, new in zip(env.value, before, after[len(added) :], strict=True):
        if old != new:
            _replace_item(lines, env, item, new)


def _replace_item(lines: _Lines, items: yaml.Node, item: yaml.Node, new: object) -> None:
    if not _is_block(items) or lines.before(item.start_mark).strip() != "-":
        raise _Untouchable
    lines.replace(item.start_mark.line, _last_line(item), items.start_mark.column, _dump([new]))


def _add_items(lines: _Lines, parent: yaml.Node, key: str, added: list[Any], whole: list[Any]) -> None:
    if not added:
        return
    child = _child(parent, key)
    if child is None:
        _insert_key(lines, parent, {key: added})
    elif _is_block(child):
        if lines.before(child.start_mark).strip():
            raise _Untouchable
        lines.insert(child.start_mark.line, child.start_mark.column, _dump(added))
    else:
        _set(lines, parent, key, whole)


def _insert_key(lines: _Lines, parent: yaml.Node, entry: dict[str, Any]) -> None:
    """Insert an entry into a mapping: in front, or behind its first line where a dash stands in front."""
    if not _is_block(parent) or not isinstance(parent, yaml.MappingNode):
        raise _Untouchable
    first, value = parent.value[0]
    mark = first.start_mark
    if not lines.before(mark).strip():
        lines.insert(mark.line, mark.column, _dump(entry))
        return
    is_plain = isinstance(value, yaml.ScalarNode) and value.style not in ("|", ">")
    if not is_plain or value.end_mark.line != mark.line:
        raise _Untouchable
    lines.insert(mark.line + 1, mark.column, _dump(entry))


def _set(lines: _Lines, parent: yaml.Node, key: str, value: object) -> None:
    """Write an entry of a mapping anew, or insert it."""
    child = _child(parent, key)
    if child is None:
        _insert_key(lines, parent, {key: value})
        return
    assert isinstance(parent, yaml.MappingNode)
    mark = next(name.start_mark for name, _ in parent.value if name.value == key)
    if lines.before(mark).strip():
        raise _Untouchable
    lines.replace(mark.line, _last_line(child), mark.column, _dump({key: value}))


def _child(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        raise _Untouchable
    return next((value for name, value in node.value if name.value == key), None)


def _at(node: yaml.Node, path: Path) -> yaml.Node:
    for step in path:
        below = node.value[step] if isinstance(step, int) else _child(node, step)
        if below is None:
            raise _Untouchable
        node = below
    return node


def _is_block(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and not node.flow_style and bool(node.value)


def _last_line(node: yaml.Node) -> int:
    if _is_block(node):
        last = node.value[-1]
        return _last_line(last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        raise _Untouchable
    return int(node.end_mark.line)


def _dump(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=False, width=10_000, allow_unicode=True)
