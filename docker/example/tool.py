"""A tool with an effect: POST /holds holds something, DELETE /holds/{id} lets it go, GET /holds lists what is held."""

import itertools
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

held: dict[str, str] = {}
numbers = itertools.count(1)


class Tool(BaseHTTPRequestHandler):
    """Answers JSON."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Hold; the same key holds once."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key", "")
        name = next((name for name, known in held.items() if known == key), None) or f"h{next(numbers)}"
        held[name] = key
        self._answer(201, {"id": name})

    def do_DELETE(self) -> None:
        """Let go."""
        held.pop(self.path.rsplit("/", 1)[1], None)
        self._answer(200, {})

    def do_GET(self) -> None:
        """List."""
        self._answer(200, {"held": sorted(held)})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container has to say so itself
    ThreadingHTTPServer(("", int(os.environ.get("PORT", "8000"))), Tool).serve_forever()
