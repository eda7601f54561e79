"""Syncs are counted by the kernel's word, so a journal that only says that it syncs is found."""

import subprocess
import sys
from pathlib import Path

from loadtests.syncs import CountedSyncs, syncs_can_be_counted
from tests.lacking import lacking

CODE = """
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for line in sys.stdin:
    os.write(file, b"x")
    for _ in range(int(line)):
        os.fdatasync(file)
    print("done", flush=True)
"""


def test_what_a_process_syncs_meanwhile_is_counted_and_nothing_else(tmp_path: Path) -> None:
    if not syncs_can_be_counted():
        lacking("strace counts syncs of the disk (Debian package strace)")
    command = [sys.executable, "-c", CODE, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def sync(times: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            print(times, file=process.stdin, flush=True)
            assert process.stdout.readline() == "done\n"

        sync(2)
        with CountedSyncs(process.pid, tmp_path) as counted:
            sync(3)
        sync(1)
    assert counted.syncs == 3
