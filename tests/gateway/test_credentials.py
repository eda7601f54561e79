"""Leased credentials through the whole gateway: a real OAuth server, moto checking signatures, a program, a timed secret."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.harness import Serving, serving
from tests.gateway.issuer import CLIENT_SECRET, SUBJECT, Issuer, issuing
from tests.origin import Answer, Hang, Origin

MANIFEST = """
version: 1
tools:
  api:
    upstream: http://127.0.0.1:PORT
    retry: {attempts: 2, base: 1ms, cap: 2ms}
    CREDENTIALS
    operations:
      make: {match: POST /things, tier: reversible}
"""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as made:
        yield made


def oauth(issuer: Issuer, more: str = "") -> str:
    return MANIFEST.replace(
        "CREDENTIALS",
        f"credentials: {{oauth: {{token_url: '{issuer.url}/token', revoke_url: '{issuer.url}/revoke', client_id: seawall, "
        f"client_secret: '${{secret:client}}'{more}}}}}",
    )


def secrets_folder(folder: Path, **secrets: str) -> str:
    (folder / "secrets").mkdir(exist_ok=True)
    for name, value in secrets.items():
        (folder / "secrets" / name).write_text(value)
    return str(folder / "secrets")


def proofs(origin: Origin) -> list[str]:
    return [
        value.decode()
        for request in origin.requests
        for name, value in request.headers
        if name.lower() == b"authorization"
    ]


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def records(gateway: Serving, run: str) -> list[tuple[str, dict[str, Any]]]:
    await gateway.gateway._journal.flush()
    return [(entry.kind, json.loads(entry.data)) for entry in await gateway.gateway._journal.read(run)]


async def test_each_run_has_a_token_of_its_own_which_ends_with_it(tmp_path: Path, issuer: Issuer) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    async with (
        Origin() as origin,
        serving(tmp_path, origin.port, oauth(issuer, ", scope: a b"), secrets=secrets) as gateway,
    ):
        agent = gateway.agent
        stolen = [("Authorization", "Bearer of-the-agent")]
        answers = await asyncio.gather(
            *(agent.send("POST", "/api/things", {"n": n}, run="r1", headers=stolen) for n in range(5))
        )
        assert {answer.status for answer in answers} == {200}
        assert issuer.asked == 1  # however many waited for it
        (first,) = issuer.tokens
        assert issuer.tokens[first].form == {"grant_type": "client_credentials", "scope": "a b"}
        assert set(proofs(origin)) == {f"Bearer {first}"}
        assert (await agent.send("GET", "/api/other", run="r2")).status == 200
        assert issuer.asked == 2
        assert len(set(proofs(origin))) == 2
        await gateway.operator.send("POST", "/api/v1/trajectories/r1/commit")
        await wait_until(lambda: len(issuer.good) == 1)
        assert first not in issuer.good
        assert (await gateway.operator.send("GET", "/api/v1/status")).json["leases"] == 1
        written = await records(gateway, "r1")
        (taken,) = [data for kind, data in written if kind == "LeaseTaken"]
        assert taken.keys() == {"lease", "tool", "kind", "until"}
    assert issuer.good == set()  # those that were left were revoked at the end


async def test_a_token_exchange_trades_what_we_are_for_less(tmp_path: Path, issuer: Issuer) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET, me=SUBJECT)
    more = ", grant: token_exchange, subject_token: '${secret:me}', audience: api, authentication: post"
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer, more), secrets=secrets) as gateway:
        assert (await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")).status == 200
        (token,) = issuer.tokens.values()
        assert (token.form["audience"], token.form["subject_token"]) == ("api", SUBJECT)


async def test_quarantine_revokes_at_once_here_and_at_the_issuer_and_cuts_what_is_in_flight(
    tmp_path: Path, issuer: Issuer
) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer), secrets=secrets) as gateway:
        origin.on("POST /things", Hang(applies=True))
        flying = asyncio.create_task(gateway.agent.send("POST", "/api/things", {"n": 1}, run="bad"))
        await origin.received(1)
        order = {"trajectory": "bad", "principal": "ann", "reason": "x"}
        told = (await gateway.operator.send("POST", "/api/v1/quarantine", order)).json
        assert told["stages"]["revoke"]["problem"] is None
        assert told["stages"]["revoke"]["detail"] == "issuers: 1 told"
        assert issuer.good == set()
        assert (await flying).code == "ERR_QUARANTINED"
        assert (await gateway.operator.send("GET", "/api/v1/status")).json["leases"] == 0
        ended = [data["why"] for kind, data in await records(gateway, "bad") if kind == "LeaseEnded"]
        assert ended in (["frozen"], ["quarantined"])


async def test_a_freeze_revokes_and_a_release_lets_the_run_have_another(tmp_path: Path, issuer: Issuer) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer), secrets=secrets) as gateway:
        person = {"principal": "ann", "reason": "x"}
        await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")
        await gateway.operator.send("POST", "/api/v1/trajectories/r1/freeze", person)
        await wait_until(lambda: not issuer.good)
        await gateway.operator.send("POST", "/api/v1/trajectories/r1/release", person)
        assert (await gateway.agent.send("POST", "/api/things", {"n": 2}, run="r1")).status == 200
        assert len(issuer.good) == 1


async def test_a_semantic_deadlock_revokes_before_anything_is_undone(tmp_path: Path, issuer: Issuer) -> None:
    """Seed 000, the third level: the agent's short-lived rights go first; undoing takes rights of its own."""
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    text = oauth(issuer).replace(
        "make: {match: POST /things, tier: reversible}",
        'make: {match: POST /things, tier: compensable, compensator: {request: "DELETE /things/1"}}',
    )
    async with Origin() as origin, serving(tmp_path, origin.port, text, secrets=secrets) as gateway:
        origin.on("POST /things", Answer(201, b"{}"), Answer(422, b'{"error": "no"}'))
        assert (await gateway.agent.send("POST", "/api/things", {"n": 0}, run="r1")).status == 201
        (first,) = issuer.good
        answer = await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")
        while answer.status != 423:
            answer = await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")
        assert answer.code == "ERR_SEMANTIC_DEADLOCK"
        await wait_until(lambda: first not in issuer.good)
        await wait_until(lambda: any(request.method == "DELETE" for request in origin.requests))
        assert proofs(origin)[-1] != f"Bearer {first}", "undone with another token"
        ended = [data["why"] for kind, data in await records(gateway, "r1") if kind == "LeaseEnded"]
        assert ended[0] == "semantic deadlock"


async def test_a_tool_that_no_longer_takes_a_token_gets_a_fresh_one_next_time(tmp_path: Path, issuer: Issuer) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer), secrets=secrets) as gateway:
        origin.on("GET /x", Answer(401), Answer(200))
        assert (await gateway.agent.send("GET", "/api/x", run="r1")).status == 401
        assert (await gateway.agent.send("GET", "/api/x", run="r1")).status == 200
        assert issuer.asked == 2


async def test_a_short_token_is_renewed_before_it_ends(tmp_path: Path, issuer: Issuer) -> None:
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    issuer.expires_in = 1
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer), secrets=secrets) as gateway:
        await gateway.agent.send("GET", "/api/x", run="r1")
        await asyncio.sleep(1.0)  # the token's own time: real, since the issuer's clock is
        await gateway.agent.send("GET", "/api/x", run="r1")
        assert issuer.asked == 2


@pytest.mark.parametrize("secret", ["wrong", None])
async def test_without_a_token_nothing_is_sent_and_no_secret_is_told(
    tmp_path: Path, issuer: Issuer, secret: str | None
) -> None:
    text = oauth(issuer) if secret else oauth(issuer).replace(f"{issuer.url}/token", "http://127.0.0.1:9/token")
    secrets = secrets_folder(tmp_path, client=secret or CLIENT_SECRET)
    async with Origin() as origin, serving(tmp_path, origin.port, text, secrets=secrets) as gateway:
        refused = await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")
        assert (refused.status, refused.code, refused.json["dispatched"]) == (502, "ERR_UPSTREAM_CONNECT", "no")
        said = "answered 401, invalid_client and no token" if secret else "does not answer"
        assert said in refused.json["detail"]
        assert b"kanarek" not in refused.body
        assert len(origin.requests) == 0


async def test_a_program_prints_a_credential(tmp_path: Path) -> None:
    program = tmp_path / "credential.py"
    program.write_text(
        "import json, os\n"
        "value = 'Token ' + os.environ['SEAWALL_RUN'] + '-' + os.environ['KEY']\n"
        "print(json.dumps({'value': value, 'expires_in': 60}))\n"
    )
    text = MANIFEST.replace(
        "CREDENTIALS",
        f"credentials: {{header: X-Api-Key, exec: {{command: ['{sys.executable}', '{program}'], "
        "environment: {KEY: '${secret:key}'}}}",
    )
    secrets = secrets_folder(tmp_path, key="key-kanarek")
    async with Origin() as origin, serving(tmp_path, origin.port, text, secrets=secrets) as gateway:
        assert (await gateway.agent.send("GET", "/api/x", run="r1", headers=[("X-Api-Key", "mine")])).status == 200
        assert [v for n, v in origin.requests[0].headers if n.lower() == b"x-api-key"] == [b"Token r1-key-kanarek"]
        program.write_text("import sys\nsys.exit(3)\n")
        refused = await gateway.agent.send("GET", "/api/x", run="r2")
        assert "ended with 3" in refused.json["detail"]


async def test_a_timed_secret_ends_with_its_time(tmp_path: Path) -> None:
    text = MANIFEST.replace("CREDENTIALS", "credentials: {value: 'Bearer ${secret:key}', lease: 100ms}")
    secrets = secrets_folder(tmp_path, key="key-kanarek")
    async with Origin() as origin, serving(tmp_path, origin.port, text, secrets=secrets) as gateway:
        await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1")
        await asyncio.sleep(0.15)
        await gateway.agent.send("POST", "/api/things", {"n": 2}, run="r1")
        assert proofs(origin) == ["Bearer key-kanarek"] * 2
        taken = [data["lease"] for kind, data in await records(gateway, "r1") if kind == "LeaseTaken"]
        assert len(set(taken)) == 2


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, str, str]]:
    """S3 that checks signatures: moto, with its access control switched on once a user has been made."""
    import threading

    import boto3
    from moto.core import set_initial_no_auth_action_count
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    made: dict[str, str] = {}

    @set_initial_no_auth_action_count(4)
    def prepare() -> None:
        iam = boto3.client("iam", region_name="us-east-1", endpoint_url=url)
        iam.create_user(UserName="u")
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(policy))
        made.update(iam.create_access_key(UserName="u")["AccessKey"])
        boto3.client("s3", region_name="us-east-1", endpoint_url=url).create_bucket(Bucket="bucket")
        running.set()
        finished.wait()

    running, finished = threading.Event(), threading.Event()
    checking = threading.Thread(target=prepare, daemon=True)
    checking.start()
    assert running.wait(30)
    yield server.server_port, made["AccessKeyId"], made["SecretAccessKey"]
    finished.set()
    checking.join()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_requests_are_signed_as_aws_wants_them(tmp_path: Path, moto: tuple[int, str, str]) -> None:
    port, key_id, secret = moto
    text = MANIFEST.replace(
        "CREDENTIALS",
        f"credentials: {{aws: {{service: s3, region: us-east-1, access_key: {key_id}, secret_key: '${{secret:aws}}'}}}}",
    ).replace("make: {match: POST /things, tier: reversible}", "put: {match: 'PUT /bucket/{key}', tier: reversible}")
    async with serving(tmp_path, port, text, secrets=secrets_folder(tmp_path, aws=secret)) as gateway:
        put = await gateway.agent.send("PUT", "/api/bucket/a%20key", b"text of mine", run="r1")
        assert put.status == 200, put.body
        got = await gateway.agent.send("GET", "/api/bucket/a%20key?response-content-type=text%2Fplain", run="r1")
        assert (got.status, got.body) == (200, b"text of mine")
    async with serving(tmp_path, port, text, secrets=secrets_folder(tmp_path, aws="wrong" + secret)) as gateway:
        refused = await gateway.agent.send("GET", "/api/bucket/a%20key", run="r2")
        assert refused.status == 403
        assert b"SignatureDoesNotMatch" in refused.body


async def test_no_secret_is_in_anything_that_comes_out(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Canaries: the client's secret, and every token that was ever issued."""
    caplog.set_level(0)
    secrets = secrets_folder(tmp_path, client=CLIENT_SECRET)
    async with Origin() as origin, serving(tmp_path, origin.port, oauth(issuer), secrets=secrets) as gateway:
        origin.on("GET /broken", Answer(500))
        seen = [
            await gateway.agent.send("POST", "/api/things", {"n": 1}, run="r1"),
            await gateway.agent.send("GET", "/api/broken", run="r1"),
        ]
        for path in (
            "status",
            "manifest",
            "trajectories",
            "trajectories/r1",
            "journal",
            "domains",
            "breakers",
            "rules",
        ):
            seen.append(await gateway.operator.send("GET", f"/api/v1/{path}"))
        seen.append(await gateway.operator.send("GET", "/metrics"))
        order = {"trajectory": "r1", "principal": "ann", "reason": "x"}
        seen.append(await gateway.operator.send("POST", "/api/v1/quarantine", order))
        text = "".join(repr(one.headers) + one.body.decode("latin-1") for one in seen)
    for record in caplog.records:
        if not record.name.startswith(("authlib", "werkzeug")):  # the issuer's own, in this process
            text += record.getMessage() + repr(record.__dict__)
    out, err = capfd.readouterr()
    text += out + err
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            text += path.read_bytes().decode("latin-1")
    with sqlite3.connect(next((tmp_path / "data").glob("*.db*"))) as connection:
        text += repr(connection.execute("SELECT kind, data FROM record").fetchall())
    assert issuer.tokens
    for secret in (CLIENT_SECRET, "kanarek", *issuer.tokens):
        at = text.find(secret)
        assert at < 0, (secret, text[max(0, at - 300) : at + 60])
