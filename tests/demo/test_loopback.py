"""The tool servers may listen nowhere but here, and write nowhere but into the demo's folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.demo.world import LOOPBACK_FOLDER

BIND = "import socket; s = socket.socket(socket.{family}); s.bind(('{address}', 0)); print(s.getsockname()[0])"


def run(source: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(LOOPBACK_FOLDER), "SEAWALL_DEMO_FOLDER": str(folder)}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("family", "address", "bound"),
    [
        ("AF_INET", "", "127.0.0.1"),
        ("AF_INET", "0.0.0.0", "127.0.0.1"),
        ("AF_INET", "127.0.0.1", "127.0.0.1"),
        ("AF_INET6", "::", "::ffff:127.0.0.1"),
    ],
)
def test_every_interface_becomes_loopback(family: str, address: str, bound: str, tmp_path: Path) -> None:
    """localstripe listens on `::`, which is the whole network."""
    assert run(BIND.format(family=family, address=address), tmp_path) == bound


def test_a_file_straight_in_tmp_goes_to_the_folder_and_others_stay(tmp_path: Path) -> None:
    """localstripe writes /tmp/localstripe.pickle, where the user may keep one of their own."""
    other = tmp_path / "below" / "other.txt"
    other.parent.mkdir()
    run(f"open('/tmp/seawall-demo-test.pickle', 'w').write('a'); open({str(other)!r}, 'w').write('b')", tmp_path)
    assert (tmp_path / "seawall-demo-test.pickle").read_text() == "a"
    assert not Path("/tmp/seawall-demo-test.pickle").exists()
    assert other.read_text() == "b"
