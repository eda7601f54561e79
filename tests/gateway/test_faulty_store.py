"""The whole gateway on a journal whose every method fails, takes effect and then fails, or stalls.

Whatever the store does: no request leaves without its intent on disk, no effect happens twice, nothing that was answered
with success is lost, every call ends with an answer that can be acted on, and once the store works again the runs go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from gateway.app import Gateway
from gateway.core.records import CompensationIntended, StepIntended, decode
from gateway.core.server import JournalSettings, ServerSettings
from gateway.journal.offline import verify_folder
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.verification import Verdict
from tests.gateway.harness import MANIFEST, Client, write_manifest
from tests.journal.injector import METHODS, Injector, Mode
from tests.origin import Answer, Origin

QUICK = MANIFEST.replace("first_byte: 2s, idle: 2s, total: 5s", "first_byte: 500ms, idle: 500ms, total: 700ms")
PATIENCE_S = 8.0


class FaultyGateway(Gateway):
    """A gateway on a real journal behind an injector."""

    injector: Injector

    async def _open_journal(self):
        self.injector = Injector(await super()._open_journal())
        return self.injector


@contextlib.asynccontextmanager
async def faulty(folder, port, manifest=QUICK):
    settings = ServerSettings(
        manifest=str(write_manifest(folder, port, manifest)), data=str(folder / "data"), listen="127.0.0.1:0",
        control="127.0.0.1:0", watch=False, drain=0.2, journal=JournalSettings(patience=0.3),
    )  # fmt: skip
    gateway = FaultyGateway(settings, environ={})
    await gateway.start()
    try:
        yield gateway, Client(gateway.listen), Client(gateway.control)
    finally:
        gateway.injector.mend()
        await gateway.stop()


class Agent:
    """Sends calls and remembers which were answered with the tool's own success."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answers = []
        self.acknowledged = Counter()

    async def call(self, method, target, body=None, *, run, key=None):
        answer = await asyncio.wait_for(self.client.send(method, target, body, run=run, key=key), PATIENCE_S)
        self.answers.append(answer)
        if method == "POST" and answer.status == 201:
            self.acknowledged[run] += answer.get("seawall-replayed") is None
        return answer

    async def work(self, run):
        await self.call("POST", "/pay/holds", {"n": 1}, run=run, key=f"{run}-caller")
        await self.call("POST", "/pay/holds", {"n": 1}, run=run, key=f"{run}-caller")
        await self.call("GET", "/pay/holds/h1", run=run)
        await self.call("POST", "/keyless/holds", {"n": 2}, run=run)
        await self.call("POST", "/pay/payouts", {"n": 3}, run=run)
        await self.call("GET", f"/seawall/v1/trajectories/{run}", run=run)


async def healed(gateway, operator):
    """Let the store work again, and wait until the gateway has noticed."""
    gateway.injector.mend()
    while (await operator.send("GET", "/readyz")).status != 200:
        await asyncio.sleep(0)


def scripted(origin):
    json = ((b"Content-Type", b"application/json"),)
    origin.on("POST /holds", Answer(201, b'{"id": "h1"}', json))
    origin.on("POST /payouts", Answer(201, b"{}", json))
    origin.on("POST /holds/h1/cancel", Answer(200, b"{}", json))


async def judge(folder, origin, agent):
    """Compare three accounts: what the agents were told, what the tool did, what the journal holds after a restart."""
    effects = {key: n for key, n in origin.ledger.by_key().items() if not key.startswith("POST ")}
    assert not {key: n for key, n in effects.items() if n > 1}, "an effect happened twice"
    journal = await SqliteJournal.open(folder / "data")
    intended, committed = set(), Counter()
    for head in await journal.heads(limit=1_000):
        for entry in await journal.read(head.stream):
            record = decode(entry.kind, entry.data)
            if isinstance(record, StepIntended | CompensationIntended):
                intended.add(record.key)
            committed[head.stream] += entry.kind == "StepCommitted"
    await journal.close()
    assert effects.keys() <= intended, "a request left without its intent"
    for run, count in agent.acknowledged.items():
        assert committed[run] >= count, f"run {run}: an answer was lost"
    assert verify_folder(folder / "data").verdict is Verdict.OK


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("method", METHODS)
async def test_a_gateway_keeps_its_promises_on_a_faulty_store(tmp_path, method, mode):
    async with Origin(honours_keys=False) as origin:
        scripted(origin)
        async with faulty(tmp_path, origin.port) as (gateway, client, operator):
            agent = Agent(client)
            await agent.work("before")
            gateway.injector.inject(method, mode)
            await agent.work("during")
            await asyncio.wait_for(operator.send("GET", "/readyz"), PATIENCE_S)
            await asyncio.wait_for(operator.send("GET", "/metrics"), PATIENCE_S)
            await asyncio.wait_for(healed(gateway, operator), PATIENCE_S)
            await agent.work("during")
            await agent.work("after")
        for answer in agent.answers:
            assert answer.status < 300 or answer.json["code"].startswith(("ERR_", "HELD")), answer
            assert answer.status != 500, answer.body
        assert agent.acknowledged["before"] == agent.acknowledged["after"] == 3
        await judge(tmp_path, origin, agent)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("number", range(12))
async def test_one_append_that_goes_wrong_spoils_no_other(tmp_path, number, mode):
    """Each append of the scenario in turn: intent, outcome, pivot, the record that opens the run."""
    async with Origin() as origin:
        scripted(origin)
        async with faulty(tmp_path, origin.port) as (gateway, client, operator):
            agent = Agent(client)
            gateway.injector.inject("append", mode, skip=number, count=1)
            working = asyncio.gather(agent.work("one"), agent.work("two"))
            await working
            await asyncio.wait_for(healed(gateway, operator), PATIENCE_S)
            await agent.work("three")
        assert not [answer for answer in agent.answers if answer.status == 500]
        assert agent.acknowledged["three"] == 3
        await judge(tmp_path, origin, agent)


async def test_a_look_up_that_fails_delivers_nothing(tmp_path):
    """Found by the simulation: the refusal named the step, counted as its delivery, and the next repeat paid once more."""
    async with Origin(honours_keys=False) as origin:
        scripted(origin)
        hold = asyncio.Event()
        origin.on("POST /holds", Answer(201, b'{"id": "h1"}', ((b"Content-Type", b"application/json"),), hold=hold))
        async with faulty(tmp_path, origin.port) as (gateway, client, operator):
            left = asyncio.create_task(client.send("POST", "/keyless/holds", {"n": 1}, run="r1"))
            await origin.completed()
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await left
            hold.set()
            while (await shown(client, "r1")) != "committed":
                await asyncio.sleep(0)
            gateway.injector.inject("read", Mode.FAIL)
            refused = await client.send("POST", "/keyless/holds", {"n": 1}, run="r1")
            assert refused.json["code"] == "ERR_JOURNAL_UNAVAILABLE"
            await asyncio.wait_for(healed(gateway, operator), PATIENCE_S)
            again = await client.send("POST", "/keyless/holds", {"n": 1}, run="r1")
            assert (again.status, again.get("seawall-replayed")) == (201, "true")
            assert origin.ledger.total == 1


async def shown(client, run):
    view = (await client.send("GET", f"/seawall/v1/trajectories/{run}")).json
    return view["steps"][0]["state"] if view["steps"] else ""
