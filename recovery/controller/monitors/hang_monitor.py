"""The coordinator's own watch for hangs: the service may be away, and a hang must not wait for it.

Every half second (every second in a large job) all ranks' newest words become a sample. It goes out to the service and
into the same pure detector that the service runs. When that names a hang, the launchers are asked for the stacks of the
suspects and of one healthy rank, which come out as ``stack_dump`` events, and all ranks for their flight recorders.
Unless ``--on-hang report`` is set, the culprits are then fenced, and the job recovers as from any other loss.

It acts only on what is certain: a confidence of 0.9, a culprit, few enough of them that the rest is the majority, no
rank in a phase that may be long and silent or stopped by a debugger, and the finding still holding when the stacks are
there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from mainstay.detectors.base import ArrayDetector, Samples
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.probes.core_types import EventKind, StepPhase
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.flight_recorder import FlightRecorderCollector
from mainstay.recovery.controller.report import FormedRanks, form
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.options import OnHang
from mainstay.recovery.protocol.messages import DEBUGGED, DUMP_SECONDS, DumpStacks, NodeProgress, Stacks
from mainstay.recovery.protocol.wire import WireError
from mainstay.recovery.telemetry.progress import CATALOG, ProgressSample, ProgressTable

HANGS: Final = frozenset({FindingKind.COMM_HANG, FindingKind.NONCOMM_HANG, FindingKind.COLLECTIVE_MISMATCH})
SUSPECTS: Final = 8
"""Most ranks that are asked for stacks, and most that are fenced: a real culprit is a rank or a node's worth."""
CONFIDENCE: Final = 0.9
"""Below this a person decides: to fence the wrong rank costs a recovery and leaves the hang."""
STACK_SECONDS: Final = DUMP_SECONDS + 1.0
"""How long an action waits for stacks: what is fenced can no longer be looked at."""
CONFIRM_SECONDS: Final = 2.0
"""How long a finding must have held before it is acted on: what comes late may clear one rank and blame another, and
the service, which is a second behind, must have seen the hang before it is gone."""
_MASKED: Final = (StepPhase.COMPILE, StepPhase.EVALUATE, StepPhase.CHECKPOINT)
_SIGNALS: Final = (*CATALOG.narrow, *CATALOG.wide)


class HangMonitor:
    """One a job; ``run`` is its loop. Its input comes from the coordinator's event loop, as everything there."""

    def __init__(self, job: Job, detector: ArrayDetector | None, recorder: FlightRecorderCollector) -> None:
        self._job = job
        self._recorder = recorder
        self.detector = detector
        """None: progress is only passed on."""
        self._board = ProgressTable(job.options.world_size)
        self._sample: ProgressSample | None = None
        self._formed: FormedRanks | None = None
        self._present: list[int] = []
        """Ranks that take part: an absent one holds no rank up."""
        self._held: dict[str, Finding] = {}
        """Findings that hold, by key."""
        self._requests = itertools.count(1)
        self._asked: dict[int, tuple[str, set[int], set[int]]] = {}
        """Request -> why it was made, ranks that are suspect, ranks that have not answered."""
        self._debugged: set[int] = set()
        """Ranks that a debugger had stopped when they were asked for stacks."""

    # What is heard

    def progress(self, message: NodeProgress) -> None:
        """A launcher's ranks say what they are doing.

        Raises:
            WireError: these are no rows.
        """
        job = self._job
        if not job.members.ranks:
            return
        try:
            self._board.ingest(
                message.rows,
                job.state.generation,
                lambda rank, pid: job.members.held_by(rank, pid) is not None,
                forming=job.state.phase is not JobPhase.RUNNING,
            )
        except ValueError as error:
            raise WireError(f"progress that cannot be read: {error}") from error

    def ended(self, rank: int) -> None:
        """A rank's process is gone."""
        self._board.forget(rank)

    def stacks(self, node: NodeMember, message: Stacks) -> None:
        """An answer to what was asked."""
        why, suspects, missing = self._asked.get(message.request, ("", set(), set()))
        if message.rank not in missing or message.rank >= len(self._job.members.ranks):
            return
        if self._job.members.ranks[message.rank].node != node.name:
            return
        missing.discard(message.rank)
        if message.state == DEBUGGED:
            self._debugged.add(message.rank)
        data = {
            "reason": why,
            "suspect": message.rank in suspects,
            "tool": message.tool,
            "stacks": [{"thread": s.thread, "frames": list(s.frames)} for s in message.stacks],
            "process": message.state,
            "pid": message.pid,
        }
        if message.problem:
            data["problem"] = message.problem
        self._job.event(EventKind.STACK_DUMP, data, node=node.name, rank=message.rank)

    # The loop

    async def run(self) -> None:
        """Take samples and judge them, until the job is over."""
        while not self._job.state.over:
            seconds = self._board.seconds
            # Just behind the grid's next point, so that the sample of a point holds what was heard up to it.
            await asyncio.sleep(seconds - time.time() % seconds + 0.01)
            sample = self._board.sample()
            if sample is not None:
                self._sample = sample
                self._job.reporter.progress(sample)
                await self._judge(sample)

    async def _judge(self, sample: ProgressSample) -> None:
        formed = self._form()
        if self.detector is None or formed is None:
            return
        generation, mesh, entities, groups = formed
        samples = Samples(
            entities=entities,
            groups=groups,
            signals=_SIGNALS,
            t=np.array([sample.time]),
            x=sample.values()[None][:, :, self._present],
            mesh=mesh,
        )
        # A thread of its own: naming culprits among 16,384 ranks may take a second, and heartbeats continue meanwhile.
        findings = await asyncio.to_thread(self.detector.update, samples)
        if generation == self._job.state.generation:
            self._take(findings)

    def _form(self) -> FormedRanks | None:
        """Who the ranks are, while there is something to watch; what it learned of the job outlives a generation."""
        job = self._job
        ranks = job.members.ranks
        if job.state.phase is not JobPhase.RUNNING or job.members.shape is None or any(rank.gone for rank in ranks):
            self._held.clear()
            return None
        if self._formed is None or self._formed[0] != job.state.generation:
            self._formed = form(job, job.members.present)
            self._present = self._formed[1].ranks.tolist()
            self._held.clear()
        return self._formed

    # What is found

    def _take(self, findings: Sequence[Finding]) -> None:
        begun = []
        for finding in findings:
            if finding.kind not in HANGS:
                continue
            if finding.active:
                self._held[finding.key] = finding
                begun.append(finding)
            elif self._held.pop(finding.key, None) is not None:
                log.warning("the hang is over: %s", finding.evidence.summary)
        if begun:
            for finding in begun:
                log.warning("HANG %s: %s", finding.kind.value, finding.evidence.summary)
            self._job.spawn(self._examine(begun))

    async def _examine(self, findings: list[Finding]) -> None:
        """Have the stacks taken; then act, if that was asked for."""
        request, begun = next(self._requests), time.monotonic()
        generation = self._job.state.generation
        suspects = self._suspects(findings)
        asked = set(suspects) | set(self._healthy(suspects)[: 1 if suspects else 2])
        why = findings[0].evidence.summary
        self._asked[request] = (why, set(suspects), set(asked))
        self._debugged -= asked
        self._job.ask_ranks(asked, lambda ranks: DumpStacks(request=request, ranks=ranks))
        self._job.spawn(self._recorder.diagnose(why, suspects))
        if not await self._job.until(lambda: not self._asked[request][2], STACK_SECONDS):
            log.warning("no stacks came from ranks %s", sorted(self._asked[request][2]))
        del self._asked[request]
        if self._job.options.on_hang is OnHang.RECOVER:
            await asyncio.sleep(begun + CONFIRM_SECONDS - time.monotonic())
            if generation == self._job.state.generation:
                self._act(findings)

    def _suspects(self, findings: Sequence[Finding]) -> list[int]:
        """Ranks that are named, the surest first, each once."""
        size = len(self._job.members.ranks)
        ordered = sorted(findings, key=lambda finding: -finding.confidence)
        named = [rank for f in ordered for rank in (f.entity.rank, f.entity.peer) if rank is not None and rank < size]
        return list(dict.fromkeys(named))[:SUSPECTS]

    def _healthy(self, suspects: Sequence[int]) -> list[int]:
        """The other ranks, those first that say what they do."""
        heard = self._sample.has_reported if self._sample is not None else np.zeros(len(self._job.members.ranks), bool)
        others = [rank.number for rank in self._job.members.ranks if rank.pid and rank.number not in suspects]
        return sorted(others, key=lambda rank: not heard[rank])

    def _act(self, findings: Sequence[Finding]) -> None:
        """Fence the culprits, if all that is asked for holds."""
        sure = [f for f in findings if f.key in self._held and f.confidence >= CONFIDENCE and f.entity.peer is None]
        size = len(self._job.members.ranks)
        culprits = {f.entity.rank for f in sure if f.entity.rank is not None and f.entity.rank < size}
        if not culprits:
            log.warning("the hang is only reported: it names no rank with a confidence of %g", CONFIDENCE)
        elif len(culprits) > SUSPECTS or 2 * len(culprits) > size:
            log.warning("the hang is only reported: %d of %d ranks are no culprits", len(culprits), size)
        elif self._debugged & culprits:
            log.warning("the hang is only reported: a debugger has stopped ranks %s", sorted(self._debugged & culprits))
        elif self._masked():
            log.warning("the hang is only reported: a rank is in a phase that may be long")
        elif self._job.state.phase is JobPhase.RUNNING:
            reason = f"ranks {sorted(culprits)} hang: {sure[0].evidence.summary}"
            for node in {self._job.members.ranks[rank].node for rank in culprits}:
                self._job.warn(self._job.members.warnings.suspect(node, reason))
            self._job.control.failed(GenerationFailure(ranks=culprits, time=min(f.time for f in sure), reason=reason))

    def _masked(self) -> bool:
        phases = self._sample.narrow[0] if self._sample is not None else np.empty(0)
        return bool(np.isin(phases, [int(phase) for phase in _MASKED]).any())
