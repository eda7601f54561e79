"""Which tools refuse just now, as far as that shows from outside: where it pays to ask for a refusal before anything else.

A hint and no rule. A tool is hot once a call to it was refused by its breaker or its domain, and cools down with each call
that was not. Calls to one that is not hot are asked nothing; of one that is hot each is first asked whether it would be
refused (`Pipeline.refused_at_once`), which a call that is not pays for with that question.
"""

from __future__ import annotations

from typing import Final

from gateway.core.codes import Code

__all__ = ["Refusing"]

HEAT: Final = 32
"""A hot tool is asked about for so many calls that are not refused: in a storm the few that get a slot do not cool it."""

_TOOLS: Final = 1_000
"""Names kept; those of tools that are gone after a reload never cool down."""

_HEATING: Final = frozenset({Code.CIRCUIT_OPEN, Code.BULKHEAD_FULL, Code.QUEUE_DEADLINE, Code.RATE_LIMITED})


class Refusing(dict[str, int]):
    """The hot tools: how hot each is, by its name. Mostly empty, and quickly seen to be."""

    def is_meant(self, target: bytes) -> bool:
        """Whether a request target `/{tool}/...` names a hot one."""
        return target[1 : target.find(b"/", 1)].decode("latin-1") in self

    def refused(self, tool: str, code: Code) -> None:
        """A call to the tool was refused."""
        if code in _HEATING:
            if len(self) >= _TOOLS:
                self.clear()
            self[tool] = HEAT

    def passed(self, tool: str) -> None:
        """A call to the tool was not."""
        heat = self.get(tool)
        if heat is None:
            return
        if heat > 1:
            self[tool] = heat - 1
        else:
            del self[tool]
