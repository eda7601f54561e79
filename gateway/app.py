"""The composition root: the one file that names concrete adapters, and the life of a gateway.

Start: journal (locked, migrated) → manifest → control plane (alive, not ready) → recovery of open runs → data plane.
Stop: refuse new calls → let calls in flight finish, mark the rest in doubt → stop the workers → flush and close the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web

from gateway import __version__
from gateway.clock import Clock, SystemClock
from gateway.config.errors import ConfigError
from gateway.config.schema import packet_schemas
from gateway.config.source import ManifestSource, diff
from gateway.config.tokens import TokenFile, TokenFileError
from gateway.config.watch import changes
from gateway.core.authority import Authority as HostAuthority
from gateway.core.credential import AwsSource, ExecSource, Lease, LeaseSource, OAuthSource, StaticSource
from gateway.core.forwarding import via
from gateway.core.mcp_session import Client as McpClient
from gateway.core.outcome import Refusal
from gateway.core.records import LeaseEnded, LeaseTaken
from gateway.core.server import Address, JournalBackend, ServerSettings
from gateway.core.tokens import Tokens
from gateway.core.tool import Catalog
from gateway.core.trajectory import Phase
from gateway.egress import Egress
from gateway.egress.client import ClientEgress
from gateway.egress.credentials import Broker, LeasedEgress
from gateway.egress.direct import DirectEgress
from gateway.egress.mcp import McpEgress
from gateway.egress.mcp_memory import SessionMemory
from gateway.egress.spool import Spool
from gateway.ingress.caller import Caller, Door
from gateway.ingress.claims import Claims
from gateway.ingress.containment import Containments
from gateway.ingress.control import Control, control_app, health_app
from gateway.ingress.desk import Desk
from gateway.ingress.forward import Forward, Traveller
from gateway.ingress.guard import guard
from gateway.ingress.http import HttpFront
from gateway.ingress.mcp import McpFront
from gateway.ingress.mcp_listing import Listings
from gateway.ingress.mcp_pipes import StdioFront
from gateway.ingress.mcp_service import McpService
from gateway.ingress.proxy import Proxy, ProxyLimits, refuse_request
from gateway.ingress.runs import Runs
from gateway.ingress.tasks import Tasks
from gateway.ingress.tunnel import TunnelDoor
from gateway.ingress.unix import bind_unix
from gateway.ingress.websocket import WebSockets
from gateway.journal import Journal, JournalError, JournalStats
from gateway.journal.committer import CommitterSettings
from gateway.journal.containment import ContainmentLog
from gateway.journal.memory import MemoryJournal
from gateway.journal.sqlite import SqliteJournal
from gateway.journal.trajectories import Trajectories
from gateway.pipeline import Stages
from gateway.probes.http import HttpProbe
from gateway.probes.verifier import HttpVerifier
from gateway.stages.admission import AdmissionStage
from gateway.stages.approval import ApprovalStage
from gateway.stages.breaker import REMEMBERED, BreakerStage
from gateway.stages.budget import BudgetStage
from gateway.stages.deadline import DeadlineStage
from gateway.stages.dispatch import Dispatch
from gateway.stages.flights import Flights
from gateway.stages.hold import HoldStage
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.outbox import OutboxStage
from gateway.stages.policy import DECIDED, PolicyStage
from gateway.stages.quarantine import QuarantineStage
from gateway.stages.recovery import REPAIRS, RecoveryStage
from gateway.stages.retry import RetryStage
from gateway.stages.saga import SagaStage
from gateway.stages.settle import Settle
from gateway.stages.telemetry import TelemetryStage
from gateway.stages.watchdog import WatchdogStage
from gateway.telemetry import DomainUse, Statistics, Telemetry
from gateway.workers.collector import Collector
from gateway.workers.escalator import Escalator
from gateway.workers.finalizer import Finalizer
from gateway.workers.janitor import Janitor
from gateway.workers.keeper import Keeper
from gateway.workers.notifier import Notifier
from gateway.workers.parker import Parker
from gateway.workers.quarantine import Quarantiner, Subject
from gateway.workers.restart import recover
from gateway.workers.settler import SettlePatience, Settler
from gateway.workers.suspender import Suspender
from gateway.workers.unwinder import Patience, Unwinder

if TYPE_CHECKING:
    from gateway.ingress.certificates import Authority

__all__ = ["Gateway", "StartError"]

_log = logging.getLogger("gateway")

MCP_SESSIONS: Final = "mcp-session/"
"""Where sessions with MCP servers are kept in the journal's small memory, by slot."""


MCP_ENDED: Final = "mcp-ended/"
"""Where the sessions that MCP clients have ended are kept there, by slot."""

_QUEUED_BESIDE_CALLS: Final = 4_096
"""Appends to the journal that may wait for the disk beside those of calls in flight, each of which has one at most."""


class StartError(Exception):
    """The gateway cannot start as it is set up. The message says what to change."""


class Gateway:
    """One gateway: its parts, its start and its end.

    Attributes:
        listen: where agents connect, with the real port, once started.
        control: where operators connect, with the real port, once started.
        metrics: where health and metrics alone are served, once started; empty if nowhere.
        reload_problem: why the last reload was not taken, or None.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        environ: Mapping[str, str] | None = None,
        lock_wait_s: float = 0.0,
    ) -> None:
        """`lock_wait_s`: for how long to wait for the data folder, if the gateway before it is still on its way out."""
        self.settings = settings
        self._lock_wait_s = lock_wait_s
        self.listen = ""
        self.control = ""
        self.metrics = ""
        self.reload_problem: str | None = None
        self._clock = clock or SystemClock()
        self._telemetry = telemetry or Telemetry(self._clock)
        self._environ = environ
        self._not_ready: str | None = "starting"
        self._stats: JournalStats | None = None
        self._keeper: Keeper | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit = contextlib.AsyncExitStack()

    # --- start

    async def start(self) -> None:
        """Start everything, recover open runs, and listen.

        Raises:
            ConfigError: the manifest cannot be used.
            StartError: the settings cannot be used together.
            JournalError: the journal cannot be opened or recovered.
            OSError: an address cannot be listened on.
        """
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise

    async def _start(self) -> None:
        settings = self.settings
        if settings.manifest is None:
            raise StartError(
                "No manifest was named. Start with --manifest PATH; `seawall check PATH` says what is in it."
            )
        self._journal = await self._open_journal()
        self._exit.push_async_callback(self._journal.close)
        salt = await self._journal.meta("salt", bytes.fromhex(self._clock.token() + self._clock.token()))
        digest_key = await self._journal.meta("digest_key", bytes.fromhex(self._clock.token()))
        self._source = ManifestSource(
            settings.manifest, secrets=settings.secrets, environ=self._environ, digest_key=digest_key
        )
        self._catalog = await asyncio.to_thread(self._source.load)
        self._token_file = self._read_tokens()
        self._authority = self._load_authority()
        self._build(salt, await self._journal.meta("mcp_key", bytes.fromhex(self._clock.token() + self._clock.token())))
        self._stages.breaker.restore(await self._journal.recall(REMEMBERED))
        await self._listings.load()
        await self._load_sessions()
        await self._mcp.service.tasks.load()
        self._stages.recovery.restore(await self._journal.recall(REPAIRS))
        self._stages.policy.restore(await self._journal.recall(DECIDED))
        self._in_force(self._catalog)
        await self._containment.load()
        await self._serve_control()
        runs = await recover(self._trajectories, self._catalog)
        # Only now: what is left to do in a run may begin when every run is classified, and none that drifted is touched.
        self._trajectories.on_unwinding = self._wake_unwinder
        self._trajectories.on_finalizing = self._wake_finalizer
        self._quarantiner.enforce()
        self._trajectories.on_read = self._quarantiner.enforce_on
        await self._stages.budget.settle_children()
        self._resume()
        _log.info("recovered", extra={"event": "recovered", "open_runs": {kind.value: n for kind, n in runs.items()}})
        await self._serve_agents()
        self._mcp.service.tasks.resume()
        self._spawn(self._janitor.run(), "janitor")
        self._spawn(Parker(self._trajectories, self._clock).run(), "the parker")
        self._spawn(self._escalator.run(), "escalator")
        self._spawn(self._notifier.run(), "notifier")
        self._spawn(self._settler.run(), "settler")
        if self._keeper is not None:
            self._spawn(self._keeper.run(), "the journal's keeper")
        self._spawn(self._refresh(), "figures")
        self._spawn(Collector(lambda: self._trajectories.awake, self._clock).run(), "the collector")
        self._spawn(self._websockets.run(), "WebSockets")
        if self._token_file is not None:
            self._spawn(self._follow_tokens(self._token_file), "follow the tokens")
        if settings.watch:
            self._spawn(self._watch(), "watch the manifest")
        self._not_ready = None
        _log.info("listening", extra={"event": "listening", "listen": self.listen, "control": self.control})

    async def _open_journal(self) -> Journal:
        if self.settings.journal.backend is JournalBackend.MEMORY:
            return MemoryJournal()
        settings = self.settings.journal
        journal = await SqliteJournal.open(
            Path(self.settings.data),
            on_commit=self._telemetry.journal_committed,
            keys=settings.keys,
            checkpoint=settings.checkpoint,
            settings=CommitterSettings(
                patience_s=settings.patience, queue_appends=_QUEUED_BESIDE_CALLS + self.settings.limits.in_flight
            ),
            wait_s=self._lock_wait_s,
            on_wait=lambda held: _log.info("waiting for the data folder", extra={"event": "locked", "held": str(held)}),
        )
        self._keeper = Keeper(
            journal,
            self._clock,
            self._telemetry,
            checkpoint_s=settings.checkpoint_every,
            retention_s=settings.retention,
            archive=settings.archive,
        )
        if not journal.is_key_apart:
            _log.warning(
                "the key ring lies in the data folder: the seal shows damage, not an attacker who may write there; "
                "name a file elsewhere with --journal-keys",
                extra={"event": "key_ring_in_data"},
            )
        return journal

    def _read_tokens(self) -> TokenFile | None:
        if self.settings.tokens is None:
            return None
        file = TokenFile(self.settings.tokens)
        try:
            file.read()
        except TokenFileError as error:
            raise StartError(str(error)) from None
        return file

    def _load_authority(self) -> Authority | None:
        forward = self.settings.forward
        if not forward.intercept:
            return None
        # cryptography is slow to import, and few need it.
        try:
            from gateway.ingress.certificates import Authority, AuthorityError
        except ModuleNotFoundError:
            raise StartError("forward.intercept needs an extra: pip install 'seawall[intercept]'") from None
        try:
            authority = Authority.load(Path(forward.ca or Path(self.settings.data) / "ca"))
        except AuthorityError as error:
            raise StartError(f"forward.intercept: {error}") from None
        if not authority.is_good(self._clock.at()):
            raise StartError(
                "forward.intercept: the authority is no longer good; make a new one with `seawall ca init`"
            )
        return authority

    def _tokens(self) -> Tokens | None:
        return None if self._token_file is None else self._token_file.tokens

    async def _follow_tokens(self, file: TokenFile) -> None:
        """Take over what was issued and revoked. A file that cannot be used any more changes nothing."""
        while True:
            await self._clock.sleep(1.0)
            self._cut_off()
            if not await asyncio.to_thread(file.has_changed):
                continue
            try:
                await asyncio.to_thread(file.read)
                _log.info("tokens read", extra={"event": "tokens", "count": len(file.tokens.entries)})
                self._cut_off()
            except TokenFileError as error:
                _log.error("the tokens in force stay so", extra={"event": "tokens", "problem": str(error)})

    def _build(self, salt: bytes, mcp_key: bytes) -> None:
        settings, clock, telemetry, journal = self.settings, self._clock, self._telemetry, self._journal
        limits = settings.limits
        pseudonym = b"seawall-" + blake2b(salt, digest_size=6).hexdigest().encode()
        self._spool = Spool(Path(settings.data) / "spool", memory_limit=limits.memory)
        self._exit.callback(self._spool.close)
        # The stock client instrumentation can only see aiohttp's own client.
        backend = ClientEgress if settings.telemetry.auto_instrument else DirectEgress
        http: Egress = backend(self._spool, answer_limit=limits.answer)
        self._broker = Broker(clock)
        self._egress = McpEgress(
            LeasedEgress(http, self._broker, clock), clock, SessionMemory(partial(self._keep, MCP_SESSIONS))
        )
        self._exit.push_async_callback(self._egress.close)
        self._trajectories = Trajectories(
            journal, clock, telemetry, salt=salt, implicit_steps=settings.runs.implicit_steps
        )
        self._containment = ContainmentLog(journal, clock, telemetry, pseudonym.decode())
        self._exit.push_async_callback(self._containment.close)
        self._flights = Flights(self._containment.state)
        breaker = BreakerStage(clock, telemetry, journal.remember)
        self._verifier = HttpVerifier(lambda: self._pipeline, self.catalog, clock)
        probers = {"http": HttpProbe(self.catalog, clock)}
        policy = PolicyStage(self._trajectories, clock, journal.remember, is_shadow=settings.shadow)
        in_shadow = policy.note_shadow if settings.shadow else None
        watchdog = WatchdogStage(
            self._trajectories, self.catalog, clock, telemetry, probers["http"], lambda: self._pipeline, in_shadow
        )
        self._stages = Stages(
            telemetry=TelemetryStage(clock, telemetry),
            recovery=RecoveryStage(self._trajectories, clock, telemetry, journal.remember, self.catalog),
            budget=BudgetStage(self._trajectories, clock, in_shadow),
            watchdog=watchdog,
            policy=policy,
            idempotency=IdempotencyStage(self._trajectories, journal, clock),
            hold=HoldStage(self._containment, self.catalog, clock, in_shadow),
            quarantine=QuarantineStage(self._containment, self._trajectories, in_shadow),
            saga=SagaStage(self._trajectories, journal, telemetry),
            approval=ApprovalStage(self._trajectories, self._verifier, clock, telemetry),
            outbox=OutboxStage(self._trajectories, clock, telemetry),
            deadline=DeadlineStage(clock, telemetry),
            retry=RetryStage(clock, telemetry, Settle(probers, clock)),
            admission=AdmissionStage(clock, telemetry, breaker.peek),
            breaker=breaker,
            journal=JournalStage(self._trajectories, clock, telemetry),
            dispatch=Dispatch(self._egress, clock, telemetry, (via(pseudonym),), self._flights),
        )
        pipeline = self._pipeline = self._stages.pipeline()
        self._exit.push_async_callback(watchdog.close)
        # What is undone after it takes leases of its own.
        watchdog.revoke = lambda run: self._broker.end_run(run, "semantic deadlock")
        self._settler = Settler(
            self._trajectories, pipeline, self.catalog, clock, telemetry, SettlePatience(limit_s=settings.runs.settle)
        )
        self._exit.push_async_callback(self._settler.close)
        self._unwinder = Unwinder(
            self._trajectories,
            pipeline,
            self.catalog,
            clock,
            telemetry,
            self._settler,
            probers,
            Patience(elapsed_s=settings.runs.unwind),
        )
        self._exit.push_async_callback(self._unwinder.close)
        self._finalizer = Finalizer(
            self._trajectories, pipeline, self.catalog, clock, telemetry, Patience(elapsed_s=settings.runs.finalize)
        )
        self._exit.push_async_callback(self._finalizer.close)
        self._notices = ClientEgress(self._spool, answer_limit=1 << 20)
        self._exit.push_async_callback(self._notices.close)
        self._notifier = Notifier(
            self._trajectories,
            self._notices,
            lambda: self._catalog.sinks,
            clock,
            telemetry,
            source=socket.gethostname(),
        )
        self._trajectories.on_notice = self._notifier.wake
        self._escalator = Escalator(self._trajectories, clock, telemetry, resume=self._resume)
        self._runs = Runs(
            self._trajectories,
            self._spool,
            clock,
            self.catalog,
            watchdog,
            Tasks(self._trajectories, clock, packet_schemas(), self._containment),
        )
        self._claims = Claims(self._containment, self.catalog, clock)
        self._runs.hand_off, self._runs.receive = self._claims.hand_off, self._claims.receive
        self._janitor = Janitor(
            self._trajectories, clock, telemetry, idle_s=settings.runs.implicit_idle, catalog=self.catalog
        )
        self._tunnels = TunnelDoor(
            clock,
            limit=settings.forward.tunnels,
            idle_s=settings.forward.tunnel_idle,
            certificates=self._authority,
        )
        self._quarantiner = Quarantiner(self._containment, self._trajectories, self._flights, clock, telemetry)
        self._exit.push_async_callback(self._quarantiner.close)
        suspender = Suspender(lambda: dict(self._catalog.suspensions), clock)
        self._quarantiner.suspend, self._quarantiner.resume = suspender.suspend, suspender.resume
        self._quarantiner.sever.append(self._cut_tunnels)
        self._quarantiner.revoke_here.append(self._revoke)
        self._quarantiner.revoke_outside["issuers"] = self._told_issuers
        self._trajectories.on_phase = self._phase_changed
        self._broker.on_taken, self._broker.on_ended = self._lease_taken, self._lease_ended
        self._broker.on_problem = telemetry.background_failed
        self._broker.agent_of = self._agent_of
        self._stages.policy.on_quarantine = self._quarantiner.on_rule
        self._forward = Forward(settings.forward, self.catalog, self._tunnels)
        self._proxy = Proxy(
            self._catalog,
            pipeline,
            self._runs,
            self._trajectories,
            self._spool,
            clock,
            telemetry,
            ProxyLimits(body_memory=limits.memory, body_max=limits.body, in_flight=limits.in_flight),
            pseudonym,
            self._forward,
            breaker.peek,
            pipeline.refused_at_once,
        )
        self._proxy.held_by = self._quarantiner.is_quarantined
        self._proxy.on_stray = self._quarantiner.on_stray
        self._proxy.contained = self._containment.state.agents
        self._websockets = WebSockets(clock)
        self._proxy.carry = self._websockets.carry
        self._listings = Listings(self.catalog, self._egress, journal, clock)
        service = McpService(
            self.catalog,
            self._egress,
            self._proxy.run,
            self._listings,
            self._trajectories,
            clock,
            journal,
            self._approval,
        )
        service.held_by = self._quarantiner.is_quarantined
        service.tasks.is_known = self._is_known
        self._mcp = self._proxy.mcp = McpFront(
            service,
            self._spool,
            clock,
            mcp_key,
            body_max=limits.body,
            sessions_max=limits.mcp_sessions,
            is_local=lambda: settings.listen_address.is_local,
            keep_ended=partial(self._keep, MCP_ENDED, is_urgent=True),
        )
        self._exit.push_async_callback(self._mcp.close)
        telemetry.observe(self._statistics)

    async def _load_sessions(self) -> None:
        kept = await self._journal.recall(MCP_SESSIONS)
        slots = {int(name.removeprefix(MCP_SESSIONS)): data for name, data in kept.items()}
        for broken in self._egress.memory.load(slots):
            self._journal.remember(f"{MCP_SESSIONS}{broken}", b"")
        self._egress.restored()
        ended = await self._journal.recall(MCP_ENDED)
        self._mcp.ended.load({int(name.removeprefix(MCP_ENDED)): data for name, data in ended.items()})

    async def _keep(self, where: str, slot: int, data: bytes, is_urgent: bool) -> None:
        """Have what is known of sessions kept; where the disk refuses, it is not known after a restart."""
        self._journal.remember(f"{where}{slot}", data)
        if is_urgent:
            with contextlib.suppress(JournalError):
                await self._journal.flush()

    async def _serve_control(self) -> None:
        control = Control(
            runs=self._runs,
            desk=Desk(self._trajectories, self._clock, self._quarantiner.is_quarantined, self._shown_quarantine),
            claims=self._claims,
            containment=Containments(self._quarantiner, self._trajectories, self._verify_artifact),
            journal=self._journal,
            metrics=self._telemetry.render,
            readiness=self._readiness,
            listings=self._listings,
            statistics={
                "breakers": self._stages.breaker.statistics,
                "domains": self._stages.admission.statistics,
                "rules": self._stages.policy.statistics,
                "repairs": self._stages.recovery.statistics,
                "manifest": self._manifest_status,
                "status": self._status,
            },
            guard=guard(self._tokens, self._clock),
        )
        self.control = await self._serve_app(control_app(control), self.settings.control_address)
        if (address := self.settings.metrics_address) is not None:
            self.metrics = await self._serve_app(health_app(control), address)

    async def _serve_app(self, app: web.Application, address: Address) -> str:
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._exit.push_async_callback(runner.cleanup)
        if address.path:
            bound = bind_unix(Path(address.path), int(self.settings.socket_mode, 8))
            await web.SockSite(runner, bound).start()
            self._exit.callback(Path(address.path).unlink, missing_ok=True)
            return str(address)
        await web.TCPSite(runner, address.host or None, address.port).start()
        return _url(runner.addresses[0], address)

    async def _serve_agents(self) -> None:
        address = self.settings.listen_address
        limits = self.settings.limits
        door = self._forward.handler = Door(
            self._proxy, self._tokens, self._clock, partial(self._telemetry.refused, "other"), self._proxy.at_once
        )
        self._front = HttpFront(
            door,
            refuse=refuse_request,
            at_once=door.at_once,
            refusing=self._proxy.refusing,
            line_bytes=limits.request_line,
            field_bytes=limits.header_field,
            fields=limits.header_fields,
        )
        self._exit.push_async_callback(self._front.close)
        self._tunnels.adopt = self._front.adopt
        if address.path:
            await self._front.listen_unix(Path(address.path), int(self.settings.socket_mode, 8))
            self.listen = str(address)
            return
        port = await self._front.listen(address.host, address.port)
        self.listen = _url((address.host, port), address)
        self._forward.own = _own_authorities(address, port)

    def _cut_off(self) -> None:
        """Cut what is open under a token that was revoked or has expired: streams, tunnels, reads. Writes are finished."""
        tokens = self._tokens()
        if tokens is None:
            return
        at = self._clock.at()
        if cut := self._front.cut(lambda entry: tokens.is_good(entry, at)):
            _log.warning("connections of agents without a good token were cut", extra={"event": "cut", "count": cut})

    def _is_known(self, client: McpClient) -> bool:
        tokens = self._tokens()
        return not client.is_proven or tokens is None or tokens.knows(client.agent, self._clock.at())

    # --- the manifest in force

    def catalog(self) -> Catalog:
        """Return the catalog in force."""
        return self._catalog

    async def reload(self) -> bool:
        """Load the manifest again; swap what changed, or leave everything as it is if it is bad. Returns whether it was
        taken. Calls in flight keep the tool they started with."""
        try:
            catalog = await asyncio.to_thread(self._source.load, self._catalog)
        except ConfigError as error:
            self.reload_problem = str(error)
            _log.error(
                "reload refused, the running manifest stays in force", extra={"event": "reload", "problem": str(error)}
            )
            return False
        change = diff(self._catalog, catalog)
        self.reload_problem = None
        self._catalog = self._proxy.catalog = catalog
        self._in_force(catalog)
        await self._egress.keep_only(catalog.tools)
        _log.info("reloaded", extra={"event": "reload", "change": str(change)})
        return True

    def _in_force(self, catalog: Catalog) -> None:
        self._telemetry.manifest_loaded(catalog.tools)
        self._telemetry.redact(_secrets(catalog))
        self._pipeline.reconfigure()
        self._stages.retry.reconfigure(catalog)
        self._stages.admission.reconfigure(catalog)
        self._stages.breaker.reconfigure(catalog)
        self._stages.policy.reconfigure(catalog)
        self._broker.keep_only({tool.leases for tool in catalog.tools.values() if tool.leases is not None})

    async def _watch(self) -> None:
        async for _ in changes(self._source, asyncio.Event()):
            await self.reload()

    async def serve_pipes(
        self, tool: str, reader: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve one MCP server to one client over pipes, until the client closes its own."""
        await StdioFront(self._mcp, self._catalog.tools[tool], self._clock.token()).serve(reader, write)

    async def _approval(self, identity: str, wait_s: float, caller: Caller) -> Mapping[str, object] | Refusal:
        shown = await self._runs.approval("GET", identity, wait_s, caller)
        return shown if isinstance(shown, Refusal) else shown.view

    # --- what is contained

    def _cut_tunnels(self, subject: Subject) -> int:
        """A tunnel that named no run may be anybody's of its agent."""

        def is_meant(whose: Traveller) -> bool:
            return whose.agent == subject.agent and (not subject.run or whose.run in ("", subject.run))

        def is_severed(agent: str, run: str) -> bool:
            return self._quarantiner.is_quarantined(run, agent) is not None

        return self._tunnels.cut(is_meant) + self._websockets.cut(is_severed)

    def _shown_quarantine(self, run: str, agent: str) -> dict[str, object] | None:
        held = self._quarantiner.is_quarantined(run, agent)
        return None if held is None else self._quarantiner.view(held)

    async def _verify_artifact(self, name: str, artifact: str) -> str | None:
        verifier = self._catalog.clearers.get(name)
        if verifier is None:
            return (
                f"no verifier of that name may clear artifacts (known: {', '.join(self._catalog.clearers) or 'none'})"
            )
        env = {"params": {"artifact": artifact}, "request": {}, "trajectory": {"id": "", "agent": "seawall"}}
        deadline = self._clock.now() + 60.0
        return await self._verifier.ask(verifier, env, agent="seawall", run="", deadline=deadline)

    # --- credentials

    def _revoke(self, subject: Subject) -> int:
        ended = self._broker.end_run(subject.run, "quarantined", is_barred=True) if subject.run else []
        if not subject.run or self._quarantiner.is_quarantined("", subject.agent):
            ended += self._broker.end_agent(subject.agent, "quarantined")
        return len(ended)

    async def _told_issuers(self, subject: Subject) -> str:
        return f"{await self._broker.told()} told"

    def _phase_changed(self, run: str, phase: Phase) -> None:
        """A lease lasts while its run may use it."""
        if phase is Phase.FROZEN:
            self._broker.end_run(run, "frozen", is_barred=True)
            return
        self._broker.readmit(run)
        if phase in (Phase.SUCCEEDED, Phase.ABORTED_CLEAN, Phase.CLOSED):
            self._broker.end_run(run, "the run is over")
            self._stages.budget.settle(run)

    def _agent_of(self, run: str) -> str:
        known = self._trajectories.get(run)
        return "" if known is None else known.state.agent

    def _lease_taken(self, lease: Lease) -> None:
        left_ms = round((lease.expires_s - self._clock.now()) * 1000)
        told = LeaseTaken(lease=lease.id, tool=lease.tool, kind=lease.kind, until=self._clock.at() + left_ms)
        self._note_lease(lease, told)

    def _lease_ended(self, lease: Lease, why: str) -> None:
        self._note_lease(lease, LeaseEnded(lease=lease.id, tool=lease.tool, why=why))

    def _note_lease(self, lease: Lease, record: LeaseTaken | LeaseEnded) -> None:
        # In the next pass: a run may just be changing, and its record must not come in between.
        asyncio.get_running_loop().call_soon(self._journal_lease, lease.run, record)

    def _journal_lease(self, name: str, record: LeaseTaken | LeaseEnded) -> None:
        run = self._trajectories.get(name)
        if run is not None and not run.is_lost and run.state.version:
            self._trajectories.record(run, [record], lazy=True)

    # --- figures

    def _readiness(self) -> str | None:
        if self._not_ready is not None:
            return self._not_ready
        return None if self._journal.is_healthy else "the journal cannot write"

    def _statistics(self) -> Statistics:
        pools = self._stages.admission.statistics()
        return Statistics(
            domains={
                name: DomainUse(
                    in_use=_number(pool, "in_flight"),
                    slots=_number(pool, "concurrency"),
                    queue_length=_number(pool, "waiting"),
                )
                for name, pool in pools.items()
            },
            open_trajectories=self._trajectories.by_phase(),
            journal_queue=None if self._stats is None else self._stats.queued,
            journal_oldest_queued_s=None if self._stats is None else self._stats.oldest_queued_s,
            journal_is_healthy=self._journal.is_healthy,
            rules=self._stages.policy.totals(),
            quarantines_in_force=_number(self._quarantiner.statistics(), "in_force"),
            artifact_edges=_number(self._quarantiner.statistics(), "artifact_edges"),
        )

    async def _refresh(self) -> None:
        while True:
            self._stats = await self._journal.stats()
            self._broker.expire()
            await self._clock.sleep(5.0)

    def _manifest_status(self) -> Mapping[str, object]:
        catalog = self._catalog
        return {
            "path": str(self._source.path),
            "digest": catalog.digest,
            "reload_problem": self.reload_problem,
            "warnings": [str(warning) for warning in self._source.warnings],
            "tools": {
                name: {
                    "upstream": tool.upstream.origin,
                    "domain": tool.domain.name,
                    "operations": sorted(tool.operations),
                }
                for name, tool in catalog.tools.items()
            },
        }

    def _status(self) -> Mapping[str, object]:
        return {
            "version": __version__,
            "ready": self._readiness() is None,
            "reason": self._readiness(),
            "open_trajectories": len(self._trajectories),
            **self._proxy.statistics(),
            **self._tunnels.statistics(),
            **self._websockets.statistics(),
            **self._mcp.statistics(),
            **self._unwinder.statistics(),
            **self._finalizer.statistics(),
            **self._settler.statistics(),
            **self._quarantiner.statistics(),
            "leases": len(self._broker.book),
            "manifest_digest": self._catalog.digest,
            "reload_problem": self.reload_problem,
        }

    # --- stop

    async def failed(self) -> None:
        """Return when the journal can no longer be relied on, so that the process has to end."""
        await self._journal.wait_fatal()

    async def stop(self) -> None:
        """Drain and stop. Calls in flight have `settings.drain` seconds; what is left then is in doubt."""
        self._not_ready = "shutting down"
        self._proxy.is_admitting = False
        self._mcp.service.tasks.pause()
        self._front.stop_accepting()
        self._tunnels.drain()
        self._websockets.drain()
        began = self._clock.now()
        await self._front.wait_idle(self.settings.drain)
        cut = await self._proxy.drain(max(0.0, self.settings.drain - (self._clock.now() - began)))
        if cut:
            _log.warning("calls were cut off and are in doubt", extra={"event": "drain", "calls": cut})
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._trajectories.flush_refusals()
        await self._exit.aclose()
        _log.info("stopped", extra={"event": "stopped"})

    def _wake_unwinder(self, name: str) -> None:
        # In the next pass of the loop: the run is being changed right now.
        asyncio.get_running_loop().call_soon(self._unwinder.wake, name)

    def _wake_finalizer(self, name: str) -> None:
        asyncio.get_running_loop().call_soon(self._finalizer.wake, name)

    def _resume(self) -> None:
        self._unwinder.run_once()
        self._finalizer.run_once()

    def _spawn(self, coroutine: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._telemetry.background_failed(task.get_name(), error)


def _url(bound: object, address: Address) -> str:
    port = bound[1] if isinstance(bound, tuple) else address.port
    host = f"[{address.host}]" if ":" in address.host else address.host or "127.0.0.1"
    return f"http://{host}:{port}"


def _own_authorities(address: Address, port: int) -> frozenset[HostAuthority]:
    """Return the names under which clients on this machine reach the listener."""
    hosts = {address.host} | ({"127.0.0.1", "::1", "localhost"} if address.is_local or not address.host else set())
    return frozenset(HostAuthority(host.lower(), port) for host in hosts if host)


def _number(pool: Mapping[str, object], name: str) -> int:
    value = pool.get(name, 0)
    return value if isinstance(value, int) else 0


def _secrets(catalog: Catalog) -> list[str | bytes]:
    found: list[str | bytes] = [tool.credential[1] for tool in catalog.tools.values() if tool.credential is not None]
    for tool in catalog.tools.values():
        found += [value for _, value in tool.mcp.environment if len(value) >= 8] if tool.mcp is not None else []
    found += [secret for tool in catalog.tools.values() for secret in _of_leases(tool.leases)]
    found += [one.key.seal for one in catalog.claim_keys.values()]
    found += [sink.secret for sink in catalog.sinks.values() if sink.secret is not None]
    return found


def _of_leases(leases: LeaseSource | None) -> list[str | bytes]:
    """Return the secrets that leases are had with, so that no log shows one by accident."""
    match None if leases is None else leases.source:
        case StaticSource(value):
            return [value]
        case OAuthSource(client_secret=client, subject_token=subject):
            return [one for one in (client, subject) if one]
        case AwsSource(key=key):
            return [one for one in (key.secret, key.token) if one]
        case ExecSource(environment=environment):
            return [value for _, value in environment if len(value) >= 8]
        case _:
            return []
