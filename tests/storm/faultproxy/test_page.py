"""docs/faultproxy.md says what there is: every fault with its attributes and defaults, every path, a script that plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway.storm.faultproxy.api import FaultProxies, api
from gateway.storm.faultproxy.script import acts_of
from gateway.storm.faultproxy.toxics import HTTP, STREAM
from tests.storm.faultproxy import test_proxy

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "faultproxy.md").read_text()


@pytest.mark.parametrize("kind", [*STREAM, *HTTP])
def test_every_fault_stands_there_with_its_attributes_and_has_a_test(kind: str) -> None:
    (row,) = re.findall(rf"^\| `{kind}` \|([^|]*)\|", PAGE, re.MULTILINE)
    for name, (default, _) in {**STREAM, **HTTP}[kind].items():
        assert f"`{name}` {default:g}" in row
    assert f'"{kind}"' in Path(test_proxy.__file__).read_text(), "no test of the proxy makes this happen"


def test_every_path_stands_there_and_no_other() -> None:
    there = {
        (route.method, re.sub(r"\{(\w)\w*\}", lambda part: part[1].upper(), route.resource.canonical))
        for route in api(FaultProxies()).router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    told = set()
    for row in re.findall(r"^\| (`(?:GET|POST|DELETE).*?) \|", PAGE, re.MULTILINE):
        path = re.findall(r"/[\w/]+", row)[-1]
        told |= {(method, path) for method in re.findall(r"GET|POST|PATCH|DELETE", row)}
    assert told == there


def test_its_script_is_one() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert [act.at_s for act in acts_of(yaml.safe_load(text))] == [0.0, 10.0, 30.0, 40.0]
    assert acts_of(yaml.safe_load((ROOT / "loadtests" / "faultproxy" / "bad-afternoon.yaml").read_text()))
