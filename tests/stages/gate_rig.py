"""The saga's rig with the gate and the outbox in their places, and people who vote."""

from __future__ import annotations

from gateway.core.approval import Verdict, vote
from gateway.core.tool import Catalog
from gateway.pipeline import compose
from gateway.probes.verifier import HttpVerifier
from gateway.stages.approval import ApprovalStage
from gateway.stages.idempotency import IdempotencyStage
from gateway.stages.journal import JournalStage
from gateway.stages.outbox import OutboxStage
from gateway.stages.saga import SagaStage
from tests.stages.saga_rig import Rig

__all__ = ["GateRig"]


class GateRig(Rig):
    """The rig with the approval and outbox stages in their places."""

    def restart(self) -> None:
        super().restart()
        verifier = HttpVerifier(lambda: self.pipeline, lambda: Catalog({}, {}), self.clock)
        stages = (
            IdempotencyStage(self.trajectories, self.journal, self.clock),
            SagaStage(self.trajectories, self.journal, self.telemetry),
            ApprovalStage(self.trajectories, verifier, self.clock, self.telemetry),
            OutboxStage(self.trajectories, self.clock, self.telemetry),
            JournalStage(self.trajectories, self.clock, self.telemetry),
        )
        self.pipeline = compose(stages, self._tool)

    async def vote(self, who: str, verdict: Verdict = Verdict.APPROVE, run: str = "r1") -> None:
        found = await self.trajectories.find(run)
        assert found is not None
        approval = next(reversed(found.state.approvals.values()))
        refusal = await self.trajectories.recorded(found, vote(approval, verdict, who, "ok", self.clock.at()))
        assert refusal is None
