"""The coordinator's own watch for numeric anomalies, with ``--on-numeric-anomaly replay``: it asks for replays.

Records of a step become a sample when all ranks have told theirs. It goes into the same pure detector that the service
runs. Digests of replicas that agree make an epoch *agreed*: no rank had departed from its replicas by then, and the job
can go back to it. That does not rule out a wrong gradient that all replicas averaged; only a replay without a culprit
speaks against a faulty device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from mainstay.detectors.base import ArrayDetector, Samples
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.job.mesh import JobMesh
from mainstay.probes.core_types import Severity
from mainstay.recovery.controller.failure import ReplayTrigger
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.report import FormedRanks, form
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.options import NumericAnomalyPolicy
from mainstay.recovery.protocol.worker_messages import StepRecord

_OPEN: Final = 8
"""Steps that wait for the records of slow ranks; an older one is judged without them."""
_KINDS: Final = frozenset({FindingKind.SDC_SUSPECT, FindingKind.NAN, FindingKind.LOSS_SPIKE})


class NumericMonitor:
    """One a job. Its input comes from the coordinator's event loop, as everything there."""

    def __init__(
        self, job: Job, detector: ArrayDetector | None, request_replay: Callable[[ReplayTrigger], object]
    ) -> None:
        self._job = job
        self._request_replay = request_replay
        self.detector = detector
        """None: records are only passed on."""
        self.agreed: int | None = None
        """The newest epoch at which the parameters of all replicas agreed."""
        self._open: dict[int, dict[int, StepRecord]] = {}
        self._formed: FormedRanks | None = None

    def step(self, rank: int, record: StepRecord) -> None:
        """A rank's record of the present generation."""
        job = self._job
        replays = job.options.on_numeric_anomaly is NumericAnomalyPolicy.REPLAY
        if self.detector is None or not replays or job.state.phase is not JobPhase.RUNNING:
            return
        self._open.setdefault(record.epoch, {})[rank] = record
        if len(self._open[record.epoch]) == len(job.members.present):
            self._judge(record.epoch)
        elif len(self._open) > _OPEN:
            self._judge(min(self._open))

    def _judge(self, epoch: int) -> None:
        assert self.detector is not None
        if self._formed is None or self._formed[0] != self._job.state.generation:
            self._formed = form(self._job, self._job.members.ranks)
        generation, mesh, entities, groups = self._formed
        for old in [e for e in self._open if e < epoch]:
            del self._open[old]
        told = self._open.pop(epoch)
        signals = self.detector.signals
        x = np.full((1, len(signals), len(entities)), np.nan)
        for rank, record in told.items():
            values = record.signals if record.loss is None else {**record.signals, "loss": record.loss}
            x[0, :, rank] = [values.get(name, np.nan) for name in signals]
        samples = Samples(
            entities=entities,
            groups=groups,
            signals=signals,
            t=np.array([max(record.end_ns for record in told.values()) / 1e9]),
            x=x,
            mesh=mesh,
            steps=np.array([epoch], np.int64),
        )
        findings = self.detector.update(samples)
        if generation != self._job.state.generation:
            return
        digests = x[0, signals.index("parameters_digest")] if "parameters_digest" in signals else x[0, 0] * np.nan
        if self._agree(digests, mesh) and epoch > (self.agreed or 0):
            self.agreed = epoch
        self._take(findings, epoch)

    def _agree(self, digests: np.ndarray, mesh: JobMesh) -> bool:
        labels = mesh.labels("dp")
        whole = bool(np.isfinite(digests).all()) and len(digests) == len(labels)
        return whole and all(len(np.unique(digests[labels == label])) == 1 for label in np.unique(labels))

    def _take(self, findings: Sequence[Finding], epoch: int) -> None:
        """Ask for replays where what was found calls for them; what one step shows at several ranks is one matter."""
        sick = [f for f in findings if f.active and f.kind in _KINDS]
        sick = [f for f in sick if f.kind is not FindingKind.NAN or f.severity is Severity.CRITICAL]
        if not sick:
            return
        for finding in sick:
            log.warning("SICK %s: %s", finding.kind.value, finding.evidence.summary)
        worst = max(sick, key=lambda f: (f.kind is FindingKind.SDC_SUSPECT, f.confidence))
        split = (f.entity.rank for f in sick if "digests_differ" in f.evidence.numbers)
        odd = frozenset(rank for rank in split if rank is not None)
        before = self._sound_before(worst, epoch, split=bool(odd))
        self._request_replay(ReplayTrigger(reason=worst.evidence.summary, before=before, odd=odd))

    def _sound_before(self, finding: Finding, epoch: int, *, split: bool) -> int:
        """The newest epoch that is sound as far as the finding, made at ``epoch``, tells."""
        if split:
            return self.agreed or 0
        return max(0, int(finding.evidence.numbers.get("step", epoch)) - 1)

    def went_back(self, epoch: int) -> None:
        """The job begins again at ``epoch``."""
        self._open.clear()
        if self.agreed is not None and self.agreed > epoch:
            self.agreed = None
