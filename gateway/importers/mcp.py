"""An MCP server as a draft: it is greeted as the gateway would greet it, and asked for its tools, page by page.

The server is described by the very manifest that the draft will hold, so what could be reached here can be reached there.
Secrets are resolved for the connection only; the draft names them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.clock import SystemClock
from gateway.config.errors import ConfigError
from gateway.config.source import ManifestSource
from gateway.core.draft import DraftTool, slug
from gateway.core.draft_calls import drafted
from gateway.core.fault import Broken
from gateway.core.mcp import Message
from gateway.core.mcp_tools import Definition, definitions
from gateway.core.message import Reply
from gateway.core.tool import ToolSpec
from gateway.egress import Timings
from gateway.egress.direct import DirectEgress
from gateway.egress.mcp import McpEgress
from gateway.egress.mcp_link import Answer, Exchange
from gateway.egress.spool import Spool
from gateway.importers.openapi import ImportProblem

__all__ = ["Server", "draft_mcp"]

PAGES_MAX: Final = 1_000
TOOLS_MAX: Final = 10_000
_PROVISIONAL: Final = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server is reached: by `url`, or by `command` with further `environment` variables.

    `credential` is header and value; the value, like those of `environment`, may hold `${secret:NAME}`.
    """

    url: str | None = None
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    credential: tuple[str, str] | None = None

    def lines(self) -> tuple[str, ...]:
        """Return the lines of a manifest's tool that say so."""
        mcp: dict[str, object] = {"url": self.url} if self.url is not None else {"command": list(self.command)}
        if self.environment:
            mcp["environment"] = dict(self.environment)
        found = [f"mcp: {json.dumps(mcp)}"]
        if self.credential is not None:
            header, value = self.credential
            found.append(f"credentials: {json.dumps({'header': header, 'value': value})}")
        return tuple(found)


async def draft_mcp(
    server: Server, *, name: str | None = None, secrets: str | None = None, timeout_s: float = 30.0
) -> tuple[DraftTool, str]:
    """Return the draft of a server and what it calls itself. It is asked to list its tools; none is called.

    Args:
        server: how it is reached.
        name: of the tool; else made from the server's own.
        secrets: folder with a file per secret.
        timeout_s: bounds each request to it, its start included.

    Raises:
        ImportProblem: it cannot be reached, or does not list its tools.
    """
    with tempfile.TemporaryDirectory() as folder:
        tool = _spec(server, Path(folder), secrets)
        spool = Spool(Path(folder, "spool"))
        egress = McpEgress(DirectEgress(spool), SystemClock())
        try:
            timings = Timings(connect_s=timeout_s, first_byte_s=timeout_s, idle_s=timeout_s, total_s=timeout_s)
            found, info = await _listed(egress, tool, timings)
        finally:
            await egress.close()
            spool.close()
    title = str(info.get("title") or info.get("name") or "an MCP server")
    operations, pairs, notes = drafted(found)
    drafted_tool = DraftTool(
        name=name or slug(str(info.get("name") or "server")),
        where=server.lines(),
        operations=operations,
        pairs=pairs,
        notes=notes,
    )
    return drafted_tool, f"{title} {info.get('version', '')}".strip()


def _spec(server: Server, folder: Path, secrets: str | None) -> ToolSpec:
    text = "\n".join(["version: 1", "tools:", f"  {_PROVISIONAL}:", *(f"    {line}" for line in server.lines())])
    path = folder / "manifest.yaml"
    path.write_text(text + "\n", encoding="utf-8")
    try:
        return ManifestSource(path, secrets=secrets).load().tools[_PROVISIONAL]
    except ConfigError as error:
        problem = error.problems[0]
        hint = f" ({problem.hint})" if problem.hint else ""
        raise ImportProblem(f"{problem.message}{hint}") from None


async def _listed(
    egress: McpEgress, tool: ToolSpec, timings: Timings
) -> tuple[Sequence[Definition], Mapping[str, object]]:
    session = await egress.session(tool, Exchange().client, timings)
    if isinstance(session, Reply | Broken):
        raise ImportProblem(_why(session))
    info = session.facts.info
    if "tools" not in session.facts.capabilities:
        raise ImportProblem("it offers no tools")
    found: list[Definition] = []
    seen: set[str] = set()
    params: str | None = None
    for _ in range(PAGES_MAX):
        answer = await egress.request(tool, "tools/list", params, Exchange(), timings)
        if not isinstance(answer, Message) or answer.result is None:
            raise ImportProblem(_why(answer))
        try:
            found += definitions(answer.result)
        except ValueError as error:
            raise ImportProblem(f"its answer is not a list of tools: {error}") from None
        cursor = answer.value.get("nextCursor")
        if not isinstance(cursor, str):
            return found, info
        if cursor in seen or len(found) > TOOLS_MAX:
            break
        seen.add(cursor)
        params = json.dumps({"cursor": cursor})
    raise ImportProblem(f"its list does not end after {len(found)} tools")


def _why(answer: Answer) -> str:
    if isinstance(answer, Broken):
        return answer.detail.replace(f"{_PROVISIONAL} ", "it ").replace(f"of {_PROVISIONAL}", "of it")
    if isinstance(answer, Reply):
        wants = " It wants a credential: name one with --credential." if answer.status in (401, 403) else ""
        return f"it answered {answer.status}.{wants}"
    return str(answer.value.get("message") or "it answered with an error")
