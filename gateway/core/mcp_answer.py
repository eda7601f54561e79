"""From an MCP answer to an HTTP-shaped one and back, so that one table of outcomes, one journal and one replay serve both.

    what the server said                        status   what it means for the step
    a result                                    200      Success
    a result that asks for input                428      Failed: nothing was done yet; the answer to it is a new call
    a result with `isError`                     422      Failed: the tool said no
    error -32601, -32602, -32600                404/422  Failed: it was never begun
    error -32021, -32022, -32020                422      Failed: it was never begun
    any other error                             500      in doubt for a write, unless the manifest says `fails_cleanly`

The body is the `result` (or `error`) as it came, byte for byte. Of an error, the media type says so.

Refusals of ours go back as results with `isError`: a model reads those, and rarely reads errors of the protocol. A call that
waits for a person is no error: its result says so, and that the identical call asks how it stands.

Source: MCP "Tools", error handling (SEP-1303: problems with arguments are tool errors); draft SEP-3313 (tool failures).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from gateway.core.codes import Code
from gateway.core.mcp import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Message,
)
from gateway.core.message import BytesBody, Reply, first_header
from gateway.core.outcome import Refusal
from gateway.core.problem import problem

__all__ = ["PROBLEM_KEY", "is_error", "refusal_result", "reply_of", "status_of"]

PROBLEM_KEY: Final = "dev.seawall/problem"
"""Where the full refusal stands in `_meta`; a prefix of our own, as the protocol asks."""

_POLL: Final = "Make the identical call again later to learn the decision; it is sent once it is approved."
_JSON: Final = (b"Content-Type", b"application/json")
_ERROR: Final = (b"Content-Type", b"application/json; mcp=error")
_NEVER_BEGUN: Final = {
    METHOD_NOT_FOUND: 404, INVALID_PARAMS: 422, INVALID_REQUEST: 422,
    HEADER_MISMATCH: 422, MISSING_CAPABILITY: 422, UNSUPPORTED_VERSION: 422,
}  # fmt: skip


def reply_of(answer: Message) -> Reply:
    """Return a server's response as an HTTP-shaped answer."""
    headers = (_JSON,) if answer.error is None else (_ERROR,)
    text = answer.result if answer.error is None else answer.error
    return Reply(status_of(answer), b"", headers, BytesBody((text or "{}").encode()))


def status_of(answer: Message) -> int:
    """Return the status that says what the answer means."""
    if answer.error is not None:
        code = answer.value.get("code")
        return _NEVER_BEGUN.get(code, 500) if isinstance(code, int) else 500
    if answer.value.get("resultType") == "input_required":
        return 428
    return 422 if answer.value.get("isError") is True else 200


def is_error(reply: Reply) -> bool:
    """Whether a recorded answer is a JSON-RPC error."""
    return b"mcp=error" in (first_header(reply.headers, b"content-type") or b"")


def refusal_result(refusal: Refusal, *, trajectory: str | None = None, step: int | None = None) -> str:
    """Return a refusal as the result of a tool: one sentence for the model, the whole object for programs."""
    told = orjson.loads(problem(refusal, trajectory=trajectory, step=step).body)
    is_held = refusal.code is Code.HELD_FOR_APPROVAL
    text = f"{refusal.detail} {_POLL}" if is_held else refusal.detail
    result: Mapping[str, object] = {
        "content": [{"type": "text", "text": text}],
        "structuredContent": told,
        "isError": not is_held,
        "_meta": {PROBLEM_KEY: told},
    }
    return orjson.dumps(result).decode()
