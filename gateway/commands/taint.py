"""`seawall taint`: what quarantined runs have made, what was made from that, and clearing it."""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.commands.client import (
    control_option,
    fetch,
    json_option,
    principal_option,
    reason_option,
    segment,
    show,
)

__all__ = ["taint"]

_COLOURS = {"tainted": "red", "suspect": "orange", "cleared": "green", "untainted": "black"}


@click.group()
def taint() -> None:
    """See what quarantined runs have made, and clear it."""


@taint.command("ls")
@click.option("--all", "is_all", is_flag=True, help="Artifacts that nothing is wrong with, too.")
@control_option
@json_option
def ls(is_all: bool, control: str, as_json: bool) -> None:
    """List the artifacts that are or were marked."""
    answer = fetch(control, "GET", f"/api/v1/artifacts{'?all=true' if is_all else ''}", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    show(
        [
            [
                one["artifact"],
                one["taint"],
                one["producer"] or "-",
                str(one["step"] or "-"),
                ", ".join(one["quarantines"]),
                ", ".join(one["cleared_by"]),
                one["digest"] or "",
            ]
            for one in answer["artifacts"]
        ],
        ["ARTIFACT", "TAINT", "LAST WRITTEN BY", "STEP", "QUARANTINES", "CLEARED BY", "DIGEST"],
    )


@taint.command("graph")
@click.argument("run")
@click.option("--dot", "as_dot", is_flag=True, help="Print Graphviz DOT.")
@control_option
@json_option
def graph(run: str, as_dot: bool, control: str, as_json: bool) -> None:
    """Show what RUN read and made, and what others made from that."""
    answer = fetch(control, "GET", f"/api/v1/trajectories/{segment(run)}/taint", as_json=as_json)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    elif as_dot:
        click.echo(_dot(answer))
    else:
        known = {one["artifact"]: one["taint"] for one in answer["artifacts"]}
        show(
            [
                [one["run"], str(one["step"]), one["operation"], one["does"], one["artifact"], known[one["artifact"]]]
                for one in answer["edges"]
            ],
            ["RUN", "STEP", "OPERATION", "DOES", "ARTIFACT", "TAINT"],
        )


@taint.command("clear")
@click.argument("artifact")
@click.option("--verifier", default=None, help="Ask this verifier, a gate with `clears: true`.")
@principal_option
@reason_option
@control_option
@json_option
def clear(artifact: str, verifier: str | None, principal: str, reason: str, control: str, as_json: bool) -> None:
    """Clear ARTIFACT: everybody may touch it again."""
    body = {"artifact": artifact, "verifier": verifier, "principal": principal, "reason": reason}
    one = fetch(control, "POST", "/api/v1/artifacts/clear", body, as_json=as_json)
    if as_json:
        click.echo(json.dumps(one, indent=2))
    else:
        click.echo(f"{one['artifact']}: {one['taint']}")


def _dot(answer: dict[str, Any]) -> str:
    """Return the graph in Graphviz's language: runs are boxes, artifacts ellipses in the colour of their taint."""
    runs = dict.fromkeys(one["run"] for one in answer["edges"])
    lines = ["digraph taint {", "  rankdir=LR;"]
    lines += [f"  {_quoted('run ' + name)} [shape=box];" for name in runs]
    lines += [
        f"  {_quoted(one['artifact'])} [color={_COLOURS[one['taint']]}, tooltip={_quoted(one['taint'])}];"
        for one in answer["artifacts"]
    ]
    for one in answer["edges"]:
        run, artifact = _quoted("run " + one["run"]), _quoted(one["artifact"])
        label = _quoted(f"{one['operation']} #{one['step']}")
        ends = f"{run} -> {artifact}" if one["does"] == "writes" else f"{artifact} -> {run}"
        lines.append(f"  {ends} [label={label}];")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
