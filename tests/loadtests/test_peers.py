"""Peers are started by what they need, or named as missing."""

from pathlib import Path

import pytest

from loadtests.peers import PEERS, Peer
from loadtests.process import Cores, Server, python
from loadtests.systems import SYSTEMS, Site
from loadtests.wire import WORKLOADS


def site(folder: Path) -> Site:
    return Site(Server(process=None, port=4711), 1, folder, Cores())  # type: ignore[arg-type]


def test_peers_have_names_of_their_own_and_carry_workloads_that_exist() -> None:
    assert not PEERS.keys() & SYSTEMS.keys()
    for name, peer in PEERS.items():
        assert peer.name == name
        assert peer.prefixes.keys() <= WORKLOADS.keys()


def test_one_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="ghost is not installed"):
        Peer("ghost", lambda: None, "", ".conf", (), install="make ghosts").start(site(tmp_path))


def test_what_is_absent_says_how_to_get_it_and_what_is_there_says_nothing() -> None:
    assert Peer("ghost", lambda: None, "", "", (), install="make ghosts").lacks() == "make ghosts"
    assert Peer("here", lambda: "/bin/true", "", "", (), install="make it").lacks() is None
    assert all(system.lacks() is None for system in SYSTEMS.values())


def test_a_peer_is_configured_by_its_file_and_waited_for_at_its_port(tmp_path: Path) -> None:
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); s.accept(); s.accept()"
    interpreter, *_ = python("x")
    peer = Peer("fake", lambda: interpreter, "to TOOL at LISTEN", ".conf", ("-c", code, "LISTEN"), install="")
    server = peer.start(site(tmp_path))
    try:
        assert (tmp_path / "fake.conf").read_text() == f"to 4711 at {server.port}"
    finally:
        server.stop()
