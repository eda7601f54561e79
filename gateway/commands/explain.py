"""`seawall explain`: what the gateway would make of a call, without sending anything."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gateway.commands import EXIT_FINDING

if TYPE_CHECKING:
    from gateway.core.policy import Judgement
    from gateway.core.tool import Catalog, Match, Operation, ToolSpec

__all__ = ["explain"]


@click.command()
@click.argument("method")
@click.argument("target", metavar="/TOOL/PATH")
@click.option("--manifest", required=True, type=click.Path(), envvar="SEAWALL_MANIFEST", help="File or folder.")
@click.option("--agent", default="agent", show_default=True, help="Who calls, for rules.")
@click.option("--body", default=None, help="The call's JSON body, for rules.")
@click.option("--at", "moment", default=None, help="When, for rules: ISO 8601, UTC if it says nothing; default: now.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    method: str, target: str, manifest: str, agent: str, body: str | None, moment: str | None, as_json: bool
) -> None:
    """Say which operation METHOD /TOOL/PATH is, its tier and why, and what rules decide; exit code 1 if it is refused.

    Rules see a run that has only just begun.
    """
    from gateway.config.errors import ConfigError
    from gateway.config.source import ManifestSource

    try:
        catalog = ManifestSource(manifest, is_offline=True).load()
    except ConfigError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        sys.exit(EXIT_FINDING)
    facts, is_refused = _facts(catalog, method.upper(), target, _Caller(agent, body, _at(moment)))
    if as_json:
        import json

        click.echo(json.dumps(facts, indent=2))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            click.echo(f"{name:<{width}}  {_plain(value)}")
    sys.exit(EXIT_FINDING if is_refused else 0)


@dataclass(frozen=True, slots=True)
class _Caller:
    agent: str
    body: str | None
    at: int


def _at(moment: str | None) -> int:
    from datetime import UTC, datetime

    try:
        when = datetime.now(UTC) if moment is None else datetime.fromisoformat(moment)
    except ValueError:
        raise click.UsageError(f"--at {moment!r} is no time such as 2026-11-30T09:00.") from None
    return round((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _facts(catalog: Catalog, method: str, target: str, caller: _Caller) -> tuple[dict[str, object], bool]:
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
        "claim": None if operation.claim is None else f"needed, of {', '.join(operation.claim.producers) or 'anybody'}",
        "artifacts": _artifacts(operation),
        "credential": "none" if tool.credential is None else "the same for all runs",
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
    if tool.leases is not None:
        facts["credential"] = f"leased to each run ({tool.leases.kind}), {duration_text(tool.leases.ttl_s)} at most"
    if is_refused:
        facts["refused"] = "ERR_UNKNOWN_TOOL: the tool is strict and does not declare this write"
    if operation.rules:
        judgement = _judged(tool, match, method, below or "/", caller)
        facts["rules"] = {rule.name: _said(judgement, rule.name) for rule in operation.rules}
        facts["decided by"], refusal = _decided(judgement)
        if refusal is not None:
            facts["refused"], is_refused = refusal, True
    return facts, is_refused


def _judged(tool: ToolSpec, match: Match, method: str, target: str, caller: _Caller) -> Judgement:
    """Ask the rules what they would say of the call, in a run that has only just begun."""
    from gateway.core.call import Call
    from gateway.core.environment import request_env
    from gateway.core.message import Request
    from gateway.core.policy import judge, time_env
    from gateway.core.trajectory import Trajectory
    from gateway.stages.policy import call_facts, run_facts

    call = Call(
        tool=tool,
        operation=match.operation,
        request=Request(method, target.encode(), ()),
        agent=caller.agent,
        started=0.0,
        deadline=0.0,
        params=match.params,
    )
    headers = () if caller.body is None else ((b"Content-Type", b"application/json"),)
    body = b"" if caller.body is None else caller.body.encode()
    env = call_facts(call) | {
        "request": request_env(method, target, headers, body, match.params),
        "trajectory": run_facts(Trajectory(id="", agent=caller.agent, opened_at=caller.at), caller.at),
    }
    return judge(match.operation.rules, lambda rule: {**env, "time": time_env(caller.at, rule.zone)})


def _said(judgement: Judgement, rule: str) -> str:
    found = next((one for one in judgement.findings if one.rule == rule), None)
    if found is None:
        return "does not hold"
    return f"{found.effect.value}" + (f" ({found.problem})" if found.problem else "")


def _decided(judgement: Judgement) -> tuple[str, str | None]:
    """Return which rule decides, and the refusal that follows, if one does."""
    decision, shadow = judgement.decision, judgement.shadow
    told = "no rule: it passes" if decision is None else f"{decision.rule}: {decision.effect.value}"
    if shadow is not None:
        told += f"; in shadow {shadow.rule}: {shadow.effect.value}"
    if decision is None or decision.effect.value == "hold":
        return told, None
    code = "ERR_QUARANTINED" if decision.effect.value == "quarantine" else "ERR_POLICY_DENIED"
    return told, f"{code}: the rule {decision.rule}"


def _artifacts(operation: Operation) -> str | None:
    """Return the expressions that name what the call reads and writes."""
    named = operation.artifacts
    if named is None:
        return None
    reads = [one.source for one in (*named.reads, *named.answer_reads)]
    writes = [one.source for one in (*named.writes, *named.answer_writes)]
    said = [f"{verb} {', '.join(names)}" for verb, names in (("reads", reads), ("writes", writes)) if names]
    return "; ".join(said)


def _approval(operation: Operation) -> str:
    if operation.approval.value == "none":
        return "none"
    policy = operation.approved_by
    return f"{policy.required} of {', '.join(policy.approvers) or 'anyone but the agent'}"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in value.items()) or "-"
    return "-" if value is None else str(value)
