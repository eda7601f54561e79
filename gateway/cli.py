"""The command line: one group, its commands in `gateway/commands/`, a line each here."""

from __future__ import annotations

import click

from gateway import __version__
from gateway.commands import LazyGroup

__all__ = ["main"]

_COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("gateway.commands.serve:serve", "Run the gateway."),
    "demo": ("gateway.demo.main:demo", "Watch a run fail, be undone, and succeed, against real tool servers."),
    "check": ("gateway.commands.check:check", "Say everything that is wrong with a manifest."),
    "explain": ("gateway.commands.explain:explain", "Say which operation a call is, its tier and why."),
    "quarantine": ("gateway.commands.quarantine:quarantine", "Lock a run or an agent away; see and lift quarantines."),
    "taint": ("gateway.commands.taint:taint", "See what quarantined runs have made, and clear it."),
    "holds": ("gateway.commands.holds:holds", "See what is held for want of proof; let it go."),
    "rules": (
        "gateway.commands.rules:rules",
        "See what rules decided about calls, and would have in shadow.",
    ),
    "schema": ("gateway.commands.schema:schema", "Print the JSON Schema of the manifest, for editors."),
    "trajectories": ("gateway.commands.trajectories:trajectories", "See runs; undo, freeze, release or close one."),
    "approvals": ("gateway.commands.approvals:approvals", "See which calls wait for people; decide."),
    "incidents": ("gateway.commands.incidents:incidents", "See frozen runs and what they need; resolve them."),
    "step": ("gateway.commands.step:step", "Say what you found out about a step."),
    "catalog": ("gateway.commands.catalog:catalog", "Draft manifests from OpenAPI documents."),
    "token": ("gateway.commands.token:token", "Issue, list and revoke tokens."),
    "ca": ("gateway.commands.ca:ca", "Make and show the authority under which HTTPS to the tools is read."),
    "tools": ("gateway.commands.tools:tools", "See and accept changed definitions of MCP tools."),
    "wrap": ("gateway.commands.wrap:wrap", "Put the gateway around one stdio MCP server, stdio in and out."),
    "journal": ("gateway.commands.journal:journal", "Look at a journal: figures, seal, copies, retention."),
    "key": ("gateway.commands.key:key", "See and rotate the keys that seal the journal."),
    "inject": ("gateway.commands.inject:inject", "Put the sidecar into Kubernetes workloads."),
    "uninject": ("gateway.commands.inject:uninject", "Take it out again, byte for byte."),
    "webhook": ("gateway.commands.webhook:webhook", "Put the sidecar into pods as they are created."),
    "health": ("gateway.commands.health:health", "Ask a gateway whether it is well."),
    "storm": ("gateway.commands.storm:storm", "Put tools and policies under stress, and measure what holds."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="seawall")
def main() -> None:
    """Seawall: an HTTP sidecar and tool gateway for AI agents.

    Exit codes: 0 all is well, 1 something was found, 2 wrong usage, 3 no gateway answered, 4 the gateway said no.
    """


if __name__ == "__main__":
    main()
