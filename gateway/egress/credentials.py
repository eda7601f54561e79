"""An egress that puts a run's leased credential on each request, and the broker that takes, keeps and ends leases.

A tool whose credential is not leased costs a comparison. The broker asks an issuer once for each run and tool, however many
calls wait, and never twice at the same time. What an issuer says is shown nowhere: errors name it and its status.

A lease that ends is out of the book at once; its issuer is told beside that, and what was not told there within its time is
told to the operator. A tool that answers 401 has its lease ended, so that the next attempt comes with a fresh one.

Source: RFC 6749 sections 2.3.1, 4.4, 5.1; RFC 8693 sections 2.1, 2.2; RFC 7009 section 2.1.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final
from urllib.parse import quote_plus

import aiohttp
import orjson

from gateway.clock import Clock
from gateway.core.codes import Dispatched
from gateway.core.credential import (
    AwsSource,
    ExecSource,
    Lease,
    LeaseBook,
    LeaseSource,
    OAuthSource,
    StaticSource,
    good_for_s,
)
from gateway.core.fault import Broken, Fault
from gateway.core.headers import Sieve
from gateway.core.message import BytesBody, Headers, Reply, Request
from gateway.core.sigv4 import EMPTY_SHA256, UNSIGNED, sign
from gateway.core.tool import ToolSpec
from gateway.egress import Egress, Timings
from gateway.egress.framing import never_passed

__all__ = ["Broker", "LeasedEgress"]

ISSUER_S: Final = 10.0
REVOKE_S: Final = 10.0
PRINTED_BYTES: Final = 64 * 1024
ANSWER_BYTES: Final = 256 * 1024
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"


class NoCredential(Exception):
    """No credential can be had. The message holds no secret."""


class Broker:
    """Takes, keeps and ends leases.

    Attributes:
        on_taken, on_ended: told of each lease, the latter with why it ended; to be journaled by its id.
        agent_of: returns the agent of a run.
    """

    def __init__(self, clock: Clock) -> None:
        self.on_taken: Callable[[Lease], None] = lambda lease: None
        self.on_ended: Callable[[Lease, str], None] = lambda lease, why: None
        self.on_problem: Callable[[str, BaseException], None] = lambda where, error: None
        self.agent_of: Callable[[str], str] = lambda run: ""
        self.book = LeaseBook()
        self._clock = clock
        self._taking: dict[tuple[str, str], asyncio.Future[Lease]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._barred: set[str] = set()

    async def lease(self, tool: ToolSpec, run: str, source: LeaseSource) -> Lease:
        """Return the run's lease on a tool, taking one if there is none.

        Raises:
            NoCredential: none can be had, or it ended while it was taken.
        """
        found = self.book.find(tool.name, run, source, self._clock.now())
        if found is not None:
            return found
        key = (tool.name, run)
        taking = self._taking.get(key)
        if taking is None:
            taking = self._taking[key] = asyncio.ensure_future(self._take(tool.name, run, source))
            taking.add_done_callback(lambda done: self._taken(key, done))
        # A call that is cut must not take the lease away from the others who wait for it.
        return await asyncio.shield(taking)

    def _taken(self, key: tuple[str, str], done: asyncio.Future[Lease]) -> None:
        self._taking.pop(key, None)
        if not done.cancelled():
            done.exception()

    async def _take(self, tool: str, run: str, source: LeaseSource) -> Lease:
        agent = self.agent_of(run)
        match source.source:
            case StaticSource(value):
                told: tuple[str, float | None] = (value, None)
            case AwsSource():
                told = ("", None)
            case OAuthSource():
                told = await self._token(tool, source.source)
            case ExecSource():
                told = await _printed(tool, run, agent, source.source)
        lease = Lease(
            id=self._clock.token()[:16],
            tool=tool,
            run=run,
            agent=agent,
            kind=source.kind,
            expires_s=self._clock.now() + good_for_s(source.ttl_s, told[1]),
            source=source,
            value=told[0],
        )
        if run in self._barred:
            self._tell(lease)
            raise NoCredential(f"run {run} may not prove itself any more")
        before = self.book.add(lease)
        if before is not None:
            self._ended([before], "renewed")
        self.on_taken(lease)
        return lease

    # --- ending

    def end_run(self, run: str, why: str, *, is_barred: bool = False) -> list[Lease]:
        """End the leases of a run, here at once; return them. `is_barred`: it gets no more, until `readmit`."""
        if is_barred:
            self._barred.add(run)
        return self._ended(self.book.end_run(run), why)

    def end_agent(self, agent: str, why: str) -> list[Lease]:
        """End the leases of all runs of an agent, here at once; return them."""
        return self._ended(self.book.end_agent(agent), why)

    def readmit(self, run: str) -> None:
        """Let a run that was barred have leases again."""
        self._barred.discard(run)

    def expire(self) -> None:
        """End the leases whose time is up."""
        self._ended(self.book.expired(self._clock.now()), "expired")

    def keep_only(self, sources: set[LeaseSource]) -> None:
        """End the leases that were had in another way than the manifest now says."""
        self._ended(self.book.keep_only(sources), "the manifest changed")

    def refused(self, lease: Lease) -> None:
        """The tool does not take a lease any more."""
        if self.book.end(lease):
            self._ended([lease], "the tool refused it")

    def _ended(self, leases: list[Lease], why: str) -> list[Lease]:
        for lease in leases:
            self.on_ended(lease, why)
            self._tell(lease)
        return leases

    def _tell(self, lease: Lease) -> None:
        if isinstance(lease.source.source, OAuthSource) and lease.source.source.settings.revoke_url is not None:
            task = asyncio.get_running_loop().create_task(self._revoke(lease, lease.source.source))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def told(self) -> int:
        """Return once every issuer has been told of what has ended, or was given up; how many that were."""
        count = len(self._telling)
        if self._telling:
            await asyncio.wait(set(self._telling))
        return count

    # --- OAuth

    async def _token(self, tool: str, source: OAuthSource) -> tuple[str, float | None]:
        settings = source.settings
        form = {"grant_type": "client_credentials" if settings.grant == "client_credentials" else _EXCHANGE}
        for name in ("scope", "audience", "resource"):
            if (value := getattr(settings, name)) is not None:
                form[name] = value
        if settings.grant == "token_exchange":
            form["subject_token"] = source.subject_token or ""
            form["subject_token_type"] = settings.subject_token_type
        try:
            status, data = await self._post(settings.token_url, form, source, ISSUER_S)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoCredential(f"the token endpoint for {tool} does not answer ({type(error).__name__})") from None
        told = _json(data)
        token, expires = told.get("access_token"), told.get("expires_in")
        if status != 200 or not isinstance(token, str) or not token or not token.isascii():
            code = told.get("error")
            said = f", {code}" if isinstance(code, str) and code.isascii() and len(code) < 64 else ""
            raise NoCredential(f"the token endpoint for {tool} answered {status}{said} and no token")
        is_time = isinstance(expires, int | float) and not isinstance(expires, bool) and expires > 0
        return f"Bearer {token}", float(expires) if is_time else None  # type: ignore[arg-type]

    async def _revoke(self, lease: Lease, source: OAuthSource) -> None:
        form = {"token": lease.value.removeprefix("Bearer "), "token_type_hint": "access_token"}
        assert source.settings.revoke_url is not None
        try:
            status, _ = await self._post(source.settings.revoke_url, form, source, REVOKE_S)
            if status != 200:
                raise NoCredential(f"the revocation endpoint answered {status}")
        except (aiohttp.ClientError, TimeoutError, OSError, NoCredential) as error:
            # The text of a client's error may quote what was sent.
            why = error if isinstance(error, NoCredential) else NoCredential(type(error).__name__)
            self.on_problem(f"revoking {lease}", why)

    async def _post(self, url: str, form: dict[str, str], source: OAuthSource, limit_s: float) -> tuple[int, bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        settings, headers = source.settings, {"Accept": "application/json"}
        if settings.authentication == "basic":
            # RFC 6749 section 2.3.1: both are form-encoded before they are joined.
            user = f"{quote_plus(settings.client_id)}:{quote_plus(source.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        else:
            form = {**form, "client_id": settings.client_id, "client_secret": source.client_secret}
        timeout = aiohttp.ClientTimeout(total=limit_s)
        async with self._session.post(
            url, data=form, headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            return answer.status, await answer.content.read(ANSWER_BYTES)

    async def close(self) -> None:
        """Tell the issuers of what is left, but not for long, and close. May be repeated."""
        for lease in self.book.all():
            self.book.end(lease)
            self._tell(lease)
        if self._telling:
            await asyncio.wait(set(self._telling), timeout=2.0)
        for task in list(self._telling):
            task.cancel()
        if self._session is not None:
            await self._session.close()


class LeasedEgress:
    """An `Egress` in front of another one."""

    def __init__(self, inner: Egress, broker: Broker, clock: Clock) -> None:
        self._sifting: tuple[ToolSpec, Sieve] | None = None
        self.inner = inner
        self._broker = broker
        self._clock = clock

    def send(self, tool: ToolSpec, request: Request, timings: Timings) -> Awaitable[Reply | Broken]:
        """Send once; see `Egress`."""
        source = tool.leases
        if source is None:
            return self.inner.send(tool, request, timings)
        return self._proven(tool, request, timings, source)

    async def _proven(self, tool: ToolSpec, request: Request, timings: Timings, source: LeaseSource) -> Reply | Broken:
        run = request.exchange if isinstance(request.exchange, str) else ""
        try:
            async with asyncio.timeout(timings.total_s):
                lease = await self._broker.lease(tool, run, source)
                fields = await self._fields(tool, request, lease)
        except (NoCredential, TimeoutError) as error:
            why = str(error) or "it took too long"
            return Broken(Fault.CONNECT, Dispatched.NO, f"there is no credential for {tool.name}: {why}")
        headers = request.headers if request.is_sifted else self._sieve(tool)(request.headers)
        sent = replace(request, headers=(*headers, *fields), is_sifted=True)
        answer = await self.inner.send(tool, sent, timings)
        if isinstance(answer, Reply) and answer.status == 401:
            self._broker.refused(lease)
        return answer

    def _sieve(self, tool: ToolSpec) -> Sieve:
        if self._sifting is None or self._sifting[0] is not tool:
            self._sifting = (tool, Sieve(never_passed(tool)))
        return self._sifting[1]

    async def _fields(self, tool: ToolSpec, request: Request, lease: Lease) -> Headers:
        source = lease.source.source
        if not isinstance(source, AwsSource):
            return ((lease.source.header.encode("ascii"), lease.value.encode()),)
        path, _, query = (tool.upstream.prefix + request.target.decode("latin-1")).partition("?")
        return tuple(
            sign(
                source.key,
                service=source.service,
                region=source.region,
                method=request.method,
                path=path,
                query=query,
                host=tool.upstream.authority,
                headers=request.headers,
                payload_sha256=await _digest(request),
                at=self._clock.at(),
            )
        )

    async def close(self) -> None:
        """Close the broker and what is behind. May be repeated."""
        await self._broker.close()
        await self.inner.close()


async def _digest(request: Request) -> str:
    body = request.body
    if body is None:
        return EMPTY_SHA256
    if isinstance(body, BytesBody):
        return hashlib.sha256(body.data).hexdigest()
    if not body.is_replayable:
        return UNSIGNED
    digest = hashlib.sha256()
    async for chunk in body.chunks():
        digest.update(chunk)
    return digest.hexdigest()


async def _printed(tool: str, run: str, agent: str, source: ExecSource) -> tuple[str, float | None]:
    """Run the program and return what it says."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environment |= dict(source.environment)
    environment |= {"SEAWALL_RUN": run, "SEAWALL_AGENT": agent, "SEAWALL_TOOL": tool}
    try:
        process = await asyncio.create_subprocess_exec(
            *source.settings.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:
        raise NoCredential(f"the program for {tool} cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(source.settings.timeout):
            assert process.stdout is not None
            printed = await process.stdout.read(PRINTED_BYTES)
            code = await process.wait()
    except TimeoutError:
        raise NoCredential(f"the program for {tool} took longer than {source.settings.timeout:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code != 0:
        raise NoCredential(f"the program for {tool} ended with {code}")
    told = _json(printed)
    value, expires = told.get("value"), told.get("expires_in")
    if not isinstance(value, str) or not value or any(ord(one) < 0x20 or ord(one) == 0x7F for one in value):
        raise NoCredential(f'the program for {tool} did not print {{"value": …}}')
    is_time = isinstance(expires, int | float) and not isinstance(expires, bool) and expires > 0
    return value, float(expires) if is_time else None  # type: ignore[arg-type]


def _json(data: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_proof: type[Egress] = LeasedEgress
