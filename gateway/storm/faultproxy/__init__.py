"""A link that fails on command: a TCP and HTTP proxy for tests, with toxiproxy's vocabulary and API.

    python -m loadtests.faultproxy --proxy payments=127.0.0.1:9000 --api 127.0.0.1:8474
    curl -d '{"type": "latency", "attributes": {"latency": 200, "jitter": 50}}' localhost:8474/proxies/payments/toxics

`toxics` is what can go wrong, `proxy` one link, `api` the HTTP interface, `script` faults over time. Everything that is left
to chance is seeded, so a failing test fails again.
"""

from gateway.storm.faultproxy.proxy import Proxy, Seen
from gateway.storm.faultproxy.toxics import Toxic, ToxicError

__all__ = ["Proxy", "Seen", "Toxic", "ToxicError"]
