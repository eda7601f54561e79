"""The proof is only as good as the read-back: it must see every leftover, at the tool servers themselves."""

import asyncio
import socket
import sys
from pathlib import Path

import psutil
import pytest

from gateway.demo.process import DemoError
from gateway.demo.snapshot import differences
from gateway.demo.world import World


async def hold(world: World, card: str) -> str:
    form = {"amount": "4200", "currency": "eur", "payment_method": card, "capture_method": "manual", "confirm": "true"}
    return str((await world.call("payments", "POST", "/v1/payment_intents", form=form))["id"])


async def test_the_world_is_read_back_and_every_leftover_is_found(world: World, tmp_path: Path) -> None:
    """A volume, a name, a file, a cluster, a hold and a payment left behind are each named; undone, they are not."""
    card = await world.furnish()
    before = await world.look()
    assert before.rows() == {
        "volumes": "neighbour-volume",
        "names": "neighbour",
        "files": "neighbour/config.json",
        "clusters": "production",
        "money on hold": "none",
        "money taken": "none",
    }

    token = {"CreationToken": "left-over"}
    volume = (await world.call("volumes", "POST", "/2015-02-01/file-systems", send=token))["FileSystemId"]
    await world.call("storage", "PUT", "/left-over")
    await world.call("storage", "PUT", "/left-over/file.json", send={"left": "over"})
    held, taken = await hold(world, card), await hold(world, card)
    await world.call("payments", "POST", f"/v1/payment_intents/{taken}/capture")
    left = await world.look()
    assert differences(before, left) == [
        f"volume {volume} is new",
        "name left-over is new",
        "file left-over/file.json is new",
        f"hold {held} is new",
        f"payment {taken} is new",
    ]
    assert left.rows()["money on hold"] == left.rows()["money taken"] == "42.00 EUR"

    with pytest.raises(DemoError, match=r"(?s)409 to DELETE /left-over: .*BucketNotEmpty"):
        await world.call("storage", "DELETE", "/left-over")  # order matters: the file first
    await world.call("storage", "DELETE", "/left-over/file.json")
    await world.call("storage", "DELETE", "/left-over")
    await world.call("volumes", "DELETE", f"/2015-02-01/file-systems/{volume}")
    await world.call("payments", "POST", f"/v1/payment_intents/{held}/cancel")
    undone = await world.look()
    assert differences(before, undone) == [f"payment {taken} is new"]
    assert undone.released == {held}

    for child in world.children:
        assert child.pid is not None
        listening = [c.laddr.ip for c in psutil.Process(child.pid).net_connections() if c.status == "LISTEN"]
        assert listening
        assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}, "the tool servers stay on this machine"
    assert (tmp_path / "localstripe.pickle").exists(), "state that is pickled stays in the demo's folder"


async def test_stopping_the_world_leaves_no_process_and_no_listener(tmp_path: Path) -> None:
    """Whoever tries the demo gets the machine back as it was."""
    world = World(tmp_path)
    await world.start()
    pids = [child.pid for child in world.children]
    await world.stop()
    await world.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    for tool in ("payments", "volumes"):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", world.port(tool))) != 0


async def test_a_missing_server_package_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool servers are an extra; most installations lack them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "localstripe" else object())
    with pytest.raises(DemoError, match=r"needs localstripe: install them with `pip install 'seawall\[demo\]'`"):
        await World(tmp_path).start()


async def test_a_start_that_is_broken_off_or_fails_half_way_leaves_nothing_running(tmp_path: Path) -> None:
    """One server may be up, another half started: both are ended, whichever is reported first."""
    failing = World(tmp_path)
    failing.children[0]._command = (sys.executable, "-c", "raise SystemExit('no')")
    with pytest.raises(DemoError, match="payments ended with 1"):
        await failing.start()
    await failing.stop()

    cancelled = World(tmp_path)
    starting = asyncio.create_task(cancelled.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await cancelled.stop()
    pids = [child.pid for world in (failing, cancelled) for child in world.children]
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    assert not [p.pid for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(tmp_path)]
