"""Calls that outlive the request that made them: tasks, in the words of both eras.

A client of revision 2025-11-25 asks for a task (`task` in the call); one of 2026-07-28 says that it understands them (an
extension), and we decide. Either way the call goes on without the client, which polls for what became of it:

    working ─► input_required ─► working …          people or the server have to be asked
       └──────────────┴───────► completed | failed | cancelled        for good

A task is one agent's. What it takes to make its call again is kept with it, so that a restart goes on with it; the call
itself is a step like any other, and is not done twice for that. Its result is kept until its time is over, or until results
take too much room: then the oldest go.

Where the eras differ: of a tool's own error the older one says `failed`, the newer one `completed`.

Source: MCP 2025-11-25 "Tasks" (SEP-1686); extension io.modelcontextprotocol/tasks, 2026-07-28 (SEP-2663).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from gateway.core.mcp import elements, members, replaced
from gateway.core.mcp_session import Client

__all__ = [
    "EXTENSION",
    "LEGACY_VERSION",
    "RELATED",
    "Status",
    "Task",
    "Tasks",
    "as_tasks",
    "asked_ttl",
    "can_take_tasks",
]

EXTENSION: Final = "io.modelcontextprotocol/tasks"
RELATED: Final = "io.modelcontextprotocol/related-task"
LEGACY_VERSION: Final = "2025-11-25"
"""The one handshake revision that has tasks."""

DEFAULT_TTL_MS: Final = 3_600_000
LONGEST_TTL_MS: Final = 86_400_000
SHORTEST_TTL_MS: Final = 10_000
POLL_MS: Final = 1_000
TASKS_MAX: Final = 1_000
AGENT_MAX: Final = 200
"""Of one agent, finished ones included; so no agent fills the table."""
RESULTS_BYTES: Final = 64 << 20


class Status(StrEnum):
    """Where a task stands."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_OVER: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """One call that goes on by itself.

    Attributes:
        id: what the client knows it by; random.
        slot: where it is kept.
        client: whose it is.
        endpoint: the server that its endpoint is for; empty for all of them.
        params, headers: what it takes to make the call again; `headers` are names and values of ours alone.
        created_at, updated_at: UTC milliseconds.
        message: for people and models.
        result, error: raw JSON, once it is over; of a result that is no longer kept neither is there.
        is_tool_error: the result says `isError`.
        questions: raw requests that the client has to answer, by key.
    """

    id: str
    slot: int
    client: Client
    endpoint: str
    params: str
    headers: tuple[tuple[str, str], ...]
    created_at: int
    updated_at: int
    ttl_ms: int
    status: Status = Status.WORKING
    message: str | None = None
    result: str | None = None
    error: str | None = None
    is_tool_error: bool = False
    questions: dict[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will change any more."""
        return self.status in _OVER

    @property
    def is_paused(self) -> bool:
        """Whether it waits for the client."""
        return self.status is Status.INPUT_REQUIRED

    def tell(self, status: Status, at: int, message: str | None = None) -> bool:
        """Take a new status; what is over stays as it is. Returns whether it was taken."""
        if self.is_over:
            return False
        self.status, self.message, self.updated_at = status, message, at
        return True

    def ask(self, key: str, request: str, at: int) -> None:
        """Have the client asked. A key is used once."""
        self.questions[key] = request
        self.tell(Status.INPUT_REQUIRED, at, "the client is asked for input")

    def answered(self, key: str, at: int) -> None:
        """A question is no longer open."""
        self.questions.pop(key, None)
        if not self.questions and self.is_paused:
            self.tell(Status.WORKING, at)

    def finish(self, *, result: str | None = None, error: str | None = None, is_tool_error: bool, at: int) -> bool:
        """It came to an end. Returns whether it had not before."""
        status = Status.FAILED if error is not None else Status.COMPLETED
        told = None
        if error is not None:
            told = _text(json.loads(error).get("message"))
        elif is_tool_error:
            told = _first_text(result or "{}")
        if not self.tell(status, at, told):
            return False
        self.result, self.error, self.is_tool_error, self.questions = result, error, is_tool_error, {}
        return True

    def legacy_view(self) -> dict[str, object]:
        """Return it as revision 2025-11-25 shows it."""
        is_failed = self.status is Status.COMPLETED and self.is_tool_error
        return self._view(Status.FAILED if is_failed else self.status, "ttl", "pollInterval")

    def modern_view(self, result: str | None) -> str:
        """Return it as the extension shows it, with what it came to. `result` is the result as this era wants it."""
        parts = {key: json.dumps(value) for key, value in self._view(self.status, "ttlMs", "pollIntervalMs").items()}
        if self.status is Status.INPUT_REQUIRED:
            parts["inputRequests"] = _joined(self.questions)
        elif self.status is Status.COMPLETED and result is not None:
            parts["result"] = result
        elif self.status is Status.FAILED and self.error is not None:
            parts["error"] = self.error
        return _joined(parts)

    def _view(self, status: Status, ttl: str, poll: str) -> dict[str, object]:
        view: dict[str, object] = {
            "taskId": self.id,
            "status": status.value,
            "createdAt": _when(self.created_at),
            "lastUpdatedAt": _when(self.updated_at),
            ttl: self.ttl_ms,
            poll: POLL_MS,
        }
        return view if self.message is None else {**view, "statusMessage": self.message}

    def dumped(self, result_max: int) -> bytes:
        """Return all of it as bytes; a result of more than `result_max` characters is left out."""
        client = self.client
        value = {
            "id": self.id,
            "endpoint": self.endpoint,
            "params": self.params,
            "headers": self.headers,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "ttl_ms": self.ttl_ms,
            "status": Status.WORKING if self.is_paused else self.status,
            "message": self.message,
            "result": self.result if len(self.result or "") <= result_max else None,
            "error": self.error,
            "is_tool_error": self.is_tool_error,
            "client": [client.nonce, client.scope, client.agent, client.is_proven, client.version,
                       client.capabilities, client.info, client.is_modern],
        }  # fmt: skip
        return json.dumps(value).encode()

    @classmethod
    def loaded(cls, slot: int, data: bytes) -> Task:
        """Read what `dumped` wrote."""
        value = json.loads(data)
        nonce, scope, agent, is_proven, version, capabilities, info, is_modern = value.pop("client")
        client = Client(
            nonce=nonce, scope=scope, agent=agent, is_proven=is_proven, version=version, capabilities=capabilities,
            info=info, is_modern=is_modern,
        )  # fmt: skip
        value["status"] = Status(value["status"])
        value["headers"] = tuple((name, text) for name, text in value["headers"])
        return cls(slot=slot, client=client, **value)


class Tasks:
    """All of them. Bounded in number, for each agent too, and in what their results take."""

    def __init__(
        self, limit: int = TASKS_MAX, agent_limit: int = AGENT_MAX, results_bytes: int = RESULTS_BYTES
    ) -> None:
        self._limit = limit
        self._agent_limit = agent_limit
        self._results_bytes = results_bytes
        self._known: dict[str, Task] = {}
        self._free = list(range(limit - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Task]:
        """Return all, the oldest first."""
        return list(self._known.values())

    def take_slot(self, client: Client) -> int | None:
        """Return a free slot for a client's new task, None if there is no room for one."""
        own = sum(_owner(task.client) == _owner(client) for task in self._known.values())
        return self._free.pop() if self._free and own < self._agent_limit else None

    def add(self, task: Task) -> None:
        """Keep a task in the slot that was taken for it, or that it had before a restart."""
        if task.slot in self._free:
            self._free.remove(task.slot)
        self._known[task.id] = task

    def of(self, id: object, client: Client) -> Task | None:
        """Return a client's task. Those of other agents are as good as unknown."""
        task = self._known.get(id) if isinstance(id, str) else None
        return task if task is not None and _owner(task.client) == _owner(client) else None

    def listed(self, client: Client) -> list[Task]:
        """Return a client's tasks, the newest first."""
        return [task for task in reversed(self._known.values()) if _owner(task.client) == _owner(client)]

    def drop(self, task: Task) -> None:
        """Forget a task."""
        if self._known.pop(task.id, None) is not None:
            self._free.append(task.slot)

    def stale(self, at: int) -> list[Task]:
        """Return the tasks that have to go: their time is over, or their results take too much room, oldest first."""
        gone = [task for task in self._known.values() if at >= task.created_at + task.ttl_ms]
        kept = [task for task in self._known.values() if task.is_over and task not in gone]
        size = sum(len(task.result or "") for task in kept)
        for task in sorted(kept, key=lambda one: one.updated_at)[:-1]:
            if size <= self._results_bytes:
                break
            size -= len(task.result or "")
            gone.append(task)
        return gone


def as_tasks(result: str, client: Client) -> str:
    """Return a `tools/list` result in which every tool may be called as a task, for a client that goes by that; the rest
    keeps its bytes."""
    if client.is_modern or client.version != LEGACY_VERSION:
        return result
    raw, tools = members(result).get("tools", ("[]", []))
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        return result
    return replaced(result, {"tools": f"[{','.join(map(_as_task, elements(raw)))}]"})


def _as_task(tool: str) -> str:
    execution = members(tool).get("execution", ("{}", {}))
    own = execution[0] if isinstance(execution[1], dict) else "{}"
    return replaced(tool, {"execution": replaced(own, {"taskSupport": '"optional"'})})


def can_take_tasks(client: Client) -> bool:
    """Whether a stateless client says that it understands tasks."""
    extensions = client.capabilities.get("extensions")
    return client.is_modern and isinstance(extensions, Mapping) and isinstance(extensions.get(EXTENSION), Mapping)


def asked_ttl(params: Mapping[str, object], client: Client) -> int | None:
    """Return for how long a client of 2025-11-25 wants its call to be a task, in milliseconds; None if it wants none."""
    asked = params.get("task")
    if client.is_modern or client.version != LEGACY_VERSION or not isinstance(asked, Mapping):
        return None
    ttl = asked.get("ttl")
    if not isinstance(ttl, int | float) or isinstance(ttl, bool) or ttl != ttl:
        return DEFAULT_TTL_MS
    return int(max(SHORTEST_TTL_MS, min(ttl, LONGEST_TTL_MS)))


def _owner(client: Client) -> tuple[str, bool]:
    return client.agent, client.is_proven


def _when(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _first_text(result: str) -> str | None:
    content = json.loads(result).get("content")
    first = content[0] if isinstance(content, list) and content else None
    return _text(first.get("text")) if isinstance(first, dict) else None


def _text(value: object) -> str | None:
    return value[:1_000] if isinstance(value, str) else None


def _joined(parts: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{raw}" for key, raw in parts.items()) + "}"
