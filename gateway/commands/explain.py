"""`seawall explain`: what the gateway would make of a call, without sending anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING

if TYPE_CHECKING:
    from gateway.core.tool import Catalog, Operation

__all__ = ["explain"]


@click.command()
@click.argument("method")
@click.argument("target", metavar="/TOOL/PATH")
@click.option("--manifest", required=True, type=click.Path(), envvar="SEAWALL_MANIFEST", help="File or folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(method: str, target: str, manifest: str, as_json: bool) -> None:
    """Say which operation METHOD /TOOL/PATH is, its tier and why; exit code 1 if the call would be refused."""
    from gateway.config.errors import ConfigError
    from gateway.config.source import ManifestSource

    try:
        catalog = ManifestSource(manifest, is_offline=True).load()
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(EXIT_FINDING)
    facts, is_refused = _facts(catalog, method.upper(), target)
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            click.echo(f"{name:<{width}}  {_plain(value)}")
    sys.exit(EXIT_FINDING if is_refused else 0)


def _facts(catalog: Catalog, method: str, target: str) -> tuple[dict[str, object], bool]:
    from gateway.config.errors import nearest
    from gateway.config.schema import duration_text
    from gateway.core.settle import how_settled
    from gateway.core.tool import AmbiguousPath

    name, slash, rest = target.removeprefix("/").partition("/")
    name, question, query = name.partition("?")
    below = slash + rest if slash else question + query
    call = {"call": f"{method} {target}"}
    tool = catalog.tools.get(name)
    if tool is None:
        hint = nearest(name, catalog.tools)
        return {**call, "refused": f"ERR_UNKNOWN_TOOL: no tool `{name}`" + (f" ({hint})" if hint else "")}, True
    try:
        match = tool.match(method, below or "/")
    except AmbiguousPath as error:
        return {**call, "tool": name, "refused": f"ERR_INVALID_ARGUMENTS: {error}"}, True
    operation = match.operation
    is_refused = tool.is_strict and not operation.is_declared and not operation.is_read
    facts: dict[str, object] = {
        **call,
        "tool": name,
        "operation": operation.name,
        "tier": str(operation.tier.value),
        "why": match.reason,
        "params": dict(match.params),
        "sent to": f"{method} {tool.upstream.origin}{tool.upstream.prefix}{below or '/'}",
        "domain": tool.domain.name,
        "journal": "lazily" if operation.is_read else operation.journal.value,
        "approval": _approval(operation),
        "gates": ", ".join(gate.name for gate in operation.gates) or None,
        "leaves": "with the run's pivot" if operation.is_staged else "at once",
        "undone by": operation.compensator.request.source if operation.compensator else None,
        "probed by": operation.probe.request.source if operation.probe else None,
        "in doubt": None if operation.is_read else how_settled(tool, operation),
        "key header": tool.idempotency.header if tool.idempotency and not operation.is_read else None,
        "time": f"{duration_text(operation.timeouts.total)} in all, {duration_text(operation.timeouts.first_byte)} "
        "to the first byte",
        "attempts": tool.retry.attempts,
        "breaker": tool.upstream.origin,
    }
    if is_refused:
        facts["refused"] = "ERR_UNKNOWN_TOOL: the tool is strict and does not declare this write"
    return facts, is_refused


def _approval(operation: Operation) -> str:
    if operation.approval.value == "none":
        return "none"
    policy = operation.approved_by
    return f"{policy.required} of {', '.join(policy.approvers) or 'anyone but the agent'}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in value.items()) or "-"
    return "-" if value is None else str(value)
