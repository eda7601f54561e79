"""The agent's own AWS signature through the gateway: an S3 server that checks it says where it survives, and where not."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from gateway.demo.world import World
from tests.gateway.harness import Serving, serving

TOOL = """
version: 1
tools:
  storage:
    upstream: http://127.0.0.1:5000
    hosts: [s3.amazonaws.com]
    operations:
      write: {match: "PUT /{bucket}/{key}", tier: pivot}
"""
ALLOWED = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


class Store:
    """moto, which checks signatures once it is told to, and a user who may do anything there."""

    def __init__(self, world: World) -> None:
        self.url = f"http://127.0.0.1:{world.port('storage')}"
        self.key: dict[str, str] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}

    def client(self, service: str, url: str | None = None, **settings: Any) -> Any:
        config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **settings)
        return boto3.client(service, endpoint_url=url or self.url, region_name="us-east-1", config=config, **self.key)

    def lock(self) -> None:
        iam = self.client("iam")
        iam.create_user(UserName="agent")
        iam.put_user_policy(UserName="agent", PolicyName="all", PolicyDocument=json.dumps(ALLOWED))
        made = iam.create_access_key(UserName="agent")["AccessKey"]
        self.key = {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
        plain = {"Content-Type": "text/plain"}
        asked = urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", plain, method="POST")
        urllib.request.urlopen(asked).close()
        self.client("s3").create_bucket(Bucket="orders")


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


async def written(on: Serving) -> list[str]:
    """The states of all steps that write."""
    runs = (await on.operator.send("GET", "/api/v1/trajectories")).json["trajectories"]
    shown = [(await on.agent.send("GET", f"/seawall/v1/trajectories/{run['id']}")).json["steps"] for run in runs]
    return [step["state"] for steps in shown for step in steps if step["operation"] == "write"]


async def test_a_signature_survives_a_proxy_variable_and_no_other_way(tmp_path: Path) -> None:
    """Through the proxy path and Host stay as they were signed; a base URL, or another host than the tool's, is signed for
    a request that the server never sees."""
    world = World(tmp_path)
    try:
        await world.start()
        store = Store(world)
        await asyncio.to_thread(store.lock)
        async with serving(tmp_path, 0, TOOL.replace("http://127.0.0.1:5000", store.url)) as on:
            forged = Store(world)
            forged.key = store.key | {"aws_secret_access_key": "another"}
            with pytest.raises(ClientError) as refused:
                await asyncio.to_thread(forged.client("s3").list_buckets)
            assert code_of(refused) == "SignatureDoesNotMatch", "or nothing below would mean anything"
            proxies = {"http": on.gateway.listen}
            proxied = store.client("s3", proxies=proxies)
            for number, body in enumerate((b"two pounds", b"", b"x" * 300_000)):
                name = f"tea & {number}"
                await asyncio.to_thread(proxied.put_object, Bucket="orders", Key=name, Body=body, Metadata={"a": "b"})
                got = await asyncio.to_thread(proxied.get_object, Bucket="orders", Key=name)
                assert await asyncio.to_thread(got["Body"].read) == body
            assert await written(on) == ["committed"] * 3
            listed = await asyncio.to_thread(proxied.list_objects_v2, Bucket="orders", Prefix="tea & ")
            assert len(listed["Contents"]) == 3
            for url, settings in (
                (f"{on.gateway.listen}/storage", {}),
                ("http://s3.amazonaws.com", {"proxies": proxies}),
            ):
                client = store.client("s3", url, **settings)
                with pytest.raises(ClientError) as refused:
                    await asyncio.to_thread(client.put_object, Bucket="orders", Key="no", Body=b"x")
                assert code_of(refused) == "SignatureDoesNotMatch", "the tool's own words reach the client"
    finally:
        await world.stop()
