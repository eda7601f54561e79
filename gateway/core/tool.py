"""A tool as the gateway runs it: everything precomputed at load, immutable, replaced as a whole on reload.

`Catalog.tools` is one dictionary, so a call finds its tool in constant time however many there are. Calls in flight
keep the `ToolSpec` they started with; a reload never changes a call half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.core.admission import AdmissionSettings
from gateway.core.authority import HostPattern
from gateway.core.breaker import BreakerSettings
from gateway.core.credential import LeaseSource
from gateway.core.expression import Environment, Expression
from gateway.core.header_filter import HeaderFilter
from gateway.core.hold import ClaimNeedSettings, Trusted
from gateway.core.manifest import (
    ApprovalPolicy,
    ApprovalSettings,
    IdempotencySettings,
    JournalMode,
    LeakSettings,
    SinkSettings,
    SuspendSettings,
    Tier,
    TimeoutSettings,
)
from gateway.core.policy import Rule
from gateway.core.reach import Reach
from gateway.core.recovery import RecoverySettings, Trouble
from gateway.core.retry import RetrySettings
from gateway.core.secret import SecretBox
from gateway.core.value import frozen
from gateway.core.watchdog import WatchdogSettings
from gateway.core.websocket import WebSocketSettings

if TYPE_CHECKING:
    import ssl

__all__ = [
    "AmbiguousPath",
    "Artifacts",
    "BoundRequest",
    "CallForm",
    "Catalog",
    "Compensator",
    "Domain",
    "Gate",
    "Lease",
    "Match",
    "McpUpstream",
    "Operation",
    "Probe",
    "RequestTemplate",
    "Sink",
    "StateProbe",
    "Suspension",
    "Tls",
    "ToolSpec",
    "Upstream",
    "Usage",
    "Verifier",
    "Watched",
]


class AmbiguousPath(ValueError):
    """The tool's server may read the path otherwise than we do: refuse the call (`ERR_INVALID_ARGUMENTS`)."""


@frozen(kw_only=False, slots=False)
class BoundRequest:
    """A request with every value filled in; what the journal keeps of a compensator.

    `target` is the path and query below the tool's upstream (its path prefix not included), percent-encoded. A secret
    in a header stays `${secret:NAME}` here; whoever sends it calls `Catalog.secrets.resolve_headers(bound.headers)`.
    """

    tool: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """A request with holes. `bind(env)` fills them.

    `bind` raises `ExpressionError` if a value is missing, null, or would change the shape of the request (a path
    segment that is empty or `..`, a header value with a line break).
    """

    source: str
    bind: Callable[[Environment], BoundRequest]


@dataclass(frozen=True, slots=True)
class Compensator:
    """The declared undo of an operation. `postcondition` None means: 2xx, or 404/410 to a DELETE.

    `is_for_partial`: a failed step is undone with it too. `is_safe_if_absent`: so is one that cannot be settled.
    `duration_s` and `price` (USD) are what it is declared to cost.
    """

    request: RequestTemplate
    postcondition: Expression | None = None
    is_for_partial: bool = False
    is_safe_if_absent: bool = False
    duration_s: float | None = None
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """The declared read that tells whether a step landed. `kind` names who can ask it (`gateway/probes/`)."""

    request: RequestTemplate
    landed: Expression | None = None
    not_landed: Expression | None = None
    result: Expression | None = None
    gone: Expression | None = None
    delay_s: float = 2.0
    again_s: float = 1.0
    kind: str = "http"


@dataclass(frozen=True, slots=True)
class Verifier:
    """A declared read whose answer must be as expected."""

    tool: str
    request: RequestTemplate
    expect: Expression


@dataclass(frozen=True, slots=True)
class Gate:
    """Something that must hold before a call: exactly one of a check over the run, a verifier, a margin for its leases."""

    name: str
    check: Expression | None = None
    verify: Verifier | None = None
    margin_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """How long what an operation gives is good: a fixed time, or an end that is read from the answer."""

    ttl_s: float | None = None
    until: Expression | None = None
    name: Expression | None = None


@dataclass(frozen=True, slots=True)
class StateProbe:
    """The declared read that shows the state of a tool's world; `select` None: its JSON, else its text."""

    request: RequestTemplate
    select: Expression | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call spends: a fixed price in USD, and what expressions over `response` say."""

    price: float = 0.0
    amounts: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True)
class Watched:
    """What the watchdog has to know of an operation: the cap of a poll, and figures of progress by name."""

    poll: int | None = None
    metrics: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sink:
    """Where incidents are raised. `secret` is never printed; `url` is a webhook's whole URL."""

    name: str
    settings: SinkSettings
    upstream: Upstream
    target: str
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """Where the arguments of an HTTP operation go that is offered as an MCP tool; those not named here go into the body
    of a POST, PUT or PATCH, and else into the query.

    Attributes:
        query: arguments that go into the query whatever the method.
        joined: of these, lists that are one value with commas.
        headers: header names by argument.
        body: the argument that is the whole body.
        is_form: the body is a form and no JSON.
    """

    query: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    is_form: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Suspension:
    """How quarantined agents are stopped. `fill` makes the templates of `path`, `namespace` and `pod` into texts; it raises
    `ExpressionError` where a value is missing or is no plain word. `secret` is never printed."""

    name: str
    settings: SuspendSettings
    fill: Callable[[str, Environment], str]
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Which artifacts a call reads and writes: names from its arguments, and such as only the answer tells.

    `content`: what is digested; else the request's body (the answer's, of what only that names).
    """

    reads: tuple[Expression, ...] = ()
    writes: tuple[Expression, ...] = ()
    answer_reads: tuple[Expression, ...] = ()
    answer_writes: tuple[Expression, ...] = ()
    content: Expression | None = None

    @property
    def has_answer_names(self) -> bool:
        """Whether the answer has to be read for names."""
        return bool(self.answer_reads or self.answer_writes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One thing a tool can do. `is_declared` is False for those made up for undeclared calls.

    `overrides`: fields and parameters that its calls may have though they could replace method or path, in small letters.
    """

    name: str
    tier: Tier
    timeouts: TimeoutSettings
    source: str = ""
    is_declared: bool = True
    compensator: Compensator | None = None
    probe: Probe | None = None
    postcondition: Expression | None = None
    approval: ApprovalPolicy = ApprovalPolicy.NONE
    approved_by: ApprovalSettings = field(default_factory=ApprovalSettings)
    gates: tuple[Gate, ...] = ()
    is_staged: bool = False
    lease: Lease | None = None
    leak: LeakSettings | None = None
    duration_s: float | None = None
    usage: Usage | None = None
    watch: Watched | None = None
    is_idempotent: bool = False
    fails_cleanly: bool = False
    journal: JournalMode = JournalMode.STRICT
    description: str | None = None
    input: Mapping[str, object] | None = None
    form: CallForm | None = None
    rules: tuple[Rule, ...] = ()
    artifacts: Artifacts | None = None
    claim: ClaimNeedSettings | None = None
    overrides: frozenset[str] = frozenset()

    is_read: bool = field(init=False)
    """Whether calls have no effect. Kept, since every stage asks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_read", self.tier is Tier.READ)

    @property
    def is_undoable(self) -> bool:
        """Whether a committed step of it has to be undone on abort."""
        return self.compensator is not None


@frozen(kw_only=False)
class Match:
    """Which operation a call is, the values of the template's segments, and why, in one sentence for `explain`."""

    operation: Operation
    params: Mapping[str, str]
    reason: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a tool lives. `prefix` is the raw path in front of every target, without a trailing slash.

    `socket` is the path of a Unix socket; scheme is `unix` then, host `localhost`, and there is no port.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    socket: str = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port, as one text; brackets around an IPv6 address. Of a Unix socket its path."""
        if self.socket:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def authority(self) -> str:
        """What goes into Host: the port only where it is not the scheme's own (RFC 9110 section 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.socket:
            return host
        return host if self.port == {"http": 80, "https": 443}.get(self.scheme) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class Tls:
    """How TLS is spoken with a tool: made at load from the files that the manifest names.

    `context` has the trust and the certificate, None where the system's trust is all; `server_name` is None where the
    upstream's host is meant. `digest` differs when any of it does, the files' contents included.
    """

    context: ssl.SSLContext | None
    server_name: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class McpUpstream:
    """How an MCP server is reached: over Streamable HTTP at the tool's upstream, or (with `command`) over stdio.

    `environment` holds secrets in the clear and is never printed. `protocol` is a revision, or `auto`.
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folder: str | None = None
    protocol: str = "auto"
    is_inheriting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Domain:
    """A pool of shared fate by name."""

    name: str
    admission: AdmissionSettings
    timeouts: TimeoutSettings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToolSpec:
    """A tool, ready to run.

    Attributes:
        match: finds the operation of a method and a raw target (path and query below the tool's name); raises
            `AmbiguousPath`.
        operations: those declared, and the two that stand for all undeclared calls (`is_declared` False).
        credential: header name and value to set on each request; the value is a secret and never printed.
        leases: how each run has a credential of its own instead.
        hosts: further hosts by which a forward proxy's clients mean it, beside the upstream's own.
        troubles: the manifest's own classes of failed answers, in the order in which they are asked.
        reach: what kind of addresses the upstream's name may lead to.
        tls: how TLS is spoken with it, if not as with any server.
        admit: turns an agent's header fields into those that may reach it; None if all may.
        websocket: how WebSockets to it are carried; None where there are none.
        takes_forwarded: whether Forwarded and its kin reach it, from whomever.
        breaker_key: names the origin and credential that share one breaker, without revealing the credential.
        digest: of everything above as configured; equal digests mean that a reload changed nothing for this tool.
        mcp: how it is reached, if it is an MCP server.
        watchdog, state: when its runs go in circles, and the read that shows the state of its world.
    """

    name: str
    upstream: Upstream
    domain: Domain
    breaker: BreakerSettings
    retry: RetrySettings
    match: Callable[[str, str], Match]
    operations: Mapping[str, Operation]
    idempotency: IdempotencySettings | None = None
    credential: tuple[bytes, bytes] | None = field(default=None, repr=False)
    leases: LeaseSource | None = None
    is_strict: bool = False
    hosts: tuple[HostPattern, ...] = ()
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    troubles: tuple[tuple[Trouble, Expression], ...] = ()
    reach: Reach = Reach.AUTO
    tls: Tls | None = None
    admit: HeaderFilter | None = None
    takes_forwarded: bool = False
    websocket: WebSocketSettings | None = None
    breaker_key: str = ""
    digest: str = ""
    mcp: McpUpstream | None = None
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    state: StateProbe | None = None

    @property
    def is_managed(self) -> bool:
        """Whether the tool declares operations."""
        return any(operation.is_declared for operation in self.operations.values())


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """All tools in force, by name, the secrets that bound requests refer to, and the digest of all of it.

    `stranger_rules` concern reads of hosts that are no tool's. `clearers` are the verifiers that may clear artifacts.
    """

    tools: Mapping[str, ToolSpec]
    domains: Mapping[str, Domain]
    digest: str = ""
    secrets: SecretBox = field(default_factory=SecretBox, repr=False)
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    stranger_rules: tuple[Rule, ...] = ()
    suspensions: Mapping[str, Suspension] = field(default_factory=dict)
    clearers: Mapping[str, Verifier] = field(default_factory=dict)
    claim_keys: Mapping[str, Trusted] = field(default_factory=dict, repr=False)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
