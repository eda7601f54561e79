"""Gates, approvals and sinks in a manifest: ready to run, or every mistake named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core.manifest import ApprovalPolicy, ApprovalSettings
from tests.config.manifests import complaint, load, write

BASE = """
approvals:
  default: {approvers: [ann, bob], required: 2}
  board: {approvers: [carl]}
gates:
  done: {check: "trajectory.steps.all(s, s.state == 'committed')"}
  green: {verify: {tool: ci, request: "GET /runs/${trajectory.id}", expect: "response.json.ok == true"}}
  lasting: {lease: 30s}
  signed: {approval: board}
incidents:
  ops: {url: "https://hooks.example.com/x?y=1", secret: "${secret:hook}"}
tools:
  ci: {upstream: "http://127.0.0.1:1"}
  pay:
    upstream: http://127.0.0.1:2
    operations:
      payout: {match: POST /payouts, tier: pivot, approval: required, gates: [done, green, lasting]}
      wire: {match: POST /wires, tier: pivot, gates: [signed]}
      free: {match: POST /free, tier: pivot}
      notice: {match: POST /notices, tier: pivot, pivot: stage}
"""


def test_what_stands_in_front_of_an_operation_is_ready_to_run(tmp_path: Path) -> None:
    catalog = load(write(tmp_path, m=BASE), SEAWALL_SECRET_HOOK="s3cret")
    operations = catalog.tools["pay"].operations
    payout, wire, free = operations["payout"], operations["wire"], operations["free"]
    assert (payout.approval, payout.approved_by.required) == (ApprovalPolicy.REQUIRED, 2)
    assert [gate.name for gate in payout.gates] == ["done", "green", "lasting"]
    verify = payout.gates[1].verify
    assert verify is not None
    assert verify.request.bind({"trajectory": {"id": "r1"}}).target == "/runs/r1"
    assert payout.gates[2].margin_s == 30.0
    assert (wire.approval, wire.approved_by.approvers, wire.gates) == (ApprovalPolicy.REQUIRED, ("carl",), ())
    assert (free.approval, free.approved_by) == (
        ApprovalPolicy.NONE,
        ApprovalSettings(approvers=("ann", "bob"), required=2),
    )
    assert operations["notice"].is_staged
    sink = catalog.sinks["ops"]
    assert (sink.upstream.origin, sink.target, sink.secret) == ("https://hooks.example.com:443", "/x?y=1", "s3cret")
    assert "s3cret" not in repr(sink)


def test_another_spelling_of_a_guarded_path_does_not_get_past_its_guard(tmp_path: Path) -> None:
    """`POST /payouts/` is no declared operation, but the tool may take it for one."""
    pay = load(write(tmp_path, m=BASE), SEAWALL_SECRET_HOOK="s3cret").tools["pay"]
    match = pay.match("POST", "/payouts/")
    assert not match.operation.is_declared
    assert (match.operation.approval, match.operation.approved_by.required) == (ApprovalPolicy.REQUIRED, 2)
    assert "people decide" in match.reason
    assert pay.match("GET", "/payouts/").operation.approval is ApprovalPolicy.NONE


def test_a_changed_gate_or_policy_changes_the_tool(tmp_path: Path) -> None:
    """Else a reload would keep the old gate in force."""
    environ = {"SEAWALL_SECRET_HOOK": "s3cret"}
    before = load(write(tmp_path, m=BASE), **environ).tools["pay"].digest
    for old, new in (("lease: 30s", "lease: 31s"), ("required: 2", "required: 1"), ("[carl]", "[carl, dan]")):
        assert load(write(tmp_path, m=BASE.replace(old, new)), **environ).tools["pay"].digest != before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("required: 2", "required: 3", "`required` (3) is more than there are approvers (2)"),
        ("[ann, bob]", "[ann, ann]", "names an approver twice"),
        ("{lease: 30s}", "{lease: 30s, approval: board}", "needs exactly one of"),
        ("{lease: 30s}", "{}", "needs exactly one of"),
        ("approval: board", "approval: bored", "unknown approval policy `bored`"),
        ("gates: [signed]", "gates: [singed]", "unknown gate `singed`"),
        ("gates: [signed]", "gates: [signed, done], approval: none", ""),
        ("tool: ci,", "tool: cj,", "unknown tool `cj`"),
        ("GET /runs", "DELETE /runs", "a verifier is a read"),
        ("s.state == 'committed'", "response.status == 1", "unknown name `response`"),
        ("response.json.ok == true", "answer.ok", "unknown name `answer`"),
        ("tier: pivot, pivot: stage", "tier: reversible, pivot: stage", "`pivot: stage` is for pivots only"),
        ('secret: "${secret:hook}"', "kind: webhook", "needs a `secret`: what signs it"),
        ('url: "https://hooks.example.com/x?y=1", ', "", "needs a `url`"),
        ("https://hooks", "ftp://hooks", "must begin with `http://`"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in BASE
    path = write(tmp_path, m=BASE.replace(old, new))
    if said:
        assert said in complaint(path, SEAWALL_SECRET_HOOK="s3cret")
    else:
        load(path, SEAWALL_SECRET_HOOK="s3cret")


@pytest.mark.parametrize("lease", ["{}", "{ttl: 1m, until: response.json.x}"])
def test_a_lease_has_one_end(tmp_path: Path, lease: str) -> None:
    text = BASE.replace("tier: pivot, pivot: stage", f"tier: reversible, lease: {lease}")
    assert "a lease needs either `ttl` or `until`" in complaint(write(tmp_path, m=text), SEAWALL_SECRET_HOOK="s")
