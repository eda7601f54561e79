import pytest
import yaml

from loadtests.systems import SYSTEMS, ledger_problems, manifest_for
from loadtests.wire import WORKLOADS


def totals(calls: int, *, numbers: int | None = None, keys: int = 0, most: int = 1) -> dict[str, int]:
    return {"calls": calls, "numbers": calls if numbers is None else numbers, "keys": keys, "most": most}


def test_the_manifest_names_the_ports_that_were_free() -> None:
    tools = yaml.safe_load(manifest_for(41000, 41001))["tools"]
    assert {name: tool["upstream"] for name, tool in tools.items()} == {
        "bench": "http://127.0.0.1:41000",
        "dead": "http://127.0.0.1:41001",
        "plain": "http://127.0.0.1:41000",
    }
    assert yaml.safe_load(manifest_for(1, 2, 41002))["tools"]["tls"]["upstream"] == "https://localhost:41002"


def test_systems_carry_workloads_that_exist() -> None:
    for name, system in SYSTEMS.items():
        assert system.name == name
        assert system.prefixes.keys() <= WORKLOADS.keys()


@pytest.mark.parametrize(
    ("workload", "ledger", "adds_keys"),
    [
        ("read", totals(10), True),
        ("write", totals(10, keys=10), True),
        ("write", totals(10), False),
        ("refused", totals(0, most=0), True),
    ],
)
def test_a_ledger_with_each_call_once_is_right(workload: str, ledger: dict[str, int], adds_keys: bool) -> None:
    assert ledger_problems(ledger, workload, 10, adds_keys=adds_keys) == []


@pytest.mark.parametrize(
    ("workload", "ledger", "words"),
    [
        ("read", totals(9), "10 calls should have reached the tool, 9 did"),
        ("write", totals(10, numbers=9, keys=10), "9 different"),
        ("write", totals(11, numbers=10, keys=10, most=2), "saw a call or a key 2 times"),
        ("write", totals(10, keys=9), "9 different keys"),
        ("refused", totals(1), "0 calls should have reached the tool, 1 did"),
    ],
)
def test_a_lost_doubled_or_unkeyed_call_is_found(workload: str, ledger: dict[str, int], words: str) -> None:
    """These are the ways in which a fast gateway could be a wrong one."""
    assert words in " / ".join(ledger_problems(ledger, workload, 10, adds_keys=True))
