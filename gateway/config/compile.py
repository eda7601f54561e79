"""From a manifest to a `Catalog`: expressions compiled, secrets resolved, defaults inherited, everything checked.

Settings written nearer win key by key: operation over tool over domain over the defaults. A tool without a domain has
one of its own, `tool:NAME`. What did not change since the previous catalog is the very same object in the new one, so a
reload leaves it, and the calls and breakers that belong to it, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Final
from urllib.parse import urlsplit

import orjson

from gateway.config.cel import NAMES, CelExpression, ExpressionProblem, compile_condition, compile_expression
from gateway.config.errors import Position, Problems, nearest, shown
from gateway.config.gates import GATE_NAMES, check_approval, check_gate, compile_sink
from gateway.config.loader import Entry, Loaded
from gateway.config.policy import CompiledRule, compile_rules, rules_for
from gateway.config.request import TOKEN, Names, compile_request
from gateway.config.rules import (
    admission_of,
    check_breaker,
    check_domain_of,
    check_headers,
    check_name,
    check_operation,
    check_retry,
    check_secret,
    overlay,
    overrides_of,
    read_hosts,
    upstream_of,
)
from gateway.config.secrets import SecretProblem, SecretSource
from gateway.config.suspend import compile_suspension
from gateway.config.template import SecretRef, compile_parts, secrets_in
from gateway.config.tls import TlsFiles, check_tls, client_context
from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.claim import ClaimKey
from gateway.core.credential import (
    DEFAULT_TTL_S,
    AwsSource,
    ExecSource,
    LeaseSource,
    OAuthSource,
    StaticSource,
)
from gateway.core.header_filter import ForwardedMode, header_filter
from gateway.core.hold import ClaimNeedSettings, Trusted
from gateway.core.manifest import (
    ApprovalPolicy,
    ApprovalSettings,
    ArtifactSettings,
    CompensatorSettings,
    CredentialSettings,
    DomainSettings,
    GateSettings,
    LeaseSettings,
    OperationSettings,
    PivotMode,
    ProbeSettings,
    RequestSettings,
    StateSettings,
    Tier,
    TimeoutSettings,
    ToolSettings,
    UsageSettings,
    VerifySettings,
    WatchedSettings,
)
from gateway.core.mcp_tools import CALL, CallMatcher, target_of
from gateway.core.openapi import Document
from gateway.core.recovery import Trouble
from gateway.core.retry import RetrySettings
from gateway.core.routing import SAFE_METHODS, Matcher, Pattern, PatternError, parse_pattern
from gateway.core.secret import Secret, SecretBox
from gateway.core.sigv4 import AwsKey
from gateway.core.tool import (
    Artifacts,
    Catalog,
    Compensator,
    Domain,
    Gate,
    Lease,
    McpUpstream,
    Operation,
    Probe,
    RequestTemplate,
    StateProbe,
    Tls,
    ToolSpec,
    Upstream,
    Usage,
    Verifier,
    Watched,
)
from gateway.core.watchdog import WatchdogSettings

__all__ = ["UNDECLARED_READ", "UNDECLARED_WRITE", "compile_catalog"]

UNDECLARED_READ: Final = "undeclared:read"
UNDECLARED_WRITE: Final = "undeclared:write"
"""Names of the two operations that stand for all undeclared calls; the colon keeps them apart from declared names."""

_STRANGE_READ: Final = Operation(name="read", tier=Tier.READ, timeouts=TimeoutSettings(), is_declared=False)

_COMPENSATOR: Final = Names(NAMES, {})
_VERIFY: Final = Names(GATE_NAMES, {"response": "the request is made before there is one"})
_PROBE: Final = Names(NAMES - {"response"}, {"response": "a probe is sent for a step whose answer never came"})


def compile_catalog(
    loaded: Loaded, secrets: SecretSource, problems: Problems, digest_key: bytes = b"", previous: Catalog | None = None
) -> Catalog:
    """Return the catalog; it is complete only if nothing went to `problems`.

    Args:
        loaded: what the files say.
        secrets: where secrets come from.
        problems: takes everything that is wrong or odd.
        digest_key: keys the digests of credentials (at most 64 bytes), so that they say nothing without it.
        previous: the catalog so far; its unchanged domains and tools are reused.
    """
    return _Compiler(loaded, secrets, problems, digest_key, previous).catalog()


@dataclass(frozen=True, slots=True)
class _Effective:
    """What holds for a tool after inheritance."""

    domain: Domain
    breaker: BreakerSettings
    retry: RetrySettings
    timeouts: TimeoutSettings


class _Compiler:
    def __init__(
        self,
        loaded: Loaded,
        secrets: SecretSource,
        problems: Problems,
        digest_key: bytes,
        previous: Catalog | None,
    ) -> None:
        self._loaded = loaded
        self._source = secrets
        self._problems = problems
        self._key = digest_key
        self._previous = previous or Catalog({}, {})
        self._secrets: dict[str, Secret | None] = {}
        self._gates: dict[str, Gate] = {}
        self._rules: list[CompiledRule] = []

    def catalog(self) -> Catalog:
        domains = {name: self._domain(name, entry) for name, entry in self._loaded.domains.items()}
        for kind in ("domains", "tools"):
            for name, position in self._loaded.names[kind].items():
                check_name("a tool" if kind == "tools" else "a domain", name, position, self._problems)
        for name, secret in self._loaded.secrets.items():
            check_secret(name, secret, self._problems)
        for name, approval in self._loaded.approvals.items():
            check_approval(name, approval, self._problems)
        self._gates = {name: self._gate(name, gate) for name, gate in self._loaded.gates.items()}
        self._rules = compile_rules(self._loaded, self._problems)
        for name, position in self._loaded.names["rules"].items():
            check_name("a rule", name, position, self._problems)
        sinks = {
            name: compile_sink(name, sink, self.secret, self._problems) for name, sink in self._loaded.incidents.items()
        }
        tools: dict[str, ToolSpec] = {}
        for name, entry in self._loaded.tools.items():
            if (tool := self._tool(name, entry, domains)) is not None:
                tools[name] = tool
                domains.setdefault(tool.domain.name, tool.domain)
        for name, secret in self._loaded.secrets.items():
            if name not in self._secrets and not self._problems.has_errors:
                self._problems.warn(secret.at(), f"secret `{shown(name)}` is not used", "remove it")
        box = {name: secret for name, secret in self._secrets.items() if secret is not None}
        raised = {name: sink for name, sink in sinks.items() if sink is not None}
        claim_keys = self._claim_keys()
        suspensions = {
            name: compile_suspension(name, hook, self.secret, self._problems)
            for name, hook in self._loaded.suspend.items()
        }
        return Catalog(
            tools,
            domains,
            self._digest_of_all(tools, domains),
            SecretBox(box),
            raised,
            rules_for(self._rules, "", _STRANGE_READ),
            {name: hook for name, hook in suspensions.items() if hook is not None},
            {
                name: gate.verify
                for name, gate in self._gates.items()
                if gate.verify is not None and self._loaded.gates[name].settings.verify.clears  # type: ignore[union-attr]
            },
            claim_keys,
            self._loaded.watchdog,
        )

    @property
    def has_claim_keys(self) -> bool:
        """Whether the manifest names a key for claims."""
        return bool(self._loaded.names["claims"])

    def _claim_keys(self) -> dict[str, Trusted]:
        keys: dict[str, Trusted] = {}
        signing = ""
        for name, entry in self._loaded.claims.items():
            settings = entry.settings
            check_name("a key for claims", name, entry.at(), self._problems)
            if settings.signs and signing:
                self._problems.add(entry.at("signs"), f"`{signing}` signs already", "one key signs; all of them verify")
            signing = name if settings.signs else signing
            secret = self.constant(settings.secret, entry.at("secret"))
            if secret is None:
                continue
            if len(secret.encode()) < 16:
                if not self._source.is_offline:
                    said = "a secret for claims has at least 16 bytes"
                    self._problems.add(entry.at("secret"), said, "make a longer one")
                    continue
                secret = secret.ljust(16)
            key = ClaimKey.of(name, secret.encode())
            keys[name] = Trusted(key, settings.producers, round(settings.ttl * 1000), settings.signs)
        return keys

    def _gate(self, name: str, entry: Entry[GateSettings]) -> Gate:
        settings = entry.settings
        check_gate(name, entry, self._loaded, self._problems)
        check = self.condition(settings.check, entry.at("check"), GATE_NAMES)
        return Gate(name, check, self._verifier(settings.verify, entry), settings.lease)

    def _verifier(self, settings: VerifySettings | None, entry: Entry[GateSettings]) -> Verifier | None:
        if settings is None:
            return None
        expect = self.condition(settings.expect, entry.at("verify", "expect"), GATE_NAMES | {"response"})
        template = self.request(settings, entry, settings.tool, "verify")
        if settings.request.split(" ")[0] not in SAFE_METHODS | {"POST", CALL}:
            self._problems.add(
                entry.at("verify", "request"),
                "a verifier is a read",
                "use GET or HEAD; POST only where a tool asks for it",
            )
        return None if expect is None or template is None else Verifier(settings.tool, template, expect)

    def gated_by(
        self, settings: OperationSettings, position: Position
    ) -> tuple[ApprovalPolicy, ApprovalSettings, tuple[Gate, ...]]:
        """Return what stands in front of an operation: whether people decide, by which policy, and the gates."""
        gates: list[Gate] = []
        policies: list[str] = []
        for name in settings.gates:
            entry = self._loaded.gates.get(name)
            if entry is None:
                if name not in self._loaded.names["gates"]:
                    known = self._loaded.names["gates"]
                    self._problems.add(position, f"unknown gate `{shown(name)}`", nearest(name, known))
            elif entry.settings.approval is not None:
                policies.append(entry.settings.approval)
            else:
                gates.append(self._gates[name])
        if len(policies) > 1:
            self._problems.add(position, "two gates ask people", "one policy of `approvals` decides about an operation")
        is_required = bool(policies) or settings.approval is ApprovalPolicy.REQUIRED
        policy = self._loaded.approvals.get(policies[0] if policies else "default")
        return (
            ApprovalPolicy.REQUIRED if is_required else ApprovalPolicy.NONE,
            ApprovalSettings() if policy is None else policy.settings,
            tuple(gates),
        )

    def _domain(self, name: str, entry: Entry[DomainSettings]) -> Domain:
        settings = entry.settings
        if settings.breaker is not None:
            check_breaker(settings.breaker, entry.at, self._problems)
        if settings.retry is not None:
            check_retry(settings.retry, entry.at, self._problems)
        return self._kept(Domain(name=name, admission=admission_of(entry, self._problems), timeouts=settings.timeouts))

    def _kept(self, domain: Domain) -> Domain:
        """Return the previous catalog's domain if it is the same."""
        old = self._previous.domains.get(domain.name)
        same = old is not None and (old.admission, old.timeouts) == (domain.admission, domain.timeouts)
        return old if same and old is not None else domain

    def _tool(self, name: str, entry: Entry[ToolSettings], domains: Mapping[str, Domain]) -> ToolSpec | None:
        settings = entry.settings
        upstream = upstream_of(name, entry, self._problems)
        effective = self._effective(name, entry, domains)
        if settings.idempotency is not None and not TOKEN.fullmatch(settings.idempotency.header):
            self._problems.add(entry.at("idempotency", "header"), "not a header name", "letters, digits and `-`")
        check_headers(entry, self._problems)
        credential, leases = self._credential(entry), self._leases(entry)
        proof = leases or credential
        overrides, own = overrides_of(entry, self._problems)
        operations = _Operations(self, name, entry, effective.timeouts, own)
        declared = operations.compile()
        hosts = read_hosts(entry, self._problems)
        called = operations.compile_calls()
        mcp = self._mcp(entry)
        watchdog, state = self._watch(name, entry)
        troubles = self._troubles(entry)
        tls = self._tls(entry, upstream)
        if upstream is None:
            return None
        guarded = [operation for _, operation, _ in declared] + [operation for operation, _ in called.values()]
        gated = [[one.approval, one.approved_by, [gate.name for gate in one.gates]] for one in guarded]
        asked = {gate.name: self._loaded.gates[gate.name].settings for one in guarded for gate in one.gates}
        environment = None if mcp is None else mcp.environment
        document = self._loaded.documents.get(name)
        read_from = None if document is None else document[0].hex()
        ruled = {
            one.rule.name: [one.settings, one.rule.asks] for one in self._rules if not one.tools or name in one.tools
        }
        digest = self._digest(
            settings,
            effective,
            _revealed(proof),
            environment,
            gated,
            asked,
            ruled,
            read_from,
            tls and tls.digest,
            watchdog,
        )
        old = self._previous.tools.get(name)
        if old is not None and old.digest == digest and old.domain is effective.domain:
            return old
        read, write = _undeclared(name, bool(declared or called), settings.strict, effective.timeouts, overrides)
        write = _as_guarded(write, guarded)
        read, write = self.ruled(name, *read), self.ruled(name, *write)
        every = [operation for _, operation, _ in declared] + [operation for operation, _ in called.values()]
        every += [read[0], write[0]]
        reason = f"`{name}` declares no operation for it; its own hints decide."
        other = self.ruled(name, replace(write[0], tier=Tier.PIVOT), reason)
        return ToolSpec(
            name=name,
            upstream=upstream,
            domain=effective.domain,
            breaker=effective.breaker,
            retry=effective.retry,
            match=CallMatcher(called, other)
            if mcp is not None
            else Matcher(declared, read, write, has_prefix=bool(upstream.prefix)),
            operations={operation.name: operation for operation in every},
            idempotency=settings.idempotency,
            credential=credential,
            leases=leases,
            is_strict=settings.strict,
            hosts=hosts,
            reach=settings.reach,
            tls=tls,
            admit=header_filter(settings.headers, settings.forwarded),
            websocket=settings.websocket if settings.websocket is not None and settings.websocket.enabled else None,
            takes_forwarded=settings.forwarded is not ForwardedMode.DROP,
            recovery=settings.recovery,
            troubles=troubles,
            breaker_key=self._breaker_key(upstream, _revealed(proof)),
            digest=digest,
            mcp=mcp,
            watchdog=watchdog,
            state=state,
        )

    def _troubles(self, entry: Entry[ToolSettings]) -> tuple[tuple[Trouble, CelExpression], ...]:
        """The narrowest class first: what blocks content is often a refusal for good as well."""
        own = entry.settings.recovery
        written = (
            (Trouble.CONTENT_BLOCK, own.content_block),
            (Trouble.FATAL, own.fatal),
            (Trouble.TRANSIENT, own.transient),
            (Trouble.SEMANTIC, own.semantic),
        )
        compiled = [
            (trouble, self.condition(source, entry.at("recovery", trouble.value))) for trouble, source in written
        ]
        return tuple((trouble, rule) for trouble, rule in compiled if rule is not None)

    def _watch(self, name: str, entry: Entry[ToolSettings]) -> tuple[WatchdogSettings, StateProbe | None]:
        settings, own = self._loaded.watchdog, entry.settings.watch
        if own.mode is not None and own.mode is not settings.mode:
            settings = replace(settings, mode=own.mode)
        if own.state is None:
            return settings, None
        if own.state.request.split(" ")[0] not in SAFE_METHODS | {"POST", CALL}:
            here = entry.at("watch", "state")
            self._problems.add(here, "the state is a read", "use GET or HEAD; POST only where the tool searches by it")
        select = self.value(own.state.select, entry.at("watch", "state", "select"))
        template = self.request(own.state, entry, name, "watch", "state")
        return settings, None if template is None else StateProbe(template, select)

    def _tls(self, entry: Entry[ToolSettings], upstream: Upstream | None) -> Tls | None:
        settings = entry.settings.tls
        if settings is None:
            return None
        check_tls(entry, settings, upstream, self._problems)
        if self._source.is_offline:
            return Tls(None, settings.server_name, self._digest(settings))
        files = TlsFiles(entry, settings, self._source.files, self._problems)
        context = client_context(entry, settings, files, self._problems)
        return Tls(context, settings.server_name, self._digest(settings, files.content))

    def ruled(self, tool: str, operation: Operation, reason: str) -> tuple[Operation, str]:
        """Return an operation with the rules that concern its calls, and the sentence beside it."""
        return replace(operation, rules=rules_for(self._rules, tool, operation)), reason

    def _mcp(self, entry: Entry[ToolSettings]) -> McpUpstream | None:
        settings = entry.settings.mcp
        if settings is None:
            return None
        environment = [
            (name, self.constant(text, entry.at("mcp", "environment", name)) or "")
            for name, text in settings.environment.items()
        ]
        return McpUpstream(settings.command, tuple(environment), settings.folder, settings.protocol, settings.inherit)

    def document(self, tool: str) -> Document | None:
        """Return a tool's OpenAPI document."""
        found = self._loaded.documents.get(tool)
        return None if found is None else found[1]

    def constant(self, text: str, position: Position) -> str | None:
        """Return a text with its secrets in place, or None after reporting what else it holds."""
        try:
            parts = compile_parts(text)
        except ExpressionProblem as problem:
            self._problems.add(position, str(problem), problem.hint)
            return None
        if any(isinstance(part, CelExpression) for part in parts):
            self._problems.add(position, "only text and `${secret:NAME}` may stand here, no expressions")
            return None
        value = ""
        for part in parts:
            if isinstance(part, SecretRef):
                secret = self.secret(part.name, position)
                value += "" if secret is None else secret.reveal()
            elif isinstance(part, str):
                value += part
        return value

    def _effective(self, name: str, entry: Entry[ToolSettings], domains: Mapping[str, Domain]) -> _Effective:
        settings, node = entry.settings, entry.node
        check_domain_of(entry, self._loaded, self._problems)
        of_domain = self._loaded.domains.get(settings.domain or "")
        shared = of_domain.settings if of_domain is not None else DomainSettings()
        timeouts = overlay(shared.timeouts, settings.timeouts, node.map("timeouts"))
        breaker = overlay(shared.breaker or BreakerSettings(), settings.breaker, node.map("breaker"))
        retry = overlay(shared.retry or RetrySettings(), settings.retry, node.map("retry"))
        if settings.breaker is not None:
            check_breaker(breaker, entry.at, self._problems)
        if settings.retry is not None:
            check_retry(retry, entry.at, self._problems)
        domain = domains.get(settings.domain) if settings.domain is not None else None
        if domain is None:
            domain = self._kept(Domain(name=f"tool:{name}", admission=AdmissionSettings(), timeouts=timeouts))
        return _Effective(domain, breaker, retry, timeouts)

    def _credential(self, entry: Entry[ToolSettings]) -> tuple[bytes, bytes] | None:
        settings = entry.settings.credentials
        if settings is None or settings.value is None or settings.lease is not None:
            return None
        here = entry.at("credentials", "value")
        if not TOKEN.fullmatch(settings.header):
            self._problems.add(entry.at("credentials", "header"), "not a header name", "letters, digits and `-`")
            return None
        try:
            parts = compile_parts(settings.value)
        except ExpressionProblem as problem:
            self._problems.add(here, str(problem), problem.hint)
            return None
        if any(isinstance(part, CelExpression) for part in parts):
            self._problems.add(
                here, "a credential holds text and `${secret:NAME}`, no expressions", "it is the same for all"
            )
            return None
        if not secrets_in(parts):
            self._problems.warn(
                here,
                "the credential stands in the manifest itself",
                "use `${secret:NAME}` and keep the value elsewhere",
            )
        value = ""
        for part in parts:
            if isinstance(part, SecretRef):
                secret = self.secret(part.name, here)
                value += "" if secret is None else secret.reveal()
            elif isinstance(part, str):
                value += part
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
            self._problems.add(here, "a header holds no line breaks and no control characters", "check its quotes")
            return None
        return settings.header.encode("ascii"), value.strip().encode()

    def _leases(self, entry: Entry[ToolSettings]) -> LeaseSource | None:
        settings = entry.settings.credentials
        if settings is None:
            return None
        at = partial(entry.at, "credentials")
        ways = [name for name in ("value", "oauth", "aws", "exec") if getattr(settings, name) is not None]
        if len(ways) != 1:
            given = " and ".join(f"`{way}`" for way in ways) or "none"
            self._problems.add(
                at(), f"a credential comes in one way, and {given} is given", "use one of value, oauth, aws, exec"
            )
            return None
        if ways == ["value"] and settings.lease is None:
            return None
        if entry.settings.mcp is not None and entry.settings.mcp.command:
            self._problems.add(at(), "a program is given its credential in `mcp.environment`", "leases are for HTTP")
            return None
        if not TOKEN.fullmatch(settings.header):
            self._problems.add(at("header"), "not a header name", "letters, digits and `-`")
            return None
        source = self._lease_source(settings, at)
        ttl_s = DEFAULT_TTL_S if settings.lease is None else settings.lease
        return None if source is None else LeaseSource(header=settings.header, ttl_s=ttl_s, source=source)

    def _lease_source(
        self, settings: CredentialSettings, at: Callable[..., Position]
    ) -> StaticSource | OAuthSource | AwsSource | ExecSource | None:
        def text(value: str | None, *path: str) -> str | None:
            found = None if value is None else self.constant(value, at(*path))
            if found is not None and not found.isprintable():
                self._problems.add(
                    at(*path), "a secret holds no line breaks and no control characters", "check its quotes"
                )
            return found

        if settings.value is not None:
            value = text(settings.value, "value")
            return None if value is None else StaticSource(value)
        if (oauth := settings.oauth) is not None:
            for name in ("token_url", "revoke_url"):
                url = getattr(oauth, name)
                if url is not None and urlsplit(url).scheme not in ("http", "https"):
                    self._problems.add(
                        at("oauth", name), f"`{name}` is not a URL", "as in `https://id.example.com/token`"
                    )
            if (oauth.grant == "token_exchange") is not (oauth.subject_token is not None):
                self._problems.add(
                    at("oauth"), "`subject_token` is what `grant: token_exchange` trades", "give both or neither"
                )
            client = text(oauth.client_secret, "oauth", "client_secret")
            return OAuthSource(oauth, client or "", text(oauth.subject_token, "oauth", "subject_token"))
        if (aws := settings.aws) is not None:
            key = text(aws.access_key, "aws", "access_key") or ""
            secret = text(aws.secret_key, "aws", "secret_key") or ""
            return AwsSource(
                aws.service, aws.region, AwsKey(key, secret, text(aws.session_token, "aws", "session_token"))
            )
        assert settings.exec is not None
        environment = [
            (name, text(value, "exec", "environment", name) or "") for name, value in settings.exec.environment.items()
        ]
        return ExecSource(settings.exec, tuple(environment))

    def secret(self, name: str, used_at: Position) -> Secret | None:
        """Return a secret that is used at a place, or None after reporting it once."""
        if name not in self._secrets:
            self._secrets[name] = None
            try:
                entry = self._loaded.secrets.get(name)
                if entry is None and name in self._loaded.names["secrets"]:
                    return None
                self._secrets[name] = self._source.read(name, entry)
            except SecretProblem as problem:
                offered = nearest(name, self._loaded.secrets) if entry is None else ""
                better = offered if offered.startswith("did") else ""
                self._problems.add(used_at, str(problem), "; ".join(filter(None, (better, problem.hint))))
        return self._secrets[name]

    def condition(self, source: str | None, position: Position, names: frozenset[str] = NAMES) -> CelExpression | None:
        """Return a compiled condition, or None if there is none or it was reported."""
        if source is None:
            return None
        try:
            return compile_condition(source, names)
        except ExpressionProblem as problem:
            self._problems.add(position, str(problem), problem.hint)
            return None

    def value(self, source: str | None, position: Position) -> CelExpression | None:
        """Return a compiled expression of any type, or None if there is none or it was reported."""
        if source is None:
            return None
        try:
            return compile_expression(source)
        except ExpressionProblem as problem:
            self._problems.add(position, str(problem), problem.hint)
            return None

    def expression(self, source: str | None, position: Position) -> CelExpression | None:
        """Return a compiled expression, or None if there is none or it was reported."""
        if source is None:
            return None
        try:
            return compile_expression(source)
        except ExpressionProblem as problem:
            self._problems.add(position, str(problem), problem.hint)
            return None

    def request(
        self,
        settings: CompensatorSettings | ProbeSettings | StateSettings | VerifySettings,
        entry: Entry[ToolSettings] | Entry[GateSettings],
        own: str,
        *path: str,
    ) -> RequestTemplate | None:
        """Return the template of a compensator, probe or verifier, or None after reporting what is wrong with it."""
        target = self._loaded.tools.get(settings.tool or own)
        is_call = settings.request.startswith(f"{CALL} ")
        if target is not None and is_call is not (target.settings.mcp is not None):
            what = "is an MCP server" if not is_call else "is no MCP server"
            right = "`CALL tool` with `json` for its arguments" if not is_call else "METHOD and path"
            self._problems.add(entry.at(*path), f"`{shown(settings.tool or own)}` {what}", f"write {right}")
            return None
        names = _COMPENSATOR
        if not isinstance(settings, CompensatorSettings):
            names = _PROBE if isinstance(settings, ProbeSettings | StateSettings) else _VERIFY
        if settings.tool is not None and settings.tool not in self._loaded.names["tools"]:
            known = self._loaded.names["tools"]
            self._problems.add(
                entry.at(*path, "tool"), f"unknown tool `{shown(settings.tool)}`", nearest(settings.tool, known)
            )

        def report(below: tuple[str | int, ...], message: str, hint: str) -> None:
            self._problems.add(entry.at(*path, *below), message, hint)

        part = _request_part(settings)
        if is_call:
            part = _call_part(part)
        compiled = compile_request(part, settings.tool or own, names, report)
        if compiled is None:
            return None
        template, secrets = compiled
        for secret in sorted(secrets):
            self.secret(secret, entry.at(*path, "headers"))
        return template

    def reads_response(self, settings: CompensatorSettings) -> list[tuple[str | int, ...]]:
        """Return where a compensator is bound from the answer of its step: paths below its own mapping."""
        found: list[tuple[str | int, ...]] = []
        part = _request_part(settings)
        part = _call_part(part) if settings.request.startswith(f"{CALL} ") else part
        compile_request(part, "", _PROBE, lambda below, *_: found.append(below))
        return found

    @property
    def problems(self) -> Problems:
        """Where problems go."""
        return self._problems

    def _digest(self, *parts: object) -> str:
        state = blake2b(digest_size=16, key=self._key[:64])
        for part in parts:
            state.update(
                orjson.dumps(part, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS, default=_plain) + b"\n"
            )
        return state.hexdigest()

    def _digest_of_all(self, tools: Mapping[str, ToolSpec], domains: Mapping[str, Domain]) -> str:
        secrets = {name: "" if value is None else value.reveal() for name, value in self._secrets.items()}
        sinks = {name: sink.settings for name, sink in self._loaded.incidents.items()}
        hooks = {name: hook.settings for name, hook in self._loaded.suspend.items()}
        rules = {name: rule.settings for name, rule in self._loaded.rules.items()}
        keys = {name: key.settings for name, key in self._loaded.claims.items()}
        return self._digest(
            {name: tool.digest for name, tool in tools.items()}, domains, secrets, sinks, hooks, rules, keys
        )

    def _breaker_key(self, upstream: Upstream, credential: object) -> str:
        return upstream.origin if credential is None else f"{upstream.origin}#{self._digest(credential)[:16]}"


def _revealed(proof: LeaseSource | tuple[bytes, bytes] | None) -> object:
    """Everything about a credential, secrets included, for digests only."""
    return proof if proof is None or isinstance(proof, tuple) else asdict(proof)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(f"no digest for {type(value).__name__}")


def _call_part(settings: RequestSettings) -> RequestSettings:
    """A tool call is a request of its own method; its arguments are the JSON body, `{}` if there are none."""
    name = settings.request.removeprefix(f"{CALL} ").strip()
    json = settings.json if settings.json is not None else {}
    return replace(settings, request=f"{CALL} {target_of(name)}", json=json)


def _request_part(settings: RequestSettings) -> RequestSettings:
    return RequestSettings(
        request=settings.request,
        headers=settings.headers,
        query=settings.query,
        json=settings.json,
        form=settings.form,
        body=settings.body,
    )


class _Operations:
    """Compiles the operations of one tool."""

    def __init__(
        self,
        compiler: _Compiler,
        tool: str,
        entry: Entry[ToolSettings],
        timeouts: TimeoutSettings,
        overrides: Mapping[str, frozenset[str]],
    ) -> None:
        self._overrides = overrides
        self._compiler = compiler
        self._problems = compiler.problems
        self._tool = tool
        self._entry = entry
        self._timeouts = timeouts
        self._shapes: dict[tuple[object, ...], str] = {}

    def compile_calls(self) -> dict[str, tuple[Operation, str]]:
        """Return the operations of an MCP server, by the tool's name."""
        if self._entry.settings.mcp is None:
            return {}
        compiled: dict[str, tuple[Operation, str]] = {}
        for name, settings in self._entry.settings.operations.items():
            at = ("operations", name)
            self._check(name, settings, at)
            method, _, tool = settings.match.partition(" ")
            if method != CALL or not tool.strip():
                self._problems.add(
                    self._entry.at(*at, "match"), "an MCP server's operation is `CALL tool`", "as in `CALL git_commit`"
                )
                continue
            operation = self._operation(name, settings, at)
            if compiled.setdefault(tool.strip(), (operation, _reason(operation)))[0] is not operation:
                self._problems.add(self._entry.at(*at, "match"), f"`{shown(tool)}` is declared twice", "keep one")
        return compiled

    def compile(self) -> list[tuple[Pattern, Operation, str]]:
        compiled: list[tuple[Pattern, Operation, str]] = []
        if self._entry.settings.mcp is not None:
            return compiled
        for name, settings in self._entry.settings.operations.items():
            at = ("operations", name)
            self._check(name, settings, at)
            pattern = self._pattern(name, settings, at)
            operation = self._described(self._operation(name, settings, at), at, is_readable=pattern is not None)
            if pattern is not None:
                compiled.append((pattern, operation, _reason(operation)))
        return compiled

    def _described(self, operation: Operation, at: tuple[str, ...], *, is_readable: bool) -> Operation:
        """Add what the tool's OpenAPI document says; the manifest's own words win."""
        found = self._compiler.document(self._tool)
        if found is None or not is_readable:
            return operation
        told = found.find(operation.source)
        if told is None:
            here, name = self._entry.at(*at, "match"), shown(self._entry.settings.openapi or "")
            self._problems.warn(here, f"`{name}` does not describe it", "so models see what `match` and `input` say")
            return operation
        description = told.description if operation.description is None else operation.description
        if operation.input is not None:
            return replace(operation, description=description, form=told.form)
        return replace(operation, description=description, input=told.schema, form=told.form)

    def _check(self, name: str, settings: OperationSettings, at: tuple[str, ...]) -> None:
        check_name("an operation", name, self._entry.at(*at), self._problems)
        check_operation(settings, lambda *path: self._entry.at(*at, *path), self._problems)
        probe = settings.probe
        if probe is not None and probe.request.split(" ")[0] not in SAFE_METHODS | {"POST", CALL}:
            self._problems.add(
                self._entry.at(*at, "probe"),
                "a probe is a read",
                "use GET or HEAD; POST only where the tool searches by it",
            )
        if probe is not None and probe.landed is not None and probe.result is None and settings.compensator is not None:
            self._check_unanswered(settings.compensator, (*at, "compensator"))

    def _check_unanswered(self, compensator: CompensatorSettings, at: tuple[str, ...]) -> None:
        """A step that the probe finds to have landed has no answer then to bind its undo from: it is left as residue."""
        for below in self._compiler.reads_response(compensator):
            self._problems.warn(
                self._entry.at(*at, *below),
                "it reads `response`, which a step that the probe settles does not have, so that one cannot be undone",
                "give the probe a `result`, or bind this from `request` or `params`",
            )

    def _pattern(self, name: str, settings: OperationSettings, at: tuple[str, ...]) -> Pattern | None:
        here = self._entry.at(*at, "match")
        try:
            pattern = parse_pattern(settings.match)
        except PatternError as error:
            self._problems.add(here, str(error))
            return None
        first = self._shapes.setdefault(pattern.shape, name)
        if first != name:
            where = self._entry.at("operations", first, "match")
            self._problems.add(
                here,
                f"`{shown(name)}` and `{shown(first)}` (at {where}) match the same calls",
                "make one of the paths or queries more specific",
            )
        return pattern

    def _operation(self, name: str, settings: OperationSettings, at: tuple[str, ...]) -> Operation:
        timeouts = overlay(self._timeouts, settings.timeouts, self._entry.node.map(*at, "timeouts"))
        condition = self._compiler.condition(settings.postcondition, self._entry.at(*at, "postcondition"))
        approval, approved_by, gates = self._compiler.gated_by(settings, self._entry.at(*at, "gates"))
        operation = Operation(
            name=name,
            tier=Tier(settings.tier),
            timeouts=timeouts,
            source=settings.match,
            compensator=self._compensator(settings.compensator, (*at, "compensator")),
            probe=self._probe(settings.probe, (*at, "probe")),
            postcondition=condition,
            approval=approval,
            approved_by=approved_by,
            gates=gates,
            is_staged=settings.pivot is PivotMode.STAGE,
            lease=self._lease(settings.lease, (*at, "lease")),
            leak=settings.leak,
            duration_s=settings.duration,
            usage=self._usage(settings.usage, (*at, "usage")),
            watch=self._watched(settings.watch, (*at, "watch")),
            is_idempotent=settings.idempotent,
            fails_cleanly=settings.fails_cleanly,
            journal=settings.journal,
            description=settings.description,
            input=settings.input if isinstance(settings.input, dict) else None,
            artifacts=self._artifacts(settings.artifacts, (*at, "artifacts")),
            claim=self._claim(settings.claim, (*at, "claim")),
            overrides=self._overrides[name],
        )
        return self._compiler.ruled(self._tool, operation, "")[0]

    def _usage(self, settings: UsageSettings | None, at: tuple[str, ...]) -> Usage | None:
        if settings is None:
            return None
        found = [
            (name, self._compiler.value(source, self._entry.at(*at, name)))
            for name, source in (("usd", settings.usd), ("tokens", settings.tokens))
        ]
        return Usage(settings.price, tuple((name, amount) for name, amount in found if amount is not None))

    def _watched(self, settings: WatchedSettings | None, at: tuple[str, ...]) -> Watched | None:
        if settings is None:
            return None
        metrics = [
            (name, self._compiler.value(source, self._entry.at(*at, "metrics", name)))
            for name, source in settings.metrics.items()
        ]
        return Watched(settings.poll, tuple((name, metric) for name, metric in metrics if metric is not None))

    def _lease(self, settings: LeaseSettings | None, at: tuple[str, ...]) -> Lease | None:
        if settings is None:
            return None
        until = self._compiler.value(settings.until, self._entry.at(*at, "until"))
        name = self._compiler.value(settings.name, self._entry.at(*at, "name"))
        return Lease(settings.ttl, until, name)

    def _claim(self, settings: ClaimNeedSettings | None, at: tuple[str, ...]) -> ClaimNeedSettings | None:
        if settings is not None and not self._compiler.has_claim_keys:
            self._problems.add(
                self._entry.at(*at), "a claim is needed, and no key of `claims` could prove one", "add a key"
            )
        return settings

    def _artifacts(self, settings: ArtifactSettings | None, at: tuple[str, ...]) -> Artifacts | None:
        if settings is None:
            return None
        reads = [self._compiler.value(one, self._entry.at(*at, "reads", i)) for i, one in enumerate(settings.reads)]
        writes = [self._compiler.value(one, self._entry.at(*at, "writes", i)) for i, one in enumerate(settings.writes)]

        def of(names: list[CelExpression | None], *, from_answer: bool) -> tuple[CelExpression, ...]:
            return tuple(one for one in names if one is not None and ("response" in one.names) is from_answer)

        return Artifacts(
            reads=of(reads, from_answer=False),
            writes=of(writes, from_answer=False),
            answer_reads=of(reads, from_answer=True),
            answer_writes=of(writes, from_answer=True),
            content=self._compiler.value(settings.content, self._entry.at(*at, "content")),
        )

    def _compensator(self, settings: CompensatorSettings | None, at: tuple[str, ...]) -> Compensator | None:
        if settings is None:
            return None
        condition = self._compiler.condition(settings.postcondition, self._entry.at(*at, "postcondition"))
        template = self._compiler.request(settings, self._entry, self._tool, *at)
        if template is None:
            return None
        return Compensator(
            template,
            condition,
            is_for_partial=settings.partial,
            is_safe_if_absent=settings.safe_if_absent,
            duration_s=settings.duration,
            price=settings.price,
        )

    def _probe(self, settings: ProbeSettings | None, at: tuple[str, ...]) -> Probe | None:
        if settings is None:
            return None
        compiler, here = self._compiler, self._entry.at
        landed = compiler.condition(settings.landed, here(*at, "landed"))
        not_landed = compiler.condition(settings.not_landed, here(*at, "not_landed"))
        gone = compiler.condition(settings.gone, here(*at, "gone"))
        result = compiler.expression(settings.result, here(*at, "result"))
        template = compiler.request(settings, self._entry, self._tool, *at)
        if template is None:
            return None
        return Probe(template, landed, not_landed, result, gone, delay_s=settings.delay, again_s=settings.again)


def _reason(operation: Operation) -> str:
    meaning = {
        Tier.READ: "a read: it has no effect",
        Tier.REVERSIBLE: "reversible: its effect can be left as it is",
        Tier.PIVOT: "a pivot: it cannot be undone, and a run has at most one",
    }.get(operation.tier, "compensable: an abort undoes it")
    if operation.compensator is not None:
        meaning += f", by {operation.compensator.request.source}"
    return f"It matches `{operation.name}` ({operation.source}), which the manifest declares {meaning}."


def _as_guarded(write: tuple[Operation, str], declared: list[Operation]) -> tuple[Operation, str]:
    """Return the undeclared write of a tool: where it guards any operation, another spelling of that one's path must not
    get past the guard, so people decide about what it does not know."""
    operation, reason = write
    first = next((one for one in declared if one.approval is ApprovalPolicy.REQUIRED), None)
    if first is None and not any(one.gates for one in declared):
        return write
    by = ApprovalSettings() if first is None else first.approved_by
    guarded = replace(operation, approval=ApprovalPolicy.REQUIRED, approved_by=by)
    return guarded, f"{reason} The tool guards an operation, so people decide about a write that it does not declare."


def _undeclared(
    tool: str, is_managed: bool, is_strict: bool, timeouts: TimeoutSettings, overrides: frozenset[str]
) -> tuple[tuple[Operation, str], tuple[Operation, str]]:
    """Return the operations that stand for what the manifest does not declare (design section 1, "tier")."""
    made_up = partial(Operation, timeouts=timeouts, is_declared=False, overrides=overrides)
    read = made_up(name=UNDECLARED_READ, tier=Tier.READ)
    write = made_up(name=UNDECLARED_WRITE, tier=Tier.PIVOT if is_managed else Tier.UNMANAGED)
    read_reason = f"`{tool}` declares no operation for it, and its method is one that has no effect, so it is a read."
    if is_managed:
        write_reason = (
            f"`{tool}` declares operations but none for it, so this write counts as a pivot: it cannot be undone"
        )
    else:
        write_reason = (
            f"`{tool}` declares no operations, so its writes are unmanaged: they pass, are journaled and shielded, and "
            "an abort reports them as what it cannot undo"
        )
    refused = "; the tool is strict, so it is refused." if is_strict else "."
    return (read, read_reason), (write, write_reason + refused)
