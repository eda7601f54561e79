"""Tools for tests that need one but not a manifest."""

from gateway.core.admission import AdmissionSettings
from gateway.core.breaker import BreakerSettings
from gateway.core.manifest import Tier, TimeoutSettings
from gateway.core.retry import RetrySettings
from gateway.core.tool import Domain, Match, Operation, ToolSpec, Upstream


def make_tool(
    host: str,
    port: int,
    *,
    name: str = "tool",
    scheme: str = "http",
    prefix: str = "",
    credential: tuple[bytes, bytes] | None = None,
) -> ToolSpec:
    """Return a tool with one undeclared read, which every call matches."""
    operation = Operation(name="any", tier=Tier.READ, timeouts=TimeoutSettings(), is_declared=False)
    return ToolSpec(
        name=name,
        upstream=Upstream(scheme, host, port, prefix),
        domain=Domain(name=name, admission=AdmissionSettings(), timeouts=TimeoutSettings()),
        breaker=BreakerSettings(),
        retry=RetrySettings(),
        match=lambda method, target: Match(operation, {}, "made for a test"),
        operations={operation.name: operation},
        credential=credential,
    )
