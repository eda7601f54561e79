"""The interface: toxiproxy's documents, and errors that say what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from gateway.storm.faultproxy.api import FaultProxies, api
from gateway.storm.faultproxy.script import acts_of
from gateway.storm.faultproxy.toxics import HTTP, STREAM, Toxic, ToxicError
from tests.gateway.harness import Client
from tests.origin import Answer, Origin


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    async with Origin() as serving:
        serving.on("GET /x", Answer(200, b"fine"))
        yield serving


@pytest.fixture
async def proxies() -> AsyncIterator[FaultProxies]:
    links = FaultProxies()
    yield links
    await links.close()


@pytest.fixture
async def client(proxies: FaultProxies) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    async with TestClient(TestServer(api(proxies))) as made:
        yield made


async def test_a_client_of_toxiproxy_finds_what_it_knows(client: TestClient, origin: Origin) -> None:  # type: ignore[type-arg]
    made = await client.post(
        "/proxies", json={"name": "x", "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{origin.port}"}
    )
    assert made.status == 201
    where = (await made.json())["listen"]
    added = await client.post("/proxies/x/toxics", json={"type": "latency", "attributes": {"latency": 5}})
    assert await added.json() == {
        "name": "latency_downstream",
        "type": "latency",
        "stream": "downstream",
        "toxicity": 1.0,
        "attributes": {"latency": 5.0, "jitter": 0.0},
    }
    changed = await client.post("/proxies/x/toxics/latency_downstream", json={"attributes": {"latency": 1}})
    assert (await changed.json())["attributes"]["latency"] == 1
    assert (await Client(f"http://{where}").send("GET", "/x")).body == b"fine"
    assert [seen["target"] for seen in await (await client.get("/proxies/x/requests")).json()] == ["/x"]
    assert (await client.delete("/proxies/x/toxics/latency_downstream")).status == 204
    assert await (await client.get("/proxies/x/toxics")).json() == []
    assert (await (await client.post("/proxies/x", json={"enabled": False})).json())["enabled"] is False
    assert (await client.post("/reset")).status == 204
    assert (await (await client.get("/proxies")).json())["x"]["enabled"] is True
    assert (await client.delete("/proxies/x")).status == 204
    assert (await client.get("/proxies/x")).status == 404


async def test_links_are_made_down_changed_and_made_anew_as_toxiproxy_does(
    client: TestClient,  # type: ignore[type-arg]
    origin: Origin,
) -> None:
    """What its newer clients ask for: PATCH, /populate, a link that is down from the start, 409 for a name that is taken."""
    upstream = f"127.0.0.1:{origin.port}"
    wanted = [{"name": name, "listen": "127.0.0.1:0", "upstream": upstream, "enabled": False} for name in ("x", "y")]
    made = await client.post("/populate", json=wanted)
    assert made.status == 201
    assert [(one["name"], one["enabled"]) for one in (await made.json())["proxies"]] == [("x", False), ("y", False)]
    assert (await client.post("/proxies", json=wanted[0])).status == 409
    assert (await (await client.patch("/proxies/x", json={"enabled": True})).json())["enabled"] is True
    await client.post("/proxies/x/toxics", json={"type": "latency"})
    changed = await client.patch("/proxies/x/toxics/latency_downstream", json={"attributes": {"jitter": 3}})
    assert (await changed.json())["attributes"] == {"latency": 0.0, "jitter": 3.0}
    again = await client.post("/populate", json=[wanted[0], {**wanted[1], "upstream": "127.0.0.1:9"}])
    kept, anew = (await again.json())["proxies"]
    assert kept["toxics"], "what is there already stays as it is"
    assert anew["upstream"] == "127.0.0.1:9"


async def test_a_script_is_played_in_order(proxies: FaultProxies, client: TestClient, origin: Origin) -> None:  # type: ignore[type-arg]
    proxy = await proxies.create("x", f"127.0.0.1:{origin.port}")
    told = await client.post(
        "/script",
        json=[
            {"at": "20ms", "proxy": "x", "down": False, "remove": "status_downstream"},
            {"at": "0s", "proxy": "x", "add": {"type": "status"}, "down": True},
        ],
    )
    assert told.status == 204
    assert proxies._playing is not None
    async with asyncio.timeout(5):
        await proxies._playing
    assert proxy.is_enabled
    assert not proxy.toxics


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/proxies", {"name": "y", "upstream": "example.com:80"}, "this machine only"),
        ("/proxies", {"upstream": "127.0.0.1:80"}, "needs `name`"),
        ("/proxies", [], "object"),
        ("/populate", {"name": "x"}, "a list of proxies"),
        ("/proxies/x/toxics", {"type": "latncy"}, "there is no toxic 'latncy'; there are latency"),
        ("/proxies/x/toxics", {"type": "latency", "attributes": {"latncy": 1}}, "it has latency, jitter"),
        ("/proxies/x/toxics", {"type": "latency", "stream": "sideways"}, "upstream or downstream"),
        ("/proxies/x/toxics", {"type": "latency", "toxicity": 2}, "from 0 to 1"),
        ("/script", {"at": 1}, "a list of acts"),
        ("/script", [{"at": "1s"}], "needs `at`"),
        ("/script", [{"at": "1s", "proxy": "x", "dwn": True}], "has no dwn"),
    ],
)
async def test_what_is_wrong_is_said(
    proxies: FaultProxies,
    client: TestClient,  # type: ignore[type-arg]
    origin: Origin,
    path: str,
    body: object,
    reason: str,
) -> None:
    await proxies.create("x", f"127.0.0.1:{origin.port}")
    told = await client.post(path, json=body)
    assert told.status == 400
    assert reason in (await told.json())["error"]


@pytest.mark.parametrize("kind", [*STREAM, *HTTP])
def test_every_toxic_has_defaults_and_a_document_that_reads_back(kind: str) -> None:
    toxic = Toxic.of({"type": kind, "times": 3, "only": "POST /a"})
    assert Toxic.of(toxic.document()).document() == toxic.document()


def test_acts_are_sorted_by_time() -> None:
    acts = acts_of([{"at": "2s", "proxy": "a"}, {"at": "500ms", "proxy": "b", "down": True}])
    assert [act.at_s for act in acts] == [0.5, 2.0]
    with pytest.raises(ToxicError):
        acts_of("no")
