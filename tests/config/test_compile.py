"""A manifest becomes what the gateway runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.source import ManifestSource
from gateway.core.manifest import Tier
from tests.config.manifests import ROOT, SECRETS, complaint, load, tool, write


def test_the_payments_example_means_what_it_says() -> None:
    """The design's own example, end to end."""
    catalog = load(ROOT / "config" / "payments.yaml", **SECRETS)
    pay = catalog.tools["payments"]
    hold = pay.match("POST", "/v1/payment_intents").operation
    assert (hold.name, hold.tier) == ("hold", Tier.COMPENSABLE)
    assert hold.compensator is not None
    bound = hold.compensator.request.bind({"response": {"json": {"id": "pi_1"}}})
    assert (bound.method, bound.target) == ("POST", "/v1/payment_intents/pi_1/cancel")
    assert hold.probe is not None
    assert hold.probe.landed is not None
    page = {"json": {"data": [{"metadata": {"key": "k"}}]}}
    assert hold.probe.landed({"response": page, "key": "k"}) is True
    assert pay.match("POST", "/v1/anything").operation.tier is Tier.PIVOT
    assert pay.match("GET", "/v1/anything").operation.is_read
    assert pay.credential == (b"Authorization", b"Bearer sk_live_canary")
    assert "sk_live_canary" not in repr(catalog) + repr(pay) + pay.breaker_key + pay.digest
    entry = catalog.tools["ledger"].match("POST", "/entries").operation.compensator
    assert entry is not None
    body = entry.request.bind(
        {"response": {"json": {"id": 9}}, "request": {"json": {"amount": 5}}, "step": 3, "trajectory": "t"}
    ).body
    assert body == '{"reverses":9,"amount":-5,"note":"run t"}'


def test_nearer_settings_win_key_by_key(tmp_path: Path) -> None:
    """What was left out is inherited, not reset."""
    text = "domains: {d: {timeouts: {connect: 1s, total: 9s}, breaker: {cooldown: 5s}, retry: {attempts: 7}}}\n" + tool(
        "x: {match: GET /x, tier: read, timeouts: {idle: 3s}}",
        "    domain: d\n    timeouts: {total: 8s}\n    breaker: {window: 40}\n",
    )
    spec = load(write(tmp_path, m=text)).tools["pay"]
    timeouts = spec.match("GET", "/x").operation.timeouts
    assert (timeouts.connect, timeouts.total, timeouts.idle) == (1.0, 8.0, 3.0)
    assert (spec.breaker.window, spec.breaker.cooldown, spec.retry.attempts) == (40, 5.0, 7)


def test_a_tool_without_a_domain_has_its_own(tmp_path: Path) -> None:
    """A dead tool costs nobody else anything."""
    assert load(write(tmp_path, m=tool())).tools["pay"].domain.name == "tool:pay"


def test_unused_secrets_are_odd_and_open_credentials_too(tmp_path: Path) -> None:
    """Warnings do not stop a load."""
    source = ManifestSource(
        write(tmp_path, m="secrets: {a: {env: X}}\n" + tool(more="    credentials: {value: abc}\n")), environ={"X": "1"}
    )
    source.load()
    assert ["not used" in str(source.warnings[0]), "manifest itself" in str(source.warnings[1])] == [True, True]
    assert "abc" not in "".join(map(str, source.warnings))


def test_secrets_in_headers_are_resolved_from_the_catalog(tmp_path: Path) -> None:
    """The bound request is journaled with the placeholder."""
    text = tool(
        "x: {match: POST /a, tier: compensable, compensator: {request: DELETE /a, headers: {X-K: '${secret:k}'}}}"
    )
    catalog = load(write(tmp_path, m=text), SEAWALL_SECRET_K="canary")
    compensator = catalog.tools["pay"].match("POST", "/a").operation.compensator
    assert compensator is not None
    bound = compensator.request.bind({})
    assert "canary" not in repr(bound)
    assert catalog.secrets.resolve_headers(bound.headers) == (("X-K", "canary"),)


def test_a_tool_may_be_watched_in_another_mode_than_the_rest(tmp_path: Path) -> None:
    text = "watchdog: {repeats: 5, volatile: [seen]}\n" + tool(
        "job: {match: 'GET /jobs/{id}', tier: read, watch: {poll: 7}}\n"
        "test: {match: POST /tests, tier: reversible, watch: {metrics: {up: response.json.good, bad: -response.json.bad}}}",
        "    watch: {mode: observe, state: GET /state}\n",
    )
    catalog = load(write(tmp_path, main=text))
    pay = catalog.tools["pay"]
    assert (catalog.watchdog.mode.value, catalog.watchdog.repeats) == ("enforce", 5)
    assert (pay.watchdog.mode.value, pay.watchdog.repeats, pay.watchdog.volatile) == ("observe", 5, ("seen",))
    assert pay.state is not None
    assert pay.state.request.bind({}).target == "/state"
    watched = pay.operations["test"].watch
    assert watched is not None
    assert [name for name, _ in watched.metrics] == ["up", "bad"]
    assert [metric({"response": {"json": {"good": 3, "bad": 2}}}) for _, metric in watched.metrics] == [3, -2]
    polled = pay.operations["job"].watch
    assert polled is not None
    assert polled.poll == 7


def test_what_is_wrong_with_a_watch_is_said_where_it_stands(tmp_path: Path) -> None:
    said = complaint(write(
        tmp_path, main="include: [other.yaml]\nwatchdog: {repeats: 1}\n" + tool(
            "job: {match: 'GET /jobs/{id}', tier: read, watch: {poll: 1, metrics: {a: respons.json.a}}}",
            "    watch: {mode: enforced, state: DELETE /state}\n"), other="watchdog: {polls: 5}\n"))  # fmt: skip
    for words in ("main.yaml:2:21", "main.yaml:6:19", "did you mean `enforce`", "`poll`"):
        assert words in said, said


def test_two_files_cannot_both_say_when_a_run_goes_in_circles(tmp_path: Path) -> None:
    said = complaint(write(
        tmp_path, main="include: [other.yaml]\nwatchdog: {repeats: 4}\n" + tool("", "    watch: {state: DELETE /state}\n"),
        other="watchdog: {polls: 5}\n"))  # fmt: skip
    assert "`watchdog` is given at other.yaml:1:1 already" in said
    assert "the state is a read" in said


UNANSWERED = """
tools:
  pay:
    upstream: http://pay.test
    operations:
      hold:
        match: POST /holds
        tier: compensable
        compensator:
          request: "POST /holds/${response.json.id}/cancel"
          json: {ref: "${request.json.ref}", etag: "${response.headers.etag}"}
        probe: {request: GET /holds, %s}
"""


def test_an_undo_that_needs_an_answer_that_the_probe_cannot_give_is_warned_of_where_it_stands(tmp_path: Path) -> None:
    """It works as long as answers arrive; a step whose answer was lost is found to have landed, and stays."""
    source = ManifestSource(write(tmp_path, m=UNANSWERED % "landed: response.json.found == true"), environ={})
    assert source.load().tools
    lines = [str(warning).removeprefix(f"{tmp_path}/") for warning in source.warnings]
    assert [line.split(" ")[0] for line in lines] == ["m.yaml:10:20:", "m.yaml:11:52:"]
    assert all("it reads `response`, which a step that the probe settles does not have" in line for line in lines)
    assert all("give the probe a `result`" in line for line in lines)


@pytest.mark.parametrize(
    "probe", ["landed: response.status == 200, result: response.json", "not_landed: response.status == 404"]
)
def test_an_undo_that_finds_what_it_needs_is_not_warned_of(tmp_path: Path, probe: str) -> None:
    source = ManifestSource(write(tmp_path, m=UNANSWERED % probe), environ={})
    source.load()
    assert source.warnings == ()
