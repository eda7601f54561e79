import os
import sys
from pathlib import Path

import pytest

from loadtests.process import Cores, Server, busy_ns, cpu_ns, pin, rss_bytes, start, tree


def test_a_server_that_does_not_start_shows_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such manifest')"]
    with pytest.raises(RuntimeError, match=r"exit code 1(.|\n)*no such manifest"):
        start("gateway", command, core=None, folder=tmp_path)


def test_other_output_before_the_address_is_passed_over(tmp_path: Path) -> None:
    said = "starting", '{"level": "info"}', '{"listen": "127.0.0.1:81"}'
    script = f"import signal\nprint(*{said!r}, sep='\\n', flush=True)\nsignal.pause()"
    server = start("gateway", [sys.executable, "-c", script], core=None, folder=tmp_path)
    assert server.port == 81
    server.stop()
    server.stop()
    assert server.process.returncode is not None


def test_usage_is_read_from_the_process_tree(upstream: Server) -> None:
    assert tree(upstream.pid) == [upstream.pid]
    assert os.getpid() in tree(os.getpid())
    assert upstream.pid in tree(os.getpid())
    assert cpu_ns([upstream.pid]) > 0
    assert rss_bytes([upstream.pid]) > 2**20
    assert busy_ns() > 0


def test_a_process_that_is_gone_used_nothing(upstream: Server) -> None:
    """Servers may end between two looks at them."""
    upstream.stop()
    assert (cpu_ns([upstream.pid]), rss_bytes([upstream.pid])) == (0, 0)


def test_the_system_and_its_load_never_share_a_core(upstream: Server) -> None:
    cores = Cores.of_this_machine()
    assert cores.system is None or cores.system != cores.load
    pin(upstream.pid, cores.system)
    assert cores.system is None or os.sched_getaffinity(upstream.pid) == {cores.system}
