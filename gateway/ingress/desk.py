"""The operator's desk: decide approvals, look after incidents, freeze, release and close runs, resolve steps.

Everything here is a decision of a person: it names who decides and why, is journaled, and may be sent again without doing
more. The rules are in `core/approval.py` and `core/incident.py`; nothing is answered before it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.clock import Clock
from gateway.core.approval import Verdict, approval_view, vote
from gateway.core.codes import Code
from gateway.core.incident import acknowledge, close, freeze, incident_view, release, resolve_step
from gateway.core.outcome import Refusal
from gateway.core.records import Record
from gateway.core.saga import QUARANTINED
from gateway.core.trajectory import Incident, Phase, Trajectory
from gateway.core.views import trajectory_view
from gateway.ingress.runs import Shown
from gateway.journal.trajectories import Run, Trajectories

__all__ = ["Desk"]

_REASON_MAX: Final = 2000
_VERDICTS: Final = ("landed", "not_landed")


class Desk:
    """The verbs, free of any framework. `principal` is who decides, as the control plane knows it."""

    def __init__(
        self,
        trajectories: Trajectories,
        clock: Clock,
        held_by: Callable[[str, str], str | None] = lambda run, agent: None,
        shown: Callable[[str, str], dict[str, object] | None] = lambda run, agent: None,
    ) -> None:
        """`held_by` names the quarantine that a run or its agent is under; `shown` tells of it."""
        self._held_by = held_by
        self._shown = shown
        self._trajectories = trajectories
        self._clock = clock

    # --- approvals

    def approvals(self, state: str | None) -> Shown:
        """List the approvals of live runs, the longest waiting first; by default those that wait."""
        at = self._clock.at()
        views = [
            approval_view(approval, run.state.id, at)
            for run in self._trajectories.attentive()
            for approval in run.state.approvals.values()
        ]
        wanted = [view for view in views if view["state"] == (state or "pending") or state == "all"]
        return Shown(200, {"approvals": sorted(wanted, key=lambda view: str(view["requested_at"]))})

    async def approval(self, identity: str) -> Shown | Refusal:
        """Show one approval: exactly what was asked, and who said what."""
        run = await self._run_of(identity)
        if run is None or identity not in run.state.approvals:
            return _unknown_approval(identity)
        run = await self._trajectories.durable(run)
        return Shown(200, approval_view(run.state.approvals[identity], run.state.id, self._clock.at()))

    async def decide(self, identity: str, verdict: Verdict, principal: str, reason: str) -> Shown | Refusal:
        """Record a vote; the same vote again changes nothing."""
        run = await self._run_of(identity)
        if run is None or identity not in run.state.approvals:
            return _unknown_approval(identity)
        if verdict is Verdict.APPROVE and run.state.phase is Phase.FROZEN:
            return Refusal(
                code=Code.TRAJECTORY_FROZEN,
                detail=f"Run {run.state.id} is frozen ({run.state.incident}). Release it first, or reject.",
            )
        approval = run.state.approvals[identity]
        records = vote(approval, verdict, principal, reason[:_REASON_MAX], self._clock.at())
        refusal = await self._trajectories.recorded(run, records)
        return refusal or await self.approval(identity)

    # --- incidents

    async def incidents(self) -> Shown:
        """List the open incidents: those of the runs that are frozen, the oldest first."""
        frozen = [run.state for run in self._trajectories.in_phase(Phase.FROZEN)]
        rows = [_row(state, incident) for state in frozen if (incident := state.open_incident) is not None]
        return Shown(200, {"incidents": sorted(rows, key=lambda row: str(row["opened_at"]))})

    async def incident(self, identity: str) -> Shown | Refusal:
        """Show an incident, open or resolved, with everything a person needs to decide."""
        found = await self._incident(identity)
        if isinstance(found, Refusal):
            return found
        run, incident = found
        view = incident_view(run.state, incident, self._clock.at())
        if incident.kind == QUARANTINED:
            view["quarantine"] = self._shown(run.state.id, run.state.agent)
        return Shown(200, view)

    async def acknowledge(self, identity: str, principal: str, reason: str) -> Shown | Refusal:
        """Note that somebody looks after it."""
        found = await self._incident(identity)
        if isinstance(found, Refusal):
            return found
        run, incident = found
        if incident.resolved_by is not None:
            return _resolved_already(incident)
        refusal = await self._trajectories.recorded(run, acknowledge(run.state, principal, reason[:_REASON_MAX]))
        return refusal or await self.incident(identity)

    async def resolve(
        self, identity: str, principal: str, reason: str, *, to: str | None, is_closing: bool
    ) -> Shown | Refusal:
        """Resolve an incident by letting its run go on (`to` a phase, or where it stopped) or by closing it."""
        found = await self._incident(identity)
        if isinstance(found, Refusal):
            return found
        run, incident = found
        if incident.resolved_by is None:
            name = run.state.id
            done = await (
                self.close(name, principal, reason) if is_closing else self.release(name, to, principal, reason)
            )
            if isinstance(done, Refusal):
                return done
        return await self.incident(identity)

    # --- runs

    async def freeze(self, name: str, principal: str, reason: str, kind: str = "OPERATOR_FREEZE") -> Shown | Refusal:
        """Stop a run: no call, no compensator, until somebody decides."""
        return await self._on_run(name, lambda state: freeze(state, kind, reason[:_REASON_MAX], principal))

    async def release(self, name: str, to: str | None, principal: str, reason: str) -> Shown | Refusal:
        """Let a frozen run go on; not one that is quarantined."""
        run = await self._trajectories.find(name)
        held = None if run is None else self._held_by(name, run.state.agent)
        if held is not None:
            return Refusal(
                code=Code.QUARANTINED,
                detail=f"Run {name} is quarantined ({held}) and cannot go on. Lift that first, if it was a false alarm: "
                f"`seawall quarantine lift {held} --reason TEXT`; or close the run.",
                extra={"quarantine": held},
            )
        return await self._on_run(name, lambda state: release(state, to, principal, reason[:_REASON_MAX]))

    async def close(self, name: str, principal: str, reason: str) -> Shown | Refusal:
        """End a frozen run as it is."""
        return await self._on_run(name, lambda state: close(state, principal, reason[:_REASON_MAX]))

    async def resolve_step(
        self, name: str, number: int, verdict: str, evidence: str, principal: str
    ) -> Shown | Refusal:
        """Record what a person found out about a step's effect."""
        if verdict not in _VERDICTS or not evidence.strip():
            return Refusal(
                code=Code.INVALID_ARGUMENTS,
                detail="`as` must be landed or not_landed, and `evidence` must say how that is known.",
            )
        return await self._on_run(
            name, lambda state: resolve_step(state, number, verdict, evidence[:_REASON_MAX], principal)
        )

    async def _on_run(self, name: str, rule: Callable[[Trajectory], list[Record] | Refusal]) -> Shown | Refusal:
        run = await self._trajectories.find(name)
        if run is None:
            return Refusal(code=Code.UNKNOWN_TRAJECTORY, detail=f"No run is called {name[:128]!r}.")
        refusal = await self._trajectories.recorded(run, rule(run.state))
        return refusal or Shown(200, trajectory_view(run.state))

    async def _run_of(self, identity: str) -> Run | None:
        name, mark, _ = identity.partition("~")
        return await self._trajectories.find(name) if mark else None

    async def _incident(self, identity: str) -> tuple[Run, Incident] | Refusal:
        run = await self._run_of(identity)
        for incident in () if run is None else run.state.incidents:
            if run is not None and incident.id == identity:
                return run, incident
        return Refusal(
            code=Code.UNKNOWN_INCIDENT,
            detail=f"No incident is called {identity[:200]!r}. `seawall incidents ls` lists the open ones.",
        )


def _row(state: Trajectory, incident: Incident) -> dict[str, object]:
    return {
        "id": incident.id,
        "state": incident.state,
        "class": incident.kind,
        "trajectory": state.id,
        "agent": state.agent,
        "detail": incident.detail,
        "opened_at": incident.at,
        "acknowledged_by": incident.acknowledged_by,
    }


def _unknown_approval(identity: str) -> Refusal:
    return Refusal(
        code=Code.UNKNOWN_APPROVAL,
        detail=f"No approval is called {identity[:200]!r}. `seawall approvals ls` lists those that wait.",
    )


def _resolved_already(incident: Incident) -> Refusal:
    return Refusal(code=Code.ALREADY_DECIDED, detail=f"Incident {incident.id} was resolved by {incident.resolved_by}.")
