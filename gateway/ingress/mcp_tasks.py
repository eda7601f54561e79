"""Calls that go on without the request that made them, and the methods by which clients ask for them (`tasks/…`).

The rules are in `core/mcp_task.py`. What is here: the running call of each task, the questions and notifications on their
way to its client, and the journal's small memory, in which a task is durable before its client hears of it. What was still
going on when the gateway ended goes on when it starts: the call is made again as it was, and being the same step, it joins
what became of the first one.

A call that people have to approve is waited for here, for as long as the approval or the task lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.clock import Clock
from gateway.core.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Kind,
    Message,
    error_message,
    members,
    parse,
    replaced,
    request,
)
from gateway.core.mcp_era import for_legacy, for_modern
from gateway.core.mcp_session import Client
from gateway.core.mcp_task import (
    DEFAULT_TTL_MS,
    EXTENSION,
    RELATED,
    Status,
    Task,
    Tasks,
    asked_ttl,
    can_take_tasks,
)
from gateway.core.message import Headers
from gateway.core.outcome import Refusal
from gateway.core.tool import Catalog
from gateway.ingress.caller import Caller
from gateway.ingress.mcp_conversations import Conversation, Outbox
from gateway.ingress.mcp_party import Foreign, Party
from gateway.journal import Journal, JournalError

__all__ = ["METHODS", "TASK_AFTER_S", "TaskKeeper"]

METHODS: Final = frozenset({"tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update"})
TASK_AFTER_S: Final = 5.0
"""A stateless client that takes tasks gets one for a call that takes longer."""
ROUND_S: Final = 20.0

_PREFIX: Final = "mcp-task/"
_ID: Final = "seawall-task-"
_PARAMS_MAX: Final = 1 << 20
_RESULT_MAX: Final = 256 << 10
_KEPT_HEADERS: Final = frozenset(
    {b"seawall-trajectory", b"seawall-stage", b"seawall-agent", b"idempotency-key", b"traceparent", b"tracestate"}
)
_UNKNOWN: Final = "the agent's token is no longer good, so the call is not made"
_MODERN_METHODS: Final = frozenset({"tasks/get", "tasks/cancel", "tasks/update"})
_LEGACY_METHODS: Final = METHODS - {"tasks/update"}

Said = str | bytes | Foreign
Perform = Callable[[Message, Party], Awaitable[Said]]


class _Feed:
    """What goes to the client of a task that listens at `tasks/result`."""

    __slots__ = ("outbox", "questions")

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.questions: list[bytes] = []


class _Question(Outbox):
    """Where a conversation puts a question for its client: kept until it is answered, so that it can be put again."""

    __slots__ = ("_data", "_feed")

    def __init__(self, feed: _Feed) -> None:
        super().__init__()
        self._feed = feed
        self._data = b""

    def put(self, data: bytes, id: str | None = None) -> None:
        """Put it."""
        self._data = data
        self._feed.questions.append(data)
        self._feed.outbox.put(data)

    def settled(self) -> None:
        """Nobody has to answer it any more."""
        if self._data in self._feed.questions:
            self._feed.questions.remove(self._data)


@dataclass(slots=True, eq=False)
class _Going:
    """A call that goes on. `task` is None for as long as the request that made it still waits; `is_decided` once it is one,
    or is known to become none."""

    message: Message
    party: Party
    task: Task | None = None
    has_to_wait: asyncio.Event = field(default_factory=asyncio.Event)
    is_decided: asyncio.Event = field(default_factory=asyncio.Event)
    may_wait: bool = True
    held: Refusal | None = None
    feed: _Feed = field(default_factory=_Feed)
    answers: dict[str, asyncio.Future[Message]] = field(default_factory=dict)
    asked: int = 0
    work: asyncio.Task[Said] | None = None


class TaskKeeper:
    """All tasks.

    Args:
        perform: makes a call once, and says in `Party.held` if it waits for people.
        approval: says how an approval stands, waiting up to so many seconds.
        on_change: is told of each new status.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        catalog: Callable[[], Catalog],
        perform: Perform,
        approval: Callable[[str, float, Caller], Awaitable[Mapping[str, object] | Refusal]],
        on_change: Callable[[Task], None],
        tasks: Tasks | None = None,
    ) -> None:
        self.tasks = Tasks() if tasks is None else tasks
        self._journal = journal
        self._clock = clock
        self._catalog = catalog
        self._perform = perform
        self._approval = approval
        self._on_change = on_change
        self._going: dict[str, _Going] = {}
        self._delivery: dict[str, tuple[Headers, Callable[[], None] | None]] = {}
        self._background: set[asyncio.Task[Said]] = set()
        self._is_paused = False
        self.is_known: Callable[[Client], bool] = lambda client: True
        self.conversation_of: Callable[[Client], Conversation] = Conversation

    # --- a call

    async def call(self, message: Message, party: Party) -> Said:
        """Make a call: as a task where the client wants one, or takes one and has to wait for long; else as it is."""
        if (ttl_ms := asked_ttl(message.value, party.client)) is not None:
            return await self._as_asked(message, party, ttl_ms)
        if can_take_tasks(party.client):
            return await self._as_needed(message, party)
        return await self._perform(message, party)

    async def _as_asked(self, message: Message, party: Party, ttl_ms: int) -> Said:
        task = await self._opened(message, party, ttl_ms)
        if task is None:
            detail = "no task can be kept: too many, too large, or the disk refuses; make the call without `task`"
            return error_message(message.id, INTERNAL_ERROR, detail)
        going = self._begun(message, party, task)
        going.work = self._spawn(self._carried(going))
        return json.dumps({"task": task.legacy_view()})

    async def _as_needed(self, message: Message, party: Party) -> Said:
        going = self._begun(message, party, None)
        work = going.work = self._spawn(self._carried(going))
        waiting = asyncio.get_running_loop().create_task(going.has_to_wait.wait())
        try:
            await asyncio.wait((work, waiting), timeout=TASK_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                task = await self._opened(message, party, DEFAULT_TTL_MS)
                if task is not None and not work.done():
                    self._attach(going, task)
                    return replaced(task.modern_view(None), {"resultType": '"task"'})
                if task is not None:
                    self._drop(task)
                going.may_wait = False
                going.is_decided.set()
            said = await asyncio.shield(work)
        except asyncio.CancelledError:
            if going.task is None:
                work.cancel()
            raise
        finally:
            waiting.cancel()
        party.marks, party.delivered, party.exchange = going.party.marks, going.party.delivered, going.party.exchange
        return said

    async def _opened(self, message: Message, party: Party, ttl_ms: int) -> Task | None:
        """Return a new task, durable; None if there is no room for it, or it cannot be kept."""
        self.sweep()
        client, at = party.client, self._clock.at()
        params = replaced(message.params or "{}", {"task": None})
        if len(params) > _PARAMS_MAX or (slot := self.tasks.take_slot(client)) is None:
            return None
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in party.headers
            if name.lower() in _KEPT_HEADERS
        )
        task = Task(
            id=_ID + self._clock.token(),
            slot=slot,
            client=client,
            endpoint="" if party.tool is None else party.tool.name,
            params=params,
            headers=headers,
            created_at=at,
            updated_at=at,
            ttl_ms=ttl_ms,
        )
        self.tasks.add(task)
        try:
            await self._kept(task)
        except JournalError:
            self._drop(task)
            return None
        except BaseException:
            self._drop(task)
            raise
        asyncio.get_running_loop().call_later(ttl_ms / 1000 + 1, self.sweep)
        return task

    def _begun(self, message: Message, party: Party, task: Task | None) -> _Going:
        inner = Party(
            conversation=party.conversation,
            tool=party.tool,
            outbox=party.outbox,
            headers=party.headers,
            is_task=True,
        )
        going = _Going(message, inner)
        if task is not None:
            inner.outbox = going.feed.outbox
            self._attach(going, task)
        inner.asking = lambda method, params: self._asked(going, method, params)
        return going

    def _attach(self, going: _Going, task: Task) -> None:
        going.task = task
        going.party.is_detached = True
        self._going[task.id] = going
        going.is_decided.set()
        if going.held is not None:
            self._tell(task, Status.WORKING, _waits(going.held))

    def _spawn(self, work: Coroutine[object, object, Said]) -> asyncio.Task[Said]:
        task: asyncio.Task[Said] = asyncio.get_running_loop().create_task(work, name="mcp task")
        self._background.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, work: asyncio.Task[Said]) -> None:
        self._background.discard(work)
        if not work.cancelled():
            work.exception()  # Whoever waited has seen it.

    async def _carried(self, going: _Going) -> Said:
        """Make the call until nobody has to be waited for, and note what it came to."""
        try:
            said = await self._patiently(going)
        except Exception:
            said = error_message(going.message.id, INTERNAL_ERROR, "the call broke off in the gateway")
            if going.task is None:
                raise
            await self._finished(going, said)
            raise
        if going.task is not None:
            await self._finished(going, said)
        return said

    async def _patiently(self, going: _Going) -> Said:
        party = going.party
        while True:
            said = await self._perform(going.message, party)
            held = going.held = party.take_held()
            if held is None or not going.may_wait:
                return said
            going.has_to_wait.set()
            if going.task is not None:
                self._tell(going.task, Status.WORKING, _waits(held))
            if not await self._decided(going, held):
                return said
            if not self.is_known(party.client):
                return error_message(going.message.id, INVALID_REQUEST, _UNKNOWN)

    async def _decided(self, going: _Going, held: Refusal) -> bool:
        """Wait for people; whether the call is to be made again."""
        identity, client = str(held.extra.get("approval", "")), going.party.client
        while going.may_wait:
            view = await self._approval(identity, ROUND_S, Caller(client.agent or "local", is_proven=client.is_proven))
            if isinstance(view, Refusal):
                return False
            if view.get("state") != "pending":
                return True
        return False

    async def _finished(self, going: _Going, said: Said) -> None:
        task = going.task
        if task is None or self._is_paused:
            return
        result, error = (said, None) if isinstance(said, str) else (None, _error(said))
        is_tool_error = result is not None and members(result).get("isError", ("", False))[1] is True
        self._delivery[task.id] = (going.party.marks, going.party.delivered)
        # Durable before anybody sees it: a client that has its result must not find the call made again after a restart.
        at, final = self._clock.at(), replace(task)
        if final.finish(result=result, error=error, is_tool_error=is_tool_error, at=at):
            await self._kept_if_possible(final)
        if task.finish(result=result, error=error, is_tool_error=is_tool_error, at=at):
            self._on_change(task)
        self._going.pop(task.id, None)
        self.sweep()

    # --- questions of servers

    async def _asked(self, going: _Going, method: str, params: str | None) -> Message:
        """Put a server's question to the client of a task: one of its era asks for it, the other one is told where to."""
        going.asked += 1
        key = f"question-{going.asked}"
        going.has_to_wait.set()
        if going.party.client.is_modern:
            return await self._put(going, key, method, params)
        related = json.dumps({"taskId": "" if going.task is None else going.task.id})
        meta = members(params or "{}").get("_meta", ("{}", {}))[0]
        params = replaced(params or "{}", {"_meta": replaced(meta, {RELATED: related})})
        if going.task is not None:
            going.task.ask(key, json.dumps({"method": method}), self._clock.at())
            self._on_change(going.task)
        channel = _Question(going.feed)
        try:
            return await going.party.conversation.ask(channel, method, params)
        finally:
            channel.settled()
            self._settle(going, key)

    async def _put(self, going: _Going, key: str, method: str, params: str | None) -> Message:
        await going.is_decided.wait()
        if going.task is None:
            return parse(error_message('""', METHOD_NOT_FOUND, "the client cannot be asked"))
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        going.answers[key] = future
        question = json.dumps({"method": method})
        going.task.ask(key, replaced(question, {"params": params or "{}"}), self._clock.at())
        self._on_change(going.task)
        try:
            return await future
        finally:
            going.answers.pop(key, None)
            self._settle(going, key)

    def _settle(self, going: _Going, key: str) -> None:
        if going.task is not None:
            going.task.answered(key, self._clock.at())
            self._on_change(going.task)

    # --- the methods

    def is_ours(self, message: Message, party: Party) -> bool:
        """Whether a `tasks/…` request is about a task of ours, and not one of the server's."""
        if message.method == "tasks/list" or party.tool is None or party.tool.mcp is None:
            return True
        id = message.value.get("taskId")
        return party.client.is_modern or (isinstance(id, str) and id.startswith(_ID))

    async def answer(self, message: Message, party: Party) -> str | bytes:
        """Answer one of `METHODS`."""
        client = party.client
        if message.method not in (_MODERN_METHODS if client.is_modern else _LEGACY_METHODS):
            return error_message(message.id, METHOD_NOT_FOUND, f"{message.method} is not spoken in this era")
        if client.is_modern and not can_take_tasks(client):
            needed: dict[str, object] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            return error_message(message.id, MISSING_CAPABILITY, "Missing required client capability", needed)
        self.sweep()
        if message.method == "tasks/list":
            return self._list(message, client)
        task = self.tasks.of(message.value.get("taskId"), client)
        if task is None:
            return error_message(message.id, INVALID_PARAMS, "Task not found: it never was, or its time is over")
        match message.method:
            case "tasks/result":
                return await self._result(message, party, task)
            case "tasks/cancel":
                return await self._cancel(message, task)
            case "tasks/update":
                return self._update(message, task)
        return self._get(party, task)

    def _list(self, message: Message, client: Client) -> str | bytes:
        if message.value.get("cursor") is not None:
            return error_message(message.id, INVALID_PARAMS, "no such cursor: all tasks are on one page")
        return json.dumps({"tasks": [task.legacy_view() for task in self.tasks.listed(client)]})

    def _get(self, party: Party, task: Task) -> str:
        if not party.client.is_modern:
            return json.dumps(task.legacy_view())
        if task.status is Status.COMPLETED:
            self._deliver(party, task)
        return self.view(task)

    def view(self, task: Task) -> str:
        """Return a task as the newer era shows it."""
        return task.modern_view(None if task.result is None else for_modern(task.result, "tools/call"))

    def _deliver(self, party: Party, task: Task) -> None:
        party.marks, party.delivered = self._delivery.get(task.id, ((), None))

    async def _result(self, message: Message, party: Party, task: Task) -> str | bytes:
        """Wait until it is over, handing on what the server says and asks meanwhile."""
        going = self._going.get(task.id)
        if going is not None:
            for data in going.feed.questions:
                party.outbox.put(data)
            going.feed.outbox.take()
        while going is not None and not task.is_over and going.work is not None and not going.work.done():
            said = asyncio.get_running_loop().create_task(going.feed.outbox.wait())
            try:
                await asyncio.wait((going.work, said), return_when=asyncio.FIRST_COMPLETED)
            finally:
                said.cancel()
            for data in going.feed.outbox.take():
                party.outbox.put(data)
        if task.error is not None:
            return f'{{"jsonrpc":"2.0","id":{message.id},"error":{task.error}}}'.encode()
        if task.result is None:
            detail = {
                Status.CANCELLED: "the task was cancelled; what had been sent by then is finished and recorded",
                Status.COMPLETED: "the task is completed, and its result is not kept any more",
            }.get(task.status, "the gateway is shutting down; ask again")
            return error_message(message.id, INVALID_REQUEST, detail)
        self._deliver(party, task)
        result = for_legacy(task.result)
        meta = members(result).get("_meta", ("{}", {}))
        inner = replaced(meta[0] if isinstance(meta[1], dict) else "{}", {RELATED: json.dumps({"taskId": task.id})})
        return replaced(result, {"_meta": inner})

    async def _cancel(self, message: Message, task: Task) -> str | bytes:
        """Stop waiting: a read is cancelled, a write that was sent is finished and found by its next repeat."""
        if task.is_over and not task.client.is_modern:
            return error_message(message.id, INVALID_PARAMS, f"the task is {task.legacy_view()['status']} already")
        if task.tell(Status.CANCELLED, self._clock.at(), "cancelled by the client"):
            task.questions = {}
            going = self._going.pop(task.id, None)
            if going is not None and going.work is not None:
                going.work.cancel()
            await self._kept_if_possible(task)
            self._on_change(task)
        return "{}" if task.client.is_modern else json.dumps(task.legacy_view())

    def _update(self, message: Message, task: Task) -> str:
        given = members(message.params or "{}").get("inputResponses", ("{}", {}))
        going = self._going.get(task.id)
        if going is not None and isinstance(given[1], Mapping):
            for key, (raw, value) in members(given[0]).items():
                future = going.answers.get(key)
                if future is not None and not future.done() and isinstance(value, Mapping):
                    future.set_result(Message(kind=Kind.RESPONSE, id='""', result=raw, value=value))
        return "{}"

    # --- keeping them

    async def load(self) -> None:
        """Read what was kept. Broken records are dropped."""
        for name, data in (await self._journal.recall(_PREFIX)).items():
            if not data:
                continue
            try:
                self.tasks.add(Task.loaded(int(name.removeprefix(_PREFIX)), data))
            except (ValueError, KeyError, TypeError):
                self._journal.remember(name, b"")
        self.sweep()

    def resume(self) -> None:
        """Go on with what was going on."""
        for task in self.tasks.all():
            if task.is_over:
                continue
            tool = self._catalog().tools.get(task.endpoint) if task.endpoint else None
            headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in task.headers)
            party = Party(conversation=self.conversation_of(task.client), tool=tool, headers=headers)
            message = parse(request("1", "tools/call", task.params))
            going = self._begun(message, party, task)
            why = "the server of this task is no longer in the manifest" if task.endpoint and tool is None else None
            why = why if self.is_known(task.client) else _UNKNOWN
            going.work = self._spawn(self._carried(going) if why is None else self._gone(going, why))

    async def _gone(self, going: _Going, why: str) -> Said:
        said = error_message("1", INVALID_PARAMS, why)
        await self._finished(going, said)
        return said

    async def _kept(self, task: Task) -> None:
        self._journal.remember(f"{_PREFIX}{task.slot}", task.dumped(_RESULT_MAX))
        await self._journal.flush()

    async def _kept_if_possible(self, task: Task) -> None:
        """Have a task kept that its client knows already: the journal writes it as soon as it can, and in order."""
        with contextlib.suppress(JournalError):
            await self._kept(task)

    def _drop(self, task: Task) -> None:
        self.tasks.drop(task)
        self._delivery.pop(task.id, None)
        self._journal.remember(f"{_PREFIX}{task.slot}", b"")

    def sweep(self) -> None:
        """Let go of what is over. May be repeated."""
        for task in self.tasks.stale(self._clock.at()) if not self._is_paused else ():
            going = self._going.pop(task.id, None)
            if going is not None and going.work is not None:
                going.work.cancel()
            self._drop(task)

    def _tell(self, task: Task, status: Status, message: str | None) -> None:
        if task.tell(status, self._clock.at(), message):
            self._on_change(task)

    def pause(self) -> None:
        """The gateway ends: what is not over goes on when it starts again."""
        self._is_paused = True

    async def close(self) -> None:
        """Stop waiting. May be repeated."""
        self.pause()
        going = list(self._background)
        for work in going:
            work.cancel()
        if going:
            await asyncio.wait(going)


def _waits(held: Refusal) -> str:
    return f"waits for people: {held.detail}"[:1_000]


def _error(said: bytes | Foreign) -> str:
    if isinstance(said, Foreign):
        detail = f"the server answered {said.reply.status}"
        return json.dumps({"code": INTERNAL_ERROR, "message": detail, "data": {"status": said.reply.status}})
    return parse(said).error or "{}"
