"""`http-cache-tests`: 350 cases of what intermediaries do to HTTP, through the gateway, against the list in docs/suites.

The gateway is no cache, so most of what asks for one fails. What matters: nothing that passes without the gateway fails
through it, and what fails is on the list with its reason. `python -m tests.suites.test_http_cache` prints the page anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.gateway.harness import serving
from tests.suites.rig import ROOT, TOOL, node, run

SUITE = ROOT / "tests/suites/npm/node_modules/http-cache-tests"
PAGE = ROOT / "docs/suites/http-cache-tests.md"

REASONS = {
    "cache": "It asks for an answer out of a cache. The gateway has none: every call goes to the tool.",
    "conditional": "It asks for a request made conditional by a cache; where it was not, the suite's server answers 999, "
    "which is no status of HTTP, and the gateway says 502.",
    "doubt": "It looks at a write that the tool answers with 500. That may have had its effect, so the gateway says 409 "
    "(`ERR_OUTCOME_UNKNOWN`) and not that it failed.",
    "broken": "The tool's answer is broken: a Content-Length that is not its body's, or a transfer coding nobody knows. The "
    "gateway says 502; without it the client finds a parse error, or takes what it gets.",
    "hangs up": "The tool hangs up without an answer. The gateway says 502, which the suite takes for an answer out of a "
    "cache, as it has no number of the tool's; without the gateway the client's request fails.",
    "changes": "It asks a cache to change what the agent sends (quotes around an ETag, Range, Surrogate-Capability), or to "
    "answer in the tool's place (`only-if-cached`).",
}


def reason(case: str, said: str) -> str:
    """Return which of `REASONS` a failure is."""
    if case.startswith("stale-close") and said.endswith(" comes from cache"):
        return "hangs up"
    if case.endswith(("-Content-Length", "headers-store-Transfer-Encoding")) and "Response 1 status is 502" in said:
        return "broken"
    for pattern, name in (
        (r"Response \d does not come from cache", "cache"),
        (r'Response 2 header Template-A is "null", not "1"', "cache"),
        (r"Response 2 status is 502, not 200", "conditional"),
        (r"Response 2 status is 409, not 500", "doubt"),
        (r"Response 1 status is 200, not 504|Request \d (header|Surrogate)", "changes"),
    ):
        if re.match(pattern, said):
            return name
    return "unexplained"


async def results(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the suite says of each case, directly and through the gateway; "" for one that passes."""
    port = await _free_port()
    environment = {
        **{f"npm_{kind}_{name}": value for kind in ("config", "package_config") for name, value in
           (("id", ""), ("protocol", "http"), ("port", str(port)), ("pidfile", str(folder / "pid")))},
    }  # fmt: skip
    server = await asyncio.create_subprocess_exec(
        node(), "--no-warnings", "server/server.mjs", cwd=SUITE, env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert b"Listening" in await server.stdout.readline()
        text = TOOL.replace("NAME", "cache").replace("127.0.0.1", "localhost")
        async with serving(folder, port, text) as running:
            return (
                await _client(environment, f"http://localhost:{port}"),
                await _client(environment, f"http://127.0.0.1:{running.agent.port}/cache"),
            )
    finally:
        server.kill()
        await server.wait()


async def _client(environment: dict[str, str], base: str) -> dict[str, str]:
    code, printed = await run(
        node(), "--no-warnings", "cli.mjs", folder=SUITE, environment={**environment, "npm_config_base": base}
    )
    assert code == 0, printed
    found = json.loads(printed[printed.index("{") :])
    return {case: "" if said is True else said[1] for case, said in found.items()}


async def _free_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "localhost", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def page(direct: dict[str, str], through: dict[str, str]) -> str:
    """Return the page."""
    failing = {case: said for case, said in sorted(through.items()) if said}
    kinds = {case: reason(case, said) for case, said in failing.items()}
    lines = [
        "# http-cache-tests through the gateway",
        "",
        "The npm package `http-cache-tests` 0.4.5 against its own server, through a tool of the gateway. Held up to date by",
        "`tests/suites/test_http_cache.py`, written by `python -m tests.suites.test_http_cache`.",
        "",
        f"{len(through)} cases; {len(through) - len(failing)} pass through the gateway and "
        f"{sum(not said for said in direct.values())} without it. No case that passes without it fails through it.",
        "",
        "| reason | cases | why |",
        "|---|---|---|",
        *(f"| {kind} | {list(kinds.values()).count(kind)} | {why} |" for kind, why in REASONS.items()),
        "",
        "| case | what the suite says | reason |",
        "|---|---|---|",
        *(f"| `{case}` | {said} | {kinds[case]} |" for case, said in failing.items()),
        "",
    ]
    return "\n".join(lines)


async def test_what_fails_is_on_the_list_with_its_reason_and_nothing_fails_through_the_gateway_alone(
    tmp_path: Path,
) -> None:
    direct, through = await results(tmp_path)
    assert len(through) == 350
    assert [case for case, said in through.items() if said and not direct[case]] == []
    assert [case for case, said in through.items() if said and reason(case, said) == "unexplained"] == []
    assert page(direct, through) == PAGE.read_text()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.stdout.write(page(*asyncio.run(results(Path(made)))))
