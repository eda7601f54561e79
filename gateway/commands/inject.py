"""`seawall inject` and `uninject`: put the sidecar into workloads written as YAML, and take it out again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gateway.commands import EXIT_FINDING, EXIT_USAGE

if TYPE_CHECKING:
    from gateway.kubernetes.document import Edited
    from gateway.kubernetes.settings import InjectSettings

__all__ = ["inject", "uninject"]

_FILE = click.option("-f", "--filename", default="-", show_default=True, help="YAML or JSON; - is the standard input.")
_DRY = click.option("--dry-run", is_flag=True, help="Show a diff and change nothing; exit code 1 if there is one.")


@click.command()
@_FILE
@_DRY
@click.option("--manifest", type=click.Path(), help="Manifest to check and to print as the ConfigMap it needs.")
@click.option("--config-map", help="ConfigMap with `manifest.yaml`.  [default: seawall]")
@click.option("--secret", help="Secret with the tools' credentials.")
@click.option("--journal-keys", help="Key of that Secret that is the journal's key ring.")
@click.option("--claim", help="PVC for the journal.")
@click.option("--workload-volume", is_flag=True, help="The workload brings a volume named seawall-data itself.")
@click.option("--accept-journal-loss", is_flag=True, help="The journal may lie on an emptyDir and die with the pod.")
@click.option("--env", "env", multiple=True, metavar="NAME=TOOL[/PATH]", help="Variable to set to a tool's base URL.")
@click.option("--http-proxy", is_flag=True, help="Set HTTP_PROXY too, and the NO_PROXY it needs.")
@click.option("--only", multiple=True, metavar="KIND/NAME", help="Only this workload; may be repeated.")
@click.option("--container", "containers", multiple=True, help="Only this container gets the variables.")
@click.option("--image", help="The gateway's image.")
@click.option("--agents-port", help="Port of loopback where the agent connects.  [default: 8080]")
@click.option("--metrics-port", help="Port of health and metrics.  [default: 9091]")
@click.option("--settings", "settings_file", type=click.Path(), help="File with these and further settings.")
def inject(
    filename: str,
    dry_run: bool,
    manifest: str | None,
    only: tuple[str, ...],
    settings_file: str | None,
    **given: object,
) -> None:
    """Print the workloads of a file with the sidecar in them.

    Example: seawall inject -f deployment.yaml --manifest manifest.yaml --claim agent-journal | kubectl apply -f -
    """
    from gateway.config.errors import ConfigError
    from gateway.kubernetes.document import BadDocument, inject_text, namespace_of, with_config_map

    text = _read(filename)
    try:
        settings = _settings(settings_file, given, manifest)
    except ConfigError as error:
        _fail(str(error))
    wanted = {name.lower() for name in only}
    try:
        edited = inject_text(text, settings, lambda name: not wanted or name in wanted)
        _report(edited)
        if missing := wanted - set(edited.changed) - {name for name, _ in edited.unchanged}:
            _fail(f"{filename} holds no {min(missing)}; it is written as kind/name")
        if refused := [name for name, why in edited.unchanged if why not in _FINE]:
            _fail(f"nothing was printed, because the sidecar cannot be put into {', '.join(refused)}")
        if not edited.changed and not edited.unchanged:
            _fail(f"{filename} holds no workload")
        if manifest is not None and edited.changed:
            edited.text = with_config_map(
                edited.text, settings.config_map, Path(manifest).read_text("utf-8"), namespace_of(text)
            )
    except BadDocument as error:
        _fail(f"{filename}: {error}")
    _print(filename, text, edited.text, dry_run)


@click.command()
@_FILE
@_DRY
def uninject(filename: str, dry_run: bool) -> None:
    """Print the workloads of a file without the sidecar, byte for byte as they were if `inject` wrote the file."""
    from gateway.kubernetes.document import BadDocument, uninject_text

    text = _read(filename)
    try:
        edited = uninject_text(text)
    except BadDocument as error:
        _fail(f"{filename}: {error}")
    _report(edited)
    _print(filename, text, edited.text, dry_run)


_FINE = ("it was not chosen", "it has the sidecar already", "it has no sidecar")


def _settings(file: str | None, given: dict[str, object], manifest: str | None) -> InjectSettings:
    """Put file, options and what the manifest says together.

    Raises:
        ConfigError: with everything that is wrong.
    """
    from gateway.kubernetes.options import inject_settings

    options: dict[str, object] = {name: value for name, value in given.items() if value not in (None, (), False)}
    if "env" in options:
        options["env"] = dict(_pair(text) for text in _texts(options["env"]))
    if "containers" in options:
        options["containers"] = list(_texts(options["containers"]))
    return inject_settings(None if file is None else Path(file), options, None if manifest is None else Path(manifest))


def _texts(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        click.echo(f"seawall: --env {text}: expected NAME=TOOL, such as STRIPE_API_BASE=payments", err=True)
        sys.exit(EXIT_USAGE)
    return name, value


def _read(filename: str) -> str:
    try:
        data = sys.stdin.buffer.read() if filename == "-" else Path(filename).read_bytes()
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{filename}: cannot read it: {getattr(error, 'strerror', None) or 'it is not UTF-8'}")


def _report(edited: Edited) -> None:
    for name in edited.changed:
        note = " (written anew; its comments are gone)" if name in edited.rewritten else ""
        click.echo(f"{name}: changed{note}", err=True)
    for name, why in edited.unchanged:
        click.echo(f"{name}: unchanged: {why}", err=True)


def _print(filename: str, old: str, new: str, dry_run: bool) -> None:
    if not dry_run:
        sys.stdout.buffer.write(new.encode())
        return
    from difflib import unified_diff

    label = "stdin" if filename == "-" else filename
    diff = "".join(unified_diff(old.splitlines(True), new.splitlines(True), label, f"{label} (changed)"))
    click.echo(diff, nl=False)
    sys.exit(EXIT_FINDING if diff else 0)


def _fail(text: str) -> NoReturn:
    click.echo(f"seawall: {text}", err=True)
    sys.exit(EXIT_FINDING)
