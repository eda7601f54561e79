"""What a probe is: a declared read that tells whether a step landed, however it is asked.

A prober sends one question and returns what expressions may see of the answer; what the answer means, when to ask and how
often, decides `core/settle.py`. Probes go down the rest of the pipeline from where they are asked (admission, breaker,
dispatch), on a lane of their own with reserved slots, so that settling can neither starve nor storm a tool.

Kinds: `http` (a request to a tool). Another kind is a file here, an entry in the table that `app` makes, and its name in
`core.tool.Probe.kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.core.call import Call, Handler
from gateway.core.expression import Environment
from gateway.core.tool import Probe

__all__ = ["Prober", "Unheard"]


@dataclass(frozen=True, slots=True)
class Unheard:
    """There is no answer to judge. `can_wait` is False where asking again soon would be of no use."""

    detail: str
    can_wait: bool = True


class Prober(Protocol):
    """Something that can ask one kind of probe."""

    async def ask(self, probe: Probe, call: Call, env: Environment, proceed: Handler) -> Mapping[str, object] | Unheard:
        """Ask once whether the step of `call` landed.

        Args:
            probe: what to ask.
            call: the step in doubt; nothing begins after its deadline.
            env: what the probe is bound from: request, key, params, trajectory, step.
            proceed: the rest of the pipeline.

        Returns:
            `response` as expressions see it, or why there is none.
        """
