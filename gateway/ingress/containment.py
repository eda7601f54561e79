"""The operator's verbs for what is contained: quarantine, lift, clear, and look.

Free of any framework, like the desk. A detector from outside uses the same verb as a person, with a token of its own.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from gateway.clock import settled
from gateway.core.codes import Code
from gateway.core.containment import Trigger
from gateway.core.outcome import Refusal
from gateway.ingress.runs import Shown
from gateway.journal.trajectories import Trajectories

__all__ = ["Containments", "Verify"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
PATIENCE_S: Final = 5.0
"""How long whoever quarantines something waits for what others have to do, and for the disk."""

_TRIGGERS: Final = (Trigger.OPERATOR, Trigger.DETECTOR, Trigger.WATCHDOG)

Verify = Callable[[str, str], Awaitable[str | None]]
"""Asks a declared verifier about an artifact: its name, the artifact's. Returns None if it is good, else why not."""


class Container(Protocol):
    """What contains (`workers/quarantine.py`)."""

    def contain(
        self, *, run: str = ..., agent: str = ..., since: int = ..., trigger: Trigger, by: str, reason: str
    ) -> Any:
        """Contain at once; a `Refusal`, None where it is contained already, else what has `done` to wait for."""

    async def lift(self, quarantine: str, by: str, reason: str) -> Refusal | None:
        """End a quarantine."""

    async def clear(self, artifact: str, by: str, reason: str) -> Refusal | None:
        """Clear an artifact."""

    def views(self, *, is_all: bool = ...) -> list[dict[str, object]]:
        """Return quarantines."""

    def view(self, name: str) -> dict[str, object] | None:
        """Return a quarantine."""

    def artifacts(self, *, is_all: bool = ...) -> list[dict[str, object]]:
        """Return artifacts."""

    def graph(self, run: str) -> dict[str, object]:
        """Return a run's part of the graph."""

    def is_quarantined(self, run: str, agent: str) -> str | None:
        """Return the quarantine that a run or its agent is under."""


class Containments:
    """The verbs."""

    def __init__(self, container: Container, trajectories: Trajectories, verify: Verify) -> None:
        self._container = container
        self._trajectories = trajectories
        self._verify = verify

    def list(self, *, is_all: bool) -> Shown:
        """List quarantines, the oldest first."""
        return Shown(200, {"quarantines": self._container.views(is_all=is_all)})

    def show(self, name: str) -> Shown | Refusal:
        """Show one."""
        view = self._container.view(name)
        return _unknown(name) if view is None else Shown(200, view)

    async def contain(self, body: Mapping[str, object], principal: str, reason: str) -> Shown | Refusal:
        """Quarantine at once; answered with 201 when every stage is done, or was given up, and all of it is on disk, or with
        202 after a while."""
        run, agent, since = body.get("trajectory") or "", body.get("agent") or "", body.get("since", 0)
        trigger = body.get("trigger", Trigger.OPERATOR.value)
        problems = [f"{key!r} is not known" for key in sorted(body.keys() - _KEYS)]
        for key, name in (("trajectory", run), ("agent", agent)):
            if name and not (isinstance(name, str) and _NAME.fullmatch(name)):
                problems.append(f"{key} must be a name")
        if not isinstance(since, int) or isinstance(since, bool) or since < 0:
            problems.append("since must be the number of a step")
        if trigger not in [one.value for one in _TRIGGERS]:
            problems.append(f"trigger must be one of {', '.join(one.value for one in _TRIGGERS)}")
        if problems:
            return Refusal(code=Code.INVALID_ARGUMENTS, detail=f"Nothing was quarantined: {'; '.join(problems)}.")
        assert isinstance(run, str)
        assert isinstance(agent, str)
        assert isinstance(since, int)
        # A run that is in memory can be contained whatever the disk does.
        if run and self._trajectories.get(run) is None and await self._trajectories.find(run) is None:
            return Refusal(code=Code.UNKNOWN_TRAJECTORY, detail=f"No run is called {run!r}; nothing was quarantined.")
        contained = self._container.contain(
            run=run, agent=agent, since=since, trigger=Trigger(str(trigger)), by=principal, reason=reason
        )
        if isinstance(contained, Refusal):
            return contained
        if contained is None:
            held = self._container.is_quarantined(run, agent)
            return Shown(200, self._container.view(held or "") or {})
        is_done = await settled(contained.done, PATIENCE_S)
        return Shown(201 if is_done else 202, self._container.view(contained.quarantine.told.quarantine) or {})

    async def lift(self, name: str, principal: str, reason: str) -> Shown | Refusal:
        """End a quarantine; its run stays frozen until it is released or closed."""
        return await self._container.lift(name, principal, reason) or self.show(name)

    def artifacts(self, *, is_all: bool) -> Shown:
        """List artifacts."""
        return Shown(200, {"artifacts": self._container.artifacts(is_all=is_all)})

    async def clear(self, artifact: str, verifier: str | None, principal: str, reason: str) -> Shown | Refusal:
        """Clear an artifact: by the word of the operator, or because a declared verifier says so."""
        by = principal
        if verifier is not None:
            why = await self._verify(verifier, artifact)
            if why is not None:
                return Refusal(
                    code=Code.ARTIFACT_QUARANTINED,
                    detail=f"{artifact[:200]} stays as it is: the verifier {verifier[:64]} says no, because {why}.",
                )
            by = f"verifier {verifier}"
        refusal = await self._container.clear(artifact, by, reason)
        if refusal is not None:
            return refusal
        found = next((one for one in self._container.artifacts(is_all=True) if one["artifact"] == artifact), {})
        return Shown(200, found)

    def graph(self, run: str) -> Shown:
        """Show what a run read and made, and what was made from that."""
        return Shown(200, self._container.graph(run))


_KEYS: Final = {"trajectory", "agent", "since", "trigger", "principal", "reason"}


def _unknown(name: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_INCIDENT,
        detail=f"No quarantine is called {name[:64]!r}. `seawall quarantine ls` lists those in force.",
    )
