"""A scripted agent that knows a base URL and nothing else: it sets up a customer's workspace and takes the money for it.

It is an ordinary HTTP client, run as its own isolated process on the standard library alone, and stands for any agent in
any language. Like every decent client it repeats a call that was answered with 429, 502, 503 or 504, waits as long as
`Retry-After` says, and gives up at any other error. It undoes nothing.

Each call and each answer is one JSON object on stdout. With `--paced` it waits for a line on stdin before each step, so
that the person watching, or the one who breaks things, sets the pace.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

REPEATABLE = frozenset({429, 502, 503, 504})
MAX_ATTEMPTS = 8
DEFAULT_WAIT_S = 0.2
MAX_WAIT_S = 10.0
TIMEOUT_S = 30.0


class StepFailedError(Exception):
    """A step was refused in a way that a repeat does not mend."""


class Agent:
    """Makes calls against one base URL and tells about each."""

    def __init__(self, base_url: str, headers: Mapping[str, str], *, is_paced: bool) -> None:
        parts = urllib.parse.urlsplit(base_url)
        self._host, self._port, self._prefix = parts.hostname or "127.0.0.1", parts.port or 80, parts.path.rstrip("/")
        self._headers = dict(headers)
        self._is_paced = is_paced

    def step(
        self,
        name: str,
        method: str,
        path: str,
        *,
        send: object = None,
        form: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Carry out one step, repeated while the answer asks for it; return the answer's JSON object, or an empty one.

        Raises:
            StepFailedError: the answer is an error that a repeat does not mend, or the attempts are used up.
        """
        _tell(event="step", step=name, method=method, path=path)
        if self._is_paced and not sys.stdin.readline():
            raise StepFailedError(f"{name}: nobody set the pace any more")
        headers, body = _encode(send, form)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            status, answer_headers, answer = self._exchange(method, path, self._headers | headers, body)
            document = _object_in(answer)
            wait_s = _wait_before_repeat(status, answer_headers) if attempt < MAX_ATTEMPTS else None
            _tell(event="answer", step=name, attempt=attempt, status=status, wait_s=wait_s, **_facts(document))
            if 200 <= status < 300:
                return document
            if wait_s is None:
                raise StepFailedError(f"{name}: {status} {_message_in(document, answer)}")
            time.sleep(wait_s)
        raise AssertionError("the last attempt either returns or raises")

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._prefix + path, body=body, headers=dict(headers))
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()


def set_up_workspace(agent: Agent, *, card: str, workspace: str, cluster: str, amount: int) -> None:
    """Volume, name, configuration, hold, cluster; then, past return, take the money.

    Raises:
        StepFailedError: a step failed for good; those before it have happened.
    """
    agent.step("check the card", "GET", f"/payments/v1/payment_methods/{card}")
    volume = agent.step(
        "create a volume", "POST", "/volumes/2015-02-01/file-systems", send={"CreationToken": f"{workspace}-volume"}
    )
    agent.step("reserve the name", "PUT", f"/storage/{workspace}")
    configuration = {"volume": volume.get("FileSystemId"), "cluster": cluster}
    agent.step("write the configuration", "PUT", f"/storage/{workspace}/config.json", send=configuration)
    hold = agent.step(
        "hold the money",
        "POST",
        "/payments/v1/payment_intents",
        form={
            "amount": str(amount),
            "currency": "eur",
            "payment_method": card,
            "capture_method": "manual",
            "confirm": "true",
            "metadata[workspace]": workspace,
        },
    )
    agent.step(
        "start the cluster",
        "POST",
        "/clusters/clusters",
        send={
            "name": cluster,
            "roleArn": "arn:aws:iam::123456789012:role/workspace",
            "resourcesVpcConfig": {"subnetIds": ["subnet-1", "subnet-2"]},
        },
    )
    agent.step("take the money", "POST", f"/payments/v1/payment_intents/{hold['id']}/capture")
    agent.step("look at the payment", "GET", f"/payments/v1/payment_intents/{hold['id']}")


def _encode(send: object, form: Mapping[str, str] | None) -> tuple[dict[str, str], bytes | None]:
    if form is not None:
        return {"Content-Type": "application/x-www-form-urlencoded"}, urllib.parse.urlencode(form).encode()
    if send is not None:
        return {"Content-Type": "application/json"}, json.dumps(send).encode()
    return {}, None


def _wait_before_repeat(status: int, headers: http.client.HTTPMessage) -> float | None:
    if status not in REPEATABLE or headers.get("x-should-retry") == "false":
        return None
    try:
        return min(MAX_WAIT_S, float(headers.get("Retry-After", DEFAULT_WAIT_S)))
    except ValueError:
        return DEFAULT_WAIT_S


def _object_in(answer: bytes) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _facts(document: Mapping[str, Any]) -> dict[str, object]:
    """Pick what an error object says about itself, whoever wrote it."""
    names = ("code", "retry_after_ms", "dispatched", "detail", "message")
    return {name: document[name] for name in names if isinstance(document.get(name), str | int | float)}


def _message_in(document: Mapping[str, Any], answer: bytes) -> str:
    error = document.get("error")
    nested = error.get("message") if isinstance(error, dict) else None
    return str(document.get("detail") or document.get("message") or nested or answer[:200].decode("utf-8", "replace"))


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    """Run the script once; 0 if every step succeeded, 1 if one failed for good."""
    parser = argparse.ArgumentParser(description="Set up a workspace over HTTP, step by step.")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="sent with every call")
    parser.add_argument("--card", required=True)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--amount", type=int, default=4200)
    parser.add_argument("--paced", action="store_true", help="wait for a line on stdin before each step")
    options = parser.parse_args()
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in options.header)}
    agent = Agent(options.base_url, headers, is_paced=options.paced)
    try:
        set_up_workspace(
            agent,
            card=options.card,
            workspace=options.workspace,
            cluster=options.cluster,
            amount=options.amount,
        )
    except (StepFailedError, OSError, http.client.HTTPException) as error:
        _tell(event="gave_up", reason=str(error))
        return 1
    _tell(event="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
