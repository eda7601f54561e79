"""A server over stdio that says what it should not: too much, or what is no message. Tools are named for how."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = ("huge", "twisted", "noisy", "loud", "well")
READ = {"readOnlyHint": True}


def say(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def answer(id: Any, result: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())


def call(id: Any, name: str) -> None:
    if name == "huge":
        answer(id, {"content": [{"type": "text", "text": "x" * (2 << 20)}]})
        return
    if name == "twisted":
        answer(id, 5)
        return
    if name == "noisy":
        for noise in (
            b"listening on stdio",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"jsonrpc":"2.0","id":99999,"result":{}}',
            b"{",
        ):
            say(noise)
    if name == "loud":
        sys.stderr.write("y" * (2 << 20))
        sys.stderr.flush()
    answer(id, {"content": [{"type": "text", "text": f"{name} done"}]})


for line in sys.stdin:
    message = json.loads(line)
    match message["method"]:
        case "initialize":
            greeting = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            answer(message["id"], {**greeting, "serverInfo": {"name": "misbehaving", "version": "1"}})
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}, "annotations": READ} for name in TOOLS]
            answer(message["id"], {"tools": tools})
        case "tools/call":
            call(message["id"], message["params"]["name"])
