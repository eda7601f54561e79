"""A call is held to the instructions that it was recorded with: the same number each time, on a machine however busy."""

import shutil

import pytest

from loadtests.instructions import KIND, instructions_per_call
from loadtests.limits import build, judge, load
from tests.lacking import lacking


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", ["read", "refused", "write"])
def test_a_call_has_not_grown(workload: str) -> None:
    """Callgrind's count, C code included: eleven seconds each, where a wall clock would need a quiet machine."""
    if shutil.which("valgrind") is None:
        lacking("valgrind counts instructions (Debian package valgrind); test_opcodes holds the bytecode alone")
    counted = {workload: instructions_per_call(workload)}
    assert judge(counted, load(KIND), build(), kind=KIND) == []
