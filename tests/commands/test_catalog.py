"""`seawall catalog import openapi`: from a file or a URL to a draft that `seawall check` accepts."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from pathlib import Path

from click.testing import CliRunner

from gateway.cli import main
from tests.importers.test_openapi import SHOP


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_a_file_becomes_a_draft_that_is_good(tmp_path: Path) -> None:
    document, out = tmp_path / "shop.json", tmp_path / "shop.yaml"
    document.write_text(json.dumps(SHOP))
    code, _, told = run("catalog", "import", "openapi", str(document), "--name", "shop", "--out", str(out))
    assert code == 0
    assert "9 operations" in told
    assert "2 left out" in told
    code, shown, _ = run("check", "--without-secrets", str(out))
    assert (code, "good: 1 tools, 9 operations" in shown) == (0, True)
    again, _, told = run("catalog", "import", "openapi", str(document), "--out", str(out))
    assert (again, "cannot be written" in told) == (1, True), (
        "a draft that a person may have edited is not written over"
    )


def test_a_url_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(SHOP | {"servers": [{"url": "/v3"}]}))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_port}"
            code, shown, _ = run("catalog", "import", "openapi", f"{base}/openapi.json")
            assert (code, f"upstream: {base}/v3" in shown) == (0, True)
            code, _, told = run("catalog", "import", "openapi", f"{base}/nothing.json")
            assert (code, "cannot be fetched" in told) == (1, True)
        finally:
            server.shutdown()
            thread.join()


def test_what_cannot_be_drafted_is_refused_with_the_next_step(tmp_path: Path) -> None:
    document = tmp_path / "x.json"
    document.write_text(json.dumps(SHOP | {"servers": []}))
    code, shown, told = run("catalog", "import", "openapi", str(document))
    assert (code, shown, "--upstream" in told) == (1, "", True)
    code, _, told = run("catalog", "import", "openapi", str(document), "--upstream", "ftp://x")
    assert (code, "no manifest can be made" in told) == (1, True)
    code, _, told = run("catalog", "import", "openapi", str(tmp_path / "none.json"))
    assert (code, "cannot be read" in told) == (1, True)
