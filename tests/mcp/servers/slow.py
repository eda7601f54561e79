"""A server of few words whose one tool never answers: it writes down what else it is told."""

import json
import sys

GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "slow", "version": "1"},
}
TOOL = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
ANSWERS = {"initialize": GREETING, "tools/list": {"tools": [TOOL]}}

for line in sys.stdin:
    message = json.loads(line)
    if (result := ANSWERS.get(message["method"])) is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
    else:
        with open(sys.argv[1], "a") as seen:
            seen.write(line)
