"""The manifest as users write it: tools, what their operations mean, and the domains they share.

These are the decoded values, before expressions are compiled and secrets resolved; `gateway/config/` turns them into the
`ToolSpec`s of `core/tool.py` that the gateway runs on. Keys are a contract (design section 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.credential import AwsSettings, ExecSettings, OAuthSettings
from gateway.core.header_filter import ForwardedMode, HeaderSettings
from gateway.core.hold import ClaimNeedSettings, ClaimSettings
from gateway.core.policy import RuleSettings
from gateway.core.reach import Reach
from gateway.core.recovery import RecoverySettings
from gateway.core.retry import RetrySettings
from gateway.core.setting import CEL, REQUEST_LINE, SECONDS, TEMPLATE, Doc
from gateway.core.watchdog import WatchdogMode, WatchdogSettings
from gateway.core.websocket import WebSocketSettings

__all__ = [
    "ApprovalPolicy",
    "ApprovalSettings",
    "ArtifactSettings",
    "CompensatorSettings",
    "CredentialSettings",
    "DomainSettings",
    "GateSettings",
    "IdempotencySettings",
    "JournalMode",
    "KeyFormat",
    "LeakSettings",
    "LeaseSettings",
    "Manifest",
    "McpSettings",
    "OperationSettings",
    "PivotMode",
    "ProbeSettings",
    "RequestSettings",
    "SecretSettings",
    "SinkKind",
    "SinkSettings",
    "StateSettings",
    "SuspendKind",
    "SuspendSettings",
    "Tier",
    "TimeoutSettings",
    "TlsSettings",
    "ToolSettings",
    "UsageSettings",
    "VerifySettings",
    "WatchSettings",
    "WatchedSettings",
]


class Tier(StrEnum):
    """What an operation does to the world (seed 000, classes I to III).

    `UNMANAGED` is never written in a manifest: it is the write of a tool that declares no operations.
    """

    READ = "read"
    REVERSIBLE = "reversible"
    COMPENSABLE = "compensable"
    PIVOT = "pivot"
    UNMANAGED = "unmanaged"


class JournalMode(StrEnum):
    """When the intent of a step is durable."""

    STRICT = "strict"
    LAZY = "lazy"


class ApprovalPolicy(StrEnum):
    """Whether a person decides before the step is sent."""

    NONE = "none"
    REQUIRED = "required"


class PivotMode(StrEnum):
    """What becomes of an irreversible call: it is the run's pivot, or it waits in the outbox until the pivot commits."""

    SEND = "send"
    STAGE = "stage"


class SinkKind(StrEnum):
    """The form in which an incident is raised."""

    WEBHOOK = "webhook"
    PAGERDUTY = "pagerduty"
    ALERTMANAGER = "alertmanager"


class KeyFormat(StrEnum):
    """How an idempotency key is written into its header: as it is, or as a quoted structured-field string."""

    RAW = "raw"
    SF_STRING = "sf-string"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Bounds on each part of an exchange. Streams of reads know only `connect`, `first_byte` and `idle`."""

    connect: Annotated[float, SECONDS, Gt(0), Doc("Name look-up, TCP and TLS together.")] = 5.0
    first_byte: Annotated[float, SECONDS, Gt(0), Doc("From the request fully written to the answer's head.")] = 30.0
    idle: Annotated[float, SECONDS, Gt(0), Doc("Between two pieces of the answer's body.")] = 60.0
    total: Annotated[
        float, SECONDS, Gt(0), Doc("The whole call: queue, attempts, waits; of a read, up to the head.")
    ] = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSettings(AdmissionSettings):
    """A pool of shared fate: tools that fail together share slots, queue, rate and time bounds.

    `breaker` and `retry` are defaults for the domain's tools.
    """

    timeouts: Annotated[TimeoutSettings, Doc("Time bounds of each call.")] = TimeoutSettings()
    breaker: Annotated[BreakerSettings | None, Doc("Default breaker of the domain's tools.")] = None
    retry: Annotated[RetrySettings | None, Doc("Default retry policy of the domain's tools.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencySettings:
    """How the tool takes idempotency keys. Declaring it says that the tool honours them."""

    header: Annotated[str, MinLen(1), Doc("Header that carries the key.")] = "Idempotency-Key"
    format: Annotated[KeyFormat, Doc("Written bare, or quoted as a structured field (RFC 9651).")] = KeyFormat.RAW
    window: Annotated[float, SECONDS, Gt(0), Doc("How long the tool remembers a key; after it nothing is re-sent.")] = (
        86_400.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSettings:
    """The tool's own credential, put on each request by the gateway; the agent never sees it. One of `value`, `oauth`, `aws`
    and `exec`; all but a plain `value` are leased to each run apart."""

    header: Annotated[str, MinLen(1), Doc("Header that carries the credential.")] = "Authorization"
    value: Annotated[str | None, TEMPLATE, Doc("Its value; `${secret:NAME}` is replaced by the secret.")] = None
    oauth: Annotated[OAuthSettings | None, Doc("A token of an OAuth 2 server.")] = None
    aws: Annotated[AwsSettings | None, Doc("A signature of each request.")] = None
    exec: Annotated[ExecSettings | None, Doc("What a program prints.")] = None
    lease: Annotated[
        float | None,
        SECONDS,
        Gt(0),
        Doc("A lease lasts no longer; with `value` it makes that a lease, too. Default 15m."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How TLS is spoken with the tool, where the system's trust is not what decides. Files are PEM, their paths relative
    to the manifest; they are read at load, and a file that changes is taken up like a change of the manifest."""

    ca: Annotated[
        str | None, Doc("File of the certificates that are trusted for the tool, instead of the system's.")
    ] = None
    certificate: Annotated[
        str | None, Doc("File of the certificate shown to the tool, those that vouch for it after it.")
    ] = None
    key: Annotated[str | None, Doc("File of the certificate's key, not encrypted; else it is in the same file.")] = None
    server_name: Annotated[
        str | None, Doc("Name sent in the hello (SNI) and looked for in the tool's certificate; else the URL's host.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSettings:
    """Where a secret comes from: exactly one of the two. Without an entry, SEAWALL_SECRET_<NAME> or a file in --secrets."""

    file: Annotated[str | None, Doc("Path of a file that holds it, relative to the manifest.")] = None
    env: Annotated[str | None, Doc("Name of an environment variable that holds it.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """A request the gateway may send on its own: compensator or probe. Every text may hold `${…}`.

    In YAML either the line alone (`POST /v1/x/${response.json.id}/cancel`) or a mapping with `request:` and these keys.
    At most one of `json`, `form`, `body`.
    """

    request: Annotated[str, REQUEST_LINE, TEMPLATE, Doc("METHOD and path; values are percent-encoded into the path.")]
    headers: Annotated[Mapping[str, str], TEMPLATE, Doc("Headers to send.")] = field(default_factory=dict)
    query: Annotated[Mapping[str, str], TEMPLATE, Doc("Query parameters, encoded for you.")] = field(
        default_factory=dict
    )
    json: Annotated[object, TEMPLATE, Doc("Body as JSON; a text that is one `${…}` keeps its type.")] = None
    form: Annotated[Mapping[str, str] | None, TEMPLATE, Doc("Body as a web form.")] = None
    body: Annotated[str | None, TEMPLATE, Doc("Body as text.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatorSettings(RequestSettings):
    """The call that undoes a step, bound when the step commits, sent on abort."""

    tool: Annotated[str | None, Doc("Tool to call, if not the step's own.")] = None
    postcondition: Annotated[str | None, CEL, Doc("Over `response`; default: 2xx, or 404/410 to a DELETE.")] = None
    duration: Annotated[float | None, SECONDS, Gt(0), Doc("How long it takes; default: as measured.")] = None
    price: Annotated[float, Ge(0), Doc("USD that it costs.")] = 0.0
    partial: Annotated[
        bool, Doc("A failed call may have had part of its effect, so it is undone too; bound from what is known then.")
    ] = False
    safe_if_absent: Annotated[
        bool, Doc("Harmless where nothing landed, so a step that cannot be settled is undone with it too.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings(RequestSettings):
    """A read that answers whether a step landed.

    "Not landed" counts only `delay` after the call was given up, and only when a second question `again` later says the
    same: a request may still be on its way, and a listing may lag behind.
    """

    tool: Annotated[str | None, Doc("Tool to call, if not the step's own.")] = None
    landed: Annotated[str | None, CEL, Doc("True if the step had its effect.")] = None
    not_landed: Annotated[str | None, CEL, Doc("True if it certainly had none; neither: unknown.")] = None
    result: Annotated[
        str | None,
        CEL,
        Doc(
            "The JSON that the step would have answered, from the probe's `response`. Without it a compensator that reads "
            "`response` cannot undo a step that the probe settled."
        ),
    ] = None
    gone: Annotated[
        str | None, CEL, Doc("Asked after the compensator, `delay` later: true if the effect is really undone.")
    ] = None
    delay: Annotated[float, SECONDS, Ge(0), Doc("How long a call that was given up may still land.")] = 2.0
    again: Annotated[float, SECONDS, Ge(0), Doc("Wait before the second question.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings:
    """Who decides about a call, how many of them must agree, and by when. The policy named `default` is the one that
    `approval: required` means; without it any one person may decide within an hour."""

    approvers: Annotated[tuple[str, ...], Doc("Names of those who may decide; empty: anyone but the agent.")] = ()
    required: Annotated[int, Ge(1), Doc("How many must approve; a single rejection denies.")] = 1
    timeout: Annotated[float, SECONDS, Gt(0), Doc("Without a decision by then the call is denied.")] = 3600.0
    valid: Annotated[float, SECONDS, Gt(0), Doc("An approval that is not used by then is denied after all.")] = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings(RequestSettings):
    """A read whose answer must be as expected; anything else, no answer included, keeps the gate closed."""

    tool: Annotated[str, Doc("Tool to ask.")]
    expect: Annotated[str, CEL, Doc("Over `response`, `request`, `params` and `trajectory`; must be true.")]
    clears: Annotated[
        bool, Doc("It may clear a tainted artifact, whose name it finds in `params.artifact` (`seawall taint clear`).")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Something that must hold before a call may be sent. Exactly one of the four."""

    check: Annotated[
        str | None, CEL, Doc("Over `trajectory` (steps with what their tools answered), `request` and `params`.")
    ] = None
    verify: Annotated[VerifySettings | None, Doc("Ask a tool.")] = None
    lease: Annotated[float | None, SECONDS, Ge(0), Doc("Every lease of the run must last at least this long.")] = None
    approval: Annotated[str | None, Doc("Ask people, by this policy of `approvals`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """For how long what the operation gives is good; no pivot is sent after. One of `ttl` and `until`."""

    ttl: Annotated[float | None, SECONDS, Gt(0), Doc("So long from its answer.")] = None
    until: Annotated[
        str | None, CEL, Doc("Its end, from the answer: seconds or milliseconds since 1970, or RFC 3339.")
    ] = None
    name: Annotated[
        str | None, CEL, Doc("What it is a lease of; a later step of the same name renews it. Default: the step.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakSettings:
    """What the effect costs for as long as it is not undone; incidents say so, and how much it is by now."""

    what: Annotated[str, MinLen(1), Doc("What is left there, for people, such as `16 H100 instances`.")]
    amount: Annotated[float, Ge(0), Doc("How much.")] = 0.0
    per: Annotated[float, SECONDS, Gt(0), Doc("In which time.")] = 3600.0
    currency: Annotated[str, Doc("Of what.")] = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Where incidents are raised, apart from the tools' own domains."""

    kind: Annotated[SinkKind, Doc("Its form.")] = SinkKind.WEBHOOK
    url: Annotated[
        str | None, Doc("Where to: of a webhook the whole URL, of Alertmanager its base; PagerDuty has a default.")
    ] = None
    secret: Annotated[
        str | None,
        TEMPLATE,
        Doc("`${secret:NAME}`: signs webhooks, is the routing key of PagerDuty, or a bearer token."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings(RequestSettings):
    """A read that shows the state of a tool's world. It is asked before a run's first change and after each."""

    tool: Annotated[str | None, Doc("Tool to call, if not the tool itself.")] = None
    select: Annotated[
        str | None, CEL, Doc("What of `response` is the state; default: its JSON, or its text where it is none.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How the watchdog watches a tool."""

    mode: Annotated[
        WatchdogMode | None, Doc("What becomes of calls that go in circles; default: the manifest's `watchdog.mode`.")
    ] = None
    state: Annotated[StateSettings | None, Doc("The read that shows the tool's state.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSettings:
    """What the watchdog has to know of an operation."""

    poll: Annotated[
        int | None, Ge(2), Doc("It is asked until something happens; so many equal answers count as a loop.")
    ] = None
    metrics: Annotated[
        Mapping[str, str],
        CEL,
        Doc("Figures of progress, from `response`; larger is better, so negate counts of errors."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """What a call of an operation spends of its run's budget, beside the call itself."""

    price: Annotated[float, Ge(0), Doc("USD a call; taken when it leaves, and given back if it had no effect.")] = 0.0
    usd: Annotated[str | None, CEL, Doc("USD, from `response`.")] = None
    tokens: Annotated[str | None, CEL, Doc("Tokens, from `response`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Names of what a call reads and writes (a file, a branch, a row), so that what a quarantined run made can be kept from
    others. Each is an expression that yields a text or a list of texts; one over `response` is read from the answer."""

    reads: Annotated[tuple[str, ...], CEL, Doc("What it reads, such as `'file:' + params.path`.")] = ()
    writes: Annotated[tuple[str, ...], CEL, Doc("What it makes, changes or deletes.")] = ()
    content: Annotated[
        str | None, CEL, Doc("What is digested of it, over `response` too; by default the request's body.")
    ] = None


class SuspendKind(StrEnum):
    """How a quarantined agent's process is stopped."""

    CGROUP = "cgroup"
    SIGNAL = "signal"
    WEBHOOK = "webhook"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendSettings:
    """Stops whoever is quarantined, at once, and lets it go on when the quarantine is lifted.

    Templates may hold `${trajectory.agent}`, `${trajectory.id}` and `${trajectory.labels.NAME}`; each value must be a plain
    word, so that none leads elsewhere. Labels are the agent's own word.
    """

    kind: Annotated[
        SuspendKind,
        Doc("`cgroup` writes 1 to `path`, `signal` signals the process in the file `path`, `webhook` posts to `url`, "
            "`kubernetes` labels a pod."),
    ]  # fmt: skip
    path: Annotated[
        str | None,
        TEMPLATE,
        Doc("Of a cgroup its `cgroup.freeze`; of a signal a file that holds the process's number."),
    ] = None
    signal: Annotated[Literal["STOP", "TERM", "KILL", "INT", "USR1"], Doc("Which; only STOP can be taken back.")] = (
        "STOP"
    )
    url: Annotated[str | None, Doc("Where to; of Kubernetes its API, by default the cluster's own.")] = None
    secret: Annotated[str | None, TEMPLATE, Doc("`${secret:NAME}`: signs the webhook; of Kubernetes a token.")] = None
    namespace: Annotated[str | None, TEMPLATE, Doc("Of the pod.")] = None
    pod: Annotated[str | None, TEMPLATE, Doc("Its name.")] = None
    label: Annotated[str, MinLen(1), Doc("Set to `true` on the pod, for a network policy or an admission rule.")] = (
        "seawall.dev/quarantined"
    )
    timeout: Annotated[float, SECONDS, Gt(0), Doc("How long it may take.")] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSettings:
    """One thing a tool can do, and what that means."""

    match: Annotated[
        str,
        REQUEST_LINE,
        Doc(
            "METHOD and path template; `{name}` is one segment, `?a=b` a query it needs. Of an MCP server: `CALL tool`."
        ),
    ]
    tier: Annotated[Literal["read", "reversible", "compensable", "pivot"], Doc("What it does to the world.")]
    compensator: Annotated[CompensatorSettings | None, Doc("The call that undoes it.")] = None
    probe: Annotated[ProbeSettings | None, Doc("The read that tells whether it landed.")] = None
    postcondition: Annotated[str | None, CEL, Doc("Must hold of `response`, or the answer counts as bad.")] = None
    approval: Annotated[ApprovalPolicy, Doc("Whether a person decides first.")] = ApprovalPolicy.NONE
    gates: Annotated[tuple[str, ...], Doc("Names of gates that must let it pass.")] = ()
    pivot: Annotated[
        PivotMode, Doc("`stage`: an irreversible call is kept until the run's pivot has committed, then sent.")
    ] = PivotMode.SEND
    lease: Annotated[LeaseSettings | None, Doc("For how long what it gives is good.")] = None
    leak: Annotated[LeakSettings | None, Doc("What it costs until it is undone.")] = None
    duration: Annotated[
        float | None,
        SECONDS,
        Gt(0),
        Doc("How long it takes to do it again, the agent's thinking included; default: as measured."),
    ] = None
    usage: Annotated[UsageSettings | None, Doc("What it spends of its run's budget.")] = None
    watch: Annotated[WatchedSettings | None, Doc("What the watchdog has to know of it.")] = None
    claim: Annotated[ClaimNeedSettings | None, Doc("It needs a proven claim of another agent (`Seawall-Claim`).")] = (
        None
    )
    artifacts: Annotated[ArtifactSettings | None, Doc("What it reads and writes, by name.")] = None
    idempotent: Annotated[bool, Doc("Repeating it changes nothing more; legal after the pivot.")] = False
    fails_cleanly: Annotated[bool, Doc("A 5xx answer means that nothing happened.")] = False
    journal: Annotated[JournalMode, Doc("`lazy`: do not wait for the disk (reversible operations only).")] = (
        JournalMode.STRICT
    )
    timeouts: Annotated[TimeoutSettings | None, Doc("Overrides the domain's time bounds.")] = None
    overrides: Annotated[tuple[str, ...], Doc("As `overrides` of the tool, for this operation alone.")] = ()
    description: Annotated[
        str | None, Doc("What it does, for models; of an HTTP operation offered as an MCP tool.")
    ] = None
    input: Annotated[
        object,
        Doc(
            "JSON Schema of the arguments it takes as an MCP tool; else of the tool's `openapi`, else made from `match`."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """An MCP server: either `url` (Streamable HTTP) or `command` (stdio, kept running by the gateway)."""

    url: Annotated[str | None, MinLen(1), Doc("Its endpoint.")] = None
    command: Annotated[tuple[str, ...], Doc("Program and arguments.")] = ()
    environment: Annotated[
        Mapping[str, str],
        TEMPLATE,
        Doc("Variables for the program, which sees PATH, HOME and the like of ours; may hold `${secret:NAME}`."),
    ] = field(default_factory=dict)
    inherit: Annotated[bool, Doc("The program sees all variables of ours, not only PATH, HOME and the like.")] = False
    folder: Annotated[str | None, Doc("Where the program runs; relative to the manifest's own working folder.")] = None
    protocol: Annotated[
        Literal["auto", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"],
        Doc("Revision to speak with it; `auto` asks."),
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """An external service: `upstream` for HTTP, `mcp` for an MCP server."""

    upstream: Annotated[
        str | None,
        MinLen(1),
        Doc("Base URL: http or https, host, port, path prefix; or `unix:/path/to.sock`, `unix:/path/to.sock:/prefix`."),
    ] = None
    mcp: Annotated[McpSettings | None, Doc("The MCP server that it is.")] = None
    domain: Annotated[str | None, Doc("Domain it shares; without one it has a default domain of its own.")] = None
    breaker: Annotated[BreakerSettings | None, Doc("Its circuit breaker.")] = None
    retry: Annotated[RetrySettings | None, Doc("Its retry policy.")] = None
    recovery: Annotated[RecoverySettings, Doc("What its failures lead to.")] = field(default_factory=RecoverySettings)
    watch: Annotated[WatchSettings, Doc("How the watchdog watches it.")] = field(default_factory=WatchSettings)
    timeouts: Annotated[TimeoutSettings | None, Doc("Overrides the domain's time bounds.")] = None
    idempotency: Annotated[IdempotencySettings | None, Doc("Present if the tool honours idempotency keys.")] = None
    credentials: Annotated[CredentialSettings | None, Doc("Put on each request by the gateway.")] = None
    tls: Annotated[TlsSettings | None, Doc("How TLS is spoken with it.")] = None
    websocket: Annotated[WebSocketSettings | None, Doc("Whether agents may open WebSockets to it; default: no.")] = None
    headers: Annotated[HeaderSettings | None, Doc("Which of the agents' header fields reach it; default: all.")] = None
    forwarded: Annotated[
        ForwardedMode,
        Doc(
            "What reaches it of Forwarded, X-Forwarded-* and the like: nothing (`drop`), what the gateway saw (`replace`), "
            "both (`append`), or the agent's own word (`pass`)."
        ),
    ] = ForwardedMode.DROP
    overrides: Annotated[
        tuple[str, ...],
        Doc(
            "Header fields and parameters that agents may send though they could replace the method or path of a call, such "
            "as `X-HTTP-Method-Override` or `_method`; calls with any other of that kind are refused."
        ),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        Doc("Further hosts that mean it where the gateway is a proxy: `host`, `host:port`, `*.domain`."),
    ] = ()
    strict: Annotated[bool, Doc("Refuse writes that no operation declares.")] = False
    openapi: Annotated[
        str | None,
        MinLen(1),
        Doc("File with its OpenAPI document, beside the manifest: what its operations take and do as MCP tools."),
    ] = None
    reach: Annotated[
        Reach,
        Doc(
            "Where the upstream's name may lead: `public` addresses, `private` ones too, `any` (also link-local and cloud "
            "metadata); `auto`: private only for addresses and internal names."
        ),
    ] = Reach.AUTO
    operations: Annotated[Mapping[str, OperationSettings], Doc("What it can do.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything the gateway knows about the tools."""

    version: Annotated[int, Ge(1), Le(1), Doc("Version of this format.")] = 1
    include: Annotated[
        tuple[str, ...], Doc("Files whose domains, secrets and tools are added; paths relative to this file.")
    ] = ()
    secrets: Annotated[Mapping[str, SecretSettings], Doc("Where named secrets come from.")] = field(
        default_factory=dict
    )
    domains: Annotated[Mapping[str, DomainSettings], Doc("Pools of shared fate.")] = field(default_factory=dict)
    tools: Annotated[Mapping[str, ToolSettings], Doc("The services agents may call.")] = field(default_factory=dict)
    approvals: Annotated[Mapping[str, ApprovalSettings], Doc("Who decides, by policy.")] = field(default_factory=dict)
    gates: Annotated[Mapping[str, GateSettings], Doc("What must hold before a call.")] = field(default_factory=dict)
    incidents: Annotated[Mapping[str, SinkSettings], Doc("Where incidents are raised.")] = field(default_factory=dict)
    watchdog: Annotated[WatchdogSettings, Doc("When a run goes in circles; at most one file gives it.")] = field(
        default_factory=WatchdogSettings
    )
    suspend: Annotated[Mapping[str, SuspendSettings], Doc("How quarantined agents are stopped.")] = field(
        default_factory=dict
    )
    claims: Annotated[Mapping[str, ClaimSettings], Doc("Keys by which agents prove what they say.")] = field(
        default_factory=dict
    )
    rules: Annotated[Mapping[str, RuleSettings], Doc("What is asked about calls before anything is spent.")] = field(
        default_factory=dict
    )
