"""The end of a generation: agents revoke it, lost ranks get new processes, survivors leave their collectives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.state.events import GenerationFenced, RanksUnplaced
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.protocol.messages import FenceNode

FENCE_SECONDS: Final = 30.0
"""An agent that does not answer a fence by then is taken to hold nothing."""
AGAIN_SECONDS: Final = 1.0
"""Between looks for a node that has room."""


class Fencing:
    """One a coordinator."""

    def __init__(self, job: Job, inputs: PlannerInputBuilder) -> None:
        self._job = job
        self._inputs = inputs

    def victims(self, failure: GenerationFailure) -> set[int]:
        """Ranks that need a new process. All of them when some have already left the training loop for good."""
        ranks = self._job.members.ranks
        whole = self._job.members.shape is None or any(r.gone for r in ranks)
        return {r.number for r in ranks if whole or r.lost or r.number in failure.ranks}

    def fence_all(self) -> None:
        """Revoke the old generation; every process stays."""
        self.replace(set())

    def replace(
        self, victims: set[int], exclude: frozenset[int] = frozenset(), *, moves: Mapping[int, str] | None = None
    ) -> bool:
        """Revoke the old generation everywhere, and start new processes for ``victims`` right behind it.

        ``moves`` says where those run that nothing forces to move.
        """
        # No await below: the old generation ends and the new one begins in one turn of the loop.
        job, members = self._job, self._job.members
        victims = {number for number in victims if not members.ranks[number].unplaced}
        homes = moves or self._inputs.homes(victims, exclude)
        if isinstance(homes, str):
            self._wait_for_place(victims, f"{homes} (ranks {sorted(victims)} have nowhere to run)")
            return False
        self._inputs.log_last_resort(homes)
        if members.shape is None:
            job.open_store()  # the script itself meets through the store, and would find the dead in it
        job.apply(GenerationFenced(homes={n: homes[n] for n in sorted(victims)}, exclude=tuple(sorted(exclude))))
        return True

    def wait_for_unplaced(self) -> bool:
        """Have the generation that begins wait for a place for those of its ranks that have none; whether it must."""
        numbers = {rank.number for rank in self._job.members.present if rank.unplaced}
        if numbers:
            away = tuple(rank.number for rank in self._job.members.ranks if rank.unplaced and rank.away)
            self._job.apply(RanksUnplaced(ranks=away))  # for the others it is looked for a place from now on
            problem = f"ranks {sorted(numbers)} have nowhere to run, and the others cannot train without them"
            self._wait_for_place(numbers, problem)
        return bool(numbers)

    def _wait_for_place(self, victims: set[int], problem: str) -> None:
        """Have ranks that have no place wait for a node that may join; where none may, the job ends."""
        job = self._job
        joins = job.options.spare_nodes and not job.members.full
        if job.recovery is None or not (joins or job.state.on_loss.leaves_ranks_out):
            job.control.fail(problem)
        else:
            job.attempt = job.spawn(self._until_placed(job.recovery, victims, problem))

    async def _until_placed(self, recovery: RecoveryRecord, victims: set[int], problem: str) -> None:
        job, began = self._job, time.time()
        log.warning("DEGRADED %s: %s; it waits for another node (--join-timeout)", job.options.job, problem)
        job.broadcast(FenceNode(generation=job.state.generation))  # survivors must not wait in a collective
        try:
            missing = self._without_place(victims)
            while isinstance(self._inputs.homes(victims), str):
                if job.state.on_loss.leaves_ranks_out and self._without_place(victims) < missing:
                    break  # one more may be enough for a whole replica
                if time.time() > began + job.options.join_seconds:
                    return job.control.fail(problem)
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            recovery.waited += time.time() - began
        reason = "a node has come that has room"
        job.failed_soon(GenerationFailure(ranks=victims, reason=reason, counts=False, changes=True))
        return None

    def _without_place(self, victims: set[int]) -> set[int]:
        """Those of ``victims`` that could not run, each taken alone."""
        return {number for number in victims if self._inputs.case({number}, victims - {number}).unplaced is not None}

    async def wait_for_survivors(self, recovery: RecoveryRecord, waiting: set[int]) -> bool:
        """Wait for agents and survivors. A survivor that stays in its collective is itself a failure."""
        job = self._job
        survivors = [job.members.ranks[r] for r in waiting]
        await job.until(lambda: all(n.fenced >= job.state.generation for n in job.members.alive()), FENCE_SECONDS)
        await job.until(lambda: all(r.ready or r.gone for r in survivors), job.options.ready_seconds)
        if self._replace_late(recovery, [rank for rank in survivors if not rank.ready]):
            return False
        recovery.mark("fence")
        recovery.ends("fence", ok=True, detail=f"{len(waiting)} ranks stay alive")
        return True

    async def wait_for_joined(self, recovery: RecoveryRecord) -> bool:
        """Wait until all ranks have called ``init``, before the first generation is formed.

        A script may take as long as it likes until then; from then on it hears of a fence at once, or hangs.
        """
        job = self._job

        def waiting() -> bool:
            return all(rank.waits_for(job.state.generation) for rank in job.members.present)

        def late() -> list[RankMember]:
            return [r for r in job.members.present if r.joined and not r.waits_for(job.state.generation) and not r.gone]

        while not waiting():
            await job.until(lambda: waiting() or bool(late()), None)
            await job.until(lambda: not late(), job.options.ready_seconds)
            if self._replace_late(recovery, late()):
                return False
        return True

    def _replace_late(self, recovery: RecoveryRecord, late: list[RankMember]) -> bool:
        """Begin again where ranks have not answered the fence in time; whether any has not."""
        if not late:
            return False
        job = self._job
        numbers, over = {rank.number for rank in late}, {rank.number for rank in late if rank.gone}
        stayed = f"ranks {sorted(numbers)} stayed in their collective for {job.options.ready_seconds:g} s"
        why = f"ranks {sorted(over)} had left the training loop already" if over else stayed
        recovery.ends("fence", ok=False, detail=why)
        job.failed_soon(GenerationFailure(ranks=numbers, reason=why))
        return True

    async def wait_for_all(self, recovery: RecoveryRecord) -> bool:
        """Wait until agents and all ranks have left the old generation."""
        job = self._job
        await job.until(lambda: all(n.fenced >= job.state.generation for n in job.members.alive()), FENCE_SECONDS)
        ready = await job.until(lambda: all(r.ready for r in job.members.ranks), job.options.ready_seconds)
        recovery.mark("fence")
        return ready
