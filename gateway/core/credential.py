"""Leases on credentials: what a run may prove itself with at a tool, for how long, and when that ends.

An agent never holds a tool's secret. For a tool whose credential is leased, the gateway takes a lease for each run: a token
of an OAuth server, what a program printed, a signing key, or a static secret with a time on it. A lease ends when its time
is up, when its run is over, frozen or quarantined, when the tool says that it no longer takes it, or when the manifest
changes. Then it is gone here at once, and its issuer is told where there is a way to.

Journal, logs and traces know a lease by its name alone.

Source: RFC 6749 section 4.4 (client credentials), RFC 8693 (token exchange), RFC 7009 (revocation); Saltzer & Schroeder 1975
(least privilege).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from annotated_types import Gt, MinLen

from gateway.core.setting import SECONDS, TEMPLATE, Doc
from gateway.core.sigv4 import AwsKey

__all__ = [
    "DEFAULT_TTL_S",
    "AwsSettings",
    "AwsSource",
    "ExecSettings",
    "ExecSource",
    "Lease",
    "LeaseBook",
    "LeaseSource",
    "OAuthSettings",
    "OAuthSource",
    "StaticSource",
    "good_for_s",
]

EARLY_S: Final = 30.0
"""A lease is renewed so long before its end, so that no request is on its way when it ends; at most a tenth of its time."""

DEFAULT_TTL_S: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """A bearer token from an OAuth 2 server, a token of its own for each run."""

    token_url: Annotated[str, MinLen(1), Doc("Its token endpoint.")]
    client_id: Annotated[str, MinLen(1), Doc("Who the gateway is there.")]
    client_secret: Annotated[str, TEMPLATE, Doc("`${secret:NAME}`.")]
    grant: Annotated[
        Literal["client_credentials", "token_exchange"],
        Doc("`token_exchange` (RFC 8693) trades `subject_token` for a token of less reach."),
    ] = "client_credentials"
    scope: Annotated[str | None, MinLen(1), Doc("What it may do, separated by spaces.")] = None
    audience: Annotated[str | None, MinLen(1), Doc("For which service.")] = None
    resource: Annotated[str | None, MinLen(1), Doc("For which service, as a URL (RFC 8707).")] = None
    subject_token: Annotated[str | None, TEMPLATE, Doc("`${secret:NAME}`, of an exchange.")] = None
    subject_token_type: Annotated[str, MinLen(1), Doc("Its kind.")] = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a kind of token, not one
    revoke_url: Annotated[str | None, MinLen(1), Doc("Its revocation endpoint (RFC 7009).")] = None
    authentication: Annotated[
        Literal["basic", "post"], Doc("How the client proves itself: a header, or fields of the form.")
    ] = "basic"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """Requests are signed with AWS Signature Version 4."""

    service: Annotated[str, MinLen(1), Doc("Such as `s3` or `dynamodb`.")]
    region: Annotated[str, MinLen(1), Doc("Such as `eu-central-1`.")]
    access_key: Annotated[str, TEMPLATE, Doc("Id of the key; may be `${secret:NAME}`.")]
    secret_key: Annotated[str, TEMPLATE, Doc("`${secret:NAME}`.")]
    session_token: Annotated[str | None, TEMPLATE, Doc("`${secret:NAME}`, of a temporary key.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSettings:
    """A program that prints a credential: `{"value": …, "expires_in": SECONDS?}` as JSON on its standard output.

    It sees SEAWALL_RUN, SEAWALL_AGENT, SEAWALL_TOOL, PATH and HOME. What it prints is shown nowhere.
    """

    command: Annotated[tuple[str, ...], MinLen(1), Doc("Program and arguments; no shell.")]
    environment: Annotated[Mapping[str, str], TEMPLATE, Doc("Further variables; may hold `${secret:NAME}`.")] = field(
        default_factory=dict
    )
    timeout: Annotated[float, SECONDS, Gt(0), Doc("How long it may take.")] = 10.0


@dataclass(frozen=True, slots=True)
class StaticSource:
    """A secret that is the same for all runs, with a time on it."""

    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthSource:
    """Where tokens come from."""

    settings: OAuthSettings
    client_secret: str = field(repr=False)
    subject_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AwsSource:
    """A key that signs."""

    service: str
    region: str
    key: AwsKey


@dataclass(frozen=True, slots=True)
class ExecSource:
    """A program that prints a credential."""

    settings: ExecSettings
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeaseSource:
    """How a tool's leases are had. `header` carries what they say; `ttl_s` is the longest that one lasts."""

    header: str
    ttl_s: float
    source: StaticSource | OAuthSource | AwsSource | ExecSource

    @property
    def kind(self) -> str:
        """`static`, `oauth`, `aws` or `exec`."""
        return {StaticSource: "static", OAuthSource: "oauth", AwsSource: "aws", ExecSource: "exec"}[type(self.source)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease. `value` is the secret, never printed; `expires_s` is monotonic."""

    id: str
    tool: str
    run: str
    agent: str
    kind: str
    expires_s: float
    source: LeaseSource = field(repr=False)
    value: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"lease {self.id} of run {self.run or '-'} on {self.tool}"


def good_for_s(ttl_s: float, told_s: float | None) -> float:
    """Return how long a lease lasts, in seconds: as its issuer says, less a margin, but no longer than the manifest."""
    if told_s is None:
        return ttl_s
    return max(0.0, min(ttl_s, told_s - min(EARLY_S, told_s / 10)))


class LeaseBook:
    """The leases that are good, by tool and run. Pure: `now` is monotonic seconds.

    What was revoked or has ended is not in it, so nothing can be found that must not be used.
    """

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def find(self, tool: str, run: str, source: LeaseSource, now: float) -> Lease | None:
        """Return the lease that a request may use now, or None."""
        lease = self._leases.get((tool, run))
        return lease if lease is not None and lease.source is source and now < lease.expires_s else None

    def add(self, lease: Lease) -> Lease | None:
        """Add a lease; return the one that it takes the place of."""
        before = self._leases.get((lease.tool, lease.run))
        self._leases[(lease.tool, lease.run)] = lease
        return before

    def end(self, lease: Lease) -> bool:
        """Take a lease out, if it is still in; return whether it was."""
        key = (lease.tool, lease.run)
        if self._leases.get(key) is not lease:
            return False
        del self._leases[key]
        return True

    def end_run(self, run: str) -> list[Lease]:
        """Take out all leases of a run and return them."""
        return self._end([one for one in self._leases.values() if one.run == run])

    def end_agent(self, agent: str) -> list[Lease]:
        """Take out all leases of an agent and return them."""
        return self._end([one for one in self._leases.values() if one.agent == agent])

    def expired(self, now: float) -> list[Lease]:
        """Take out the leases whose time is up and return them."""
        return self._end([one for one in self._leases.values() if one.expires_s <= now])

    def keep_only(self, sources: set[LeaseSource]) -> list[Lease]:
        """Take out the leases that were had in another way than the manifest now says, and return them."""
        return self._end([one for one in self._leases.values() if one.source not in sources])

    def all(self) -> list[Lease]:
        """Return all of them."""
        return list(self._leases.values())

    def _end(self, leases: list[Lease]) -> list[Lease]:
        for lease in leases:
            del self._leases[(lease.tool, lease.run)]
        return leases
