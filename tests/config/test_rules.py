"""What must hold between fields is checked, with the place of the field that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.manifests import complaint, load, tool, write

COMPENSATED = "tier: compensable, compensator: DELETE /a"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tool("x: {match: POST /a, tier: compensable}"), "m.yaml:5:33: a compensable operation needs a `compensator`"),
        (tool("x: {match: POST /a, tier: pivot, compensator: DELETE /a}"), "m.yaml:5:53: a pivot cannot be undone"),
        (tool("x: {match: GET /a, tier: read, compensator: DELETE /a}"), "a read has no effect"),
        (tool(f"x: {{match: POST /a, {COMPENSATED}, journal: lazy}}"), "`journal: lazy` is for reversible"),
        (tool("x: {match: POST /a, tier: reversible, approval: required}"), "`approval` is for pivot and compensable"),
        (tool("x: {match: POST /a, tier: pivot, probe: GET /a}"), "needs `landed` or `not_landed`"),
        (
            tool("x: {match: POST /a, tier: pivot, probe: {request: GET /a, landed: 'true', json: {}, body: x}}"),
            "`json` and `body` exclude each other",
        ),
        (
            tool("x: {match: POST /a, tier: pivot, probe: {request: 'GET /${response.json.id}', landed: 'true'}}"),
            "`response` is not known here: a probe is sent for a step whose answer never came",
        ),
        (
            tool("x: {match: POST /a, tier: pivot, probe: {request: DELETE /a, landed: 'true'}}"),
            "a probe is a read",
        ),
        (tool("x: {match: 'POST /${response.json.id}', tier: pivot}"), "no value is known before the call"),
        (
            tool("x: {match: 'POST /a/{b}', tier: pivot}\ny: {match: 'POST /a/{c}', tier: read}"),
            "m.yaml:6:18: `y` and `x` (at m.yaml:5:18) match the same calls",
        ),
        (tool("X: {match: POST /a, tier: pivot}"), "`X` is not a name for an operation"),
        (tool("x: {match: POST /a, tier: pivot, postcondition: respons.ok}"), "did you mean `response`?"),
        (
            tool("x: {match: POST /a, tier: compensable, compensator: {request: DELETE /a, tool: pai}}"),
            "unknown tool `pai` (did you mean `pay`?)",
        ),
        (
            tool(more="    domain: sas\n") + "domains: {saas: {}}\n",
            "m.yaml:4:13: unknown domain `sas` (did you mean `saas`?)",
        ),
        ("tools: {seawall: {upstream: http://a}}", "`seawall` is reserved"),
        ("tools: {'a b': {upstream: http://a}}", "`a b` is not a name for a tool"),
        ("tools: {a: {upstream: ftp://a}}", "must begin with `http://`"),
        ("tools: {a: {upstream: 'http://u:hunter2@a'}}", "must not hold a user"),
        ("tools: {a: {upstream: 'http://a?x'}}", "must not hold a query"),
        ("tools: {a: {upstream: 'http://a#x'}}", "must not hold a fragment"),
        ("tools: {a: {upstream: 'http:///x'}}", "names no host"),
        ("tools: {a: {upstream: 'http://a:99999'}}", "not a URL"),
        ("tools: {a: {upstream: 'http://a/../b'}}", "a path that is not plain"),
        ("tools: {a: {upstream: 'http://é'}}", "xn-- form"),
        ("tools: {a: }", "`upstream` is required"),
        (tool(more="    idempotency: {header: 'a b'}\n"), "not a header name"),
        (tool(more="    credentials: {header: 'a:b', value: x}\n"), "not a header name"),
        (tool(more="    credentials: {value: '${key}'}\n"), "no expressions"),
        (tool(more="    credentials: {value: '${secret:zip}'}\n"), "secret `zip` is missing"),
        (tool(more="    breaker: {window: 20, minimum: 30}\n"), "`minimum` (30) must be at most `window` (20)"),
        (tool(more="    breaker: {cooldown: 20m}\n"), "`cooldown` (1200 s) must be at most `max_cooldown` (600 s)"),
        (tool(more="    retry: {base: 40s}\n"), "`base` (40 s) must be at most `cap` (30 s)"),
        ("domains: {a: {concurrency: 2, reserved: 2}}", "`reserved` (2) must be less than `concurrency` (2)"),
        ("secrets: {a: {}}", "needs either `file` or `env`"),
        ("secrets: {a: {file: x, env: y}}", "needs either `file` or `env`"),
        ("include: [gone.yaml]", "gone.yaml`: No such file or directory (did you mean `m.yaml`?)"),
        ('include: ["a\\0b"]', "cannot read"),
        ("include: [m.yaml]", "`m.yaml` includes itself"),
        ("tols: {}", "unknown key `tols` (did you mean `tools`?)"),
        ("version: 2", "`version` must be at most 1"),
        ("tools: []", "`tools`: expected a mapping of names"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    """A message begins with file:line:column and ends with the next step."""
    found = complaint(write(tmp_path, m=text))
    assert expected in found
    assert "hunter2" not in found


def test_one_slot_needs_no_word_about_the_reserve(tmp_path: Path) -> None:
    """The default reserve would leave nothing."""
    domain = load(write(tmp_path, m="domains: {d: {concurrency: 1}}")).domains["d"]
    assert (domain.admission.concurrency, domain.admission.reserved) == (1, 0)


def test_upstreams_are_read(tmp_path: Path) -> None:
    """Ports, prefixes, IPv6."""
    text = "tools: {a: {upstream: 'https://[::1]:8443/v2/'}, b: {upstream: HTTP://Example.COM}}"
    tools = load(write(tmp_path, m=text)).tools
    assert (tools["a"].upstream.origin, tools["a"].upstream.prefix) == ("https://[::1]:8443", "/v2")
    assert (tools["b"].upstream.origin, tools["b"].upstream.authority) == ("http://example.com:80", "example.com")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unix:run/x.sock", "`upstream` names no file after `unix:`"),
        ("unix:/run/", "`upstream` names no file after `unix:`"),
        ("unix:/run/x.sock:v2", "`upstream` has a prefix that is not plain"),
        ("unix:/run/x.sock:/../v2", "`upstream` has a prefix that is not plain"),
        ("unix:/run/x.sock?a", "`upstream` holds a character that a socket's path may not"),
        (f"unix:/run/{'x' * 120}.sock", "`upstream` names a path of more than 107 bytes"),
    ],
)
def test_a_sockets_path_must_be_one(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(write(tmp_path, m=f"tools: {{pay: {{upstream: '{text}'}}}}\n"))


def test_a_socket_is_an_upstream(tmp_path: Path) -> None:
    upstream = load(write(tmp_path, m="tools: {pay: {upstream: 'unix:/run/x.sock:/v2/'}}\n")).tools["pay"].upstream
    assert (upstream.socket, upstream.prefix, upstream.authority) == ("/run/x.sock", "/v2", "localhost")
    assert upstream.origin == "unix:/run/x.sock"


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ("{allow: ['x a']}", "m.yaml:4:23: `x a` is not a header name (letters, digits and `-`, perhaps a `*` behind)"),
        ("{allow: [x-*-y]}", "`x-*-y` is not a header name"),
        ("{deny: ['']}", "is not a header name"),
        ("{allow: [Host]}", "`Host` never reaches a tool as the agent sent it (remove it)"),
        ("{allow: [transfer-encoding]}", "never reaches a tool"),
        ("{alow: [x]}", "unknown key `alow` (did you mean `allow`?)"),
    ],
)
def test_lists_of_header_fields_hold_names(tmp_path: Path, lists: str, said: str) -> None:
    text = f"tools:\n  pay:\n    upstream: http://a\n    headers: {lists}\n"
    assert said in complaint(write(tmp_path, m=text))


def test_what_may_replace_method_or_path_is_named(tmp_path: Path) -> None:
    """A tool's own list holds for each of its operations; a list of fields that names one of them means it too."""
    lists = "    overrides: [X-HTTP-Method]\n    headers: {allow: [accept, X-Original-URL, 'x-*']}\n"
    declared = "x: {match: POST /a, tier: pivot, overrides: [_METHOD]}\nz: {match: GET /a, tier: read}"
    operations = load(write(tmp_path, m=tool(declared, lists))).tools["pay"].operations
    own = {"x-http-method", "x-original-url"}
    assert operations["x"].overrides == own | {"_method"}
    assert operations["z"].overrides == operations["undeclared:read"].overrides == own
    assert operations["undeclared:write"].overrides == own


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            tool(more="    overrides: [X-Http-Methods]\n"),
            "m.yaml:4:17: `X-Http-Methods` is nothing that is known to replace method or path (did you mean `x-http-method`",
        ),
        (tool("x: {match: POST /a, tier: pivot, overrides: [method]}"), "`method` is nothing that is known to replace"),
        ("tools: {a: {mcp: {url: 'http://a'}, overrides: [_method]}}", "calls of an MCP server have no method"),
    ],
)
def test_nothing_else_can_be_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(write(tmp_path, m=text))
