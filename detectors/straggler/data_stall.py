"""A rank that waits for its next batch while its peers have theirs; or a job whose ranks all wait, where storage drags.

The job reports its wait for data, so it needs no model: the wait beyond the peers' and beyond the rank's own calm
history is set against a typical step. A long one counts at once, a middling one when it comes again: loaders refill
now and then, each at another step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import ArrayDetector, Bools, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind, Series
from mainstay.detectors.series import draw_series
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.detectors.straggler.normalize import PeerTable
from mainstay.probes.core_types import StepPhase

_KIND = FindingKind.DATA_STALL
_LATE = 3
"""Steps within which a stall is named, so that it is never its own history."""


class DataStallDetector(ArrayDetector):
    """Says ``data_stall`` of a rank, or of the job. Entities are ranks."""

    name = "data_stall"
    kinds = frozenset({_KIND})
    signals = ("data_wait_seconds", "step_time_seconds", "step_phase")
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        long: float = 1.0
        """A wait of a whole step beyond what is usual is one at once: no refill costs that twice a day."""
        some: float = 0.1
        """A tenth of a step, twice in three steps: what an operator would act on."""
        times: float = 1.5
        """And so many times the worst calm wait of any rank of late: loaders refill, now this one, now that."""
        long_times: float = 3.0
        """The same for a wait that counts at once."""
        calm: int = 8
        """Steps without, after which it is over."""
        skip_steps: int = 5
        """First steps of a rank: loaders start, caches fill."""
        learn_steps: int = 5
        """Steps after that from which a rank has a history."""
        remembered: int = 32

    config: Config

    def reset(self) -> None:
        self._latch = Hysteresis("stall", HysteresisConfig(needed=2, of_last=3, calm=self.config.calm))
        super().reset()
        self._ticks = 0
        self._steps = np.full(self.config.remembered, np.nan)
        self._typical: list[float] = []
        self._job_yes = self._job_no = 0
        self._job_on: Entity | None = None
        self._peers: PeerTable | None = None

    def _rows(self) -> EntityState:
        rows = EntityState().field("seen", 0, np.int64)
        lead = (self.config.remembered,)
        for name in ("wait", "usual", "calm"):
            rows.field(name, np.nan, np.float64, lead)
        return self._latch.declare(rows)

    def _held(self, row: int) -> list[FindingKind]:
        return [_KIND] if self._latch.on(self.rows)[row] else []

    def _judging(self) -> DetectorStatus:
        if not self.rows["seen"].any():
            return DetectorStatus(state=DetectorState.ABSTAINING, reason="No rank reports how long it waits for data.")
        if not self._ready().any():
            return DetectorStatus(state=DetectorState.LEARNING, reason="Still learning how long ranks wait for data.")
        return DetectorStatus(state=DetectorState.ACTIVE, numbers={"typical_step_seconds": self._typical_step()})

    def _follow(self, samples: Samples) -> list[Finding]:
        found = super()._follow(samples)
        if not samples.entities and self._job_on is not None:
            found.append(self._ended(_KIND, self._job_on, float(samples.t[0]), "The job has no ranks any more."))
            self._job_on = None
        return found

    def _ready(self) -> Bools:
        return self.rows["seen"] >= self.config.skip_steps + self.config.learn_steps

    def _typical_step(self) -> float:
        return float(median(np.array(self._typical)))

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        rows, config, time = self.rows, self.config, float(samples.t[k])
        wait, step, phase = (samples.signal(k, name) for name in self.signals)
        wait[(np.isfinite(phase) & (phase != StepPhase.TRAIN)) | ~(wait >= 0.0)] = np.nan
        known = np.isfinite(wait)
        rows["seen"] = rows["seen"] + known
        wait[rows["seen"] <= config.skip_steps] = np.nan
        length = float(median(step[step > 0.0]))
        at = self._ticks % config.remembered
        self._ticks += 1
        if np.isfinite(length):
            # A stalled rank makes the step long for all: what it waited is no part of a typical step.
            self._typical = [*self._typical, max(length - float(np.nanmax(wait, initial=0.0)), 1e-9)][
                -config.remembered :
            ]
        ready = self._ready() & np.isfinite(wait)
        history = self._worst_calm()
        rows["wait"][at], rows["usual"][at], rows["calm"][at] = wait, np.nan, np.nan
        self._steps[at] = samples.steps[k]
        if not (self._typical and rows.entities):
            return []
        found = self._job(wait, history, ready, time)
        return found + self._ranks(wait, history, ready, at, time)

    def _others(self, wait: Floats) -> Floats:
        size = len(wait)
        if self._peers is None or self._peers.size != size:
            self._peers = PeerTable([np.arange(size)], size)
        return self._peers.median_of_others(wait)[0]

    def _ranks(self, wait: Floats, history: float, ready: Bools, at: int, time: float) -> list[Finding]:
        rows, config, typical = self.rows, self.config, self._typical_step()
        others = self._others(wait)
        usual = np.maximum(np.nan_to_num(others), history)
        excess = np.where(np.isfinite(others) & ready, wait - usual, np.nan)  # alone, rank and storage look alike
        yes = (excess >= config.some * typical) & (wait > config.times * usual)
        long = (excess >= config.long * typical) & (wait > config.long_times * usual)
        no = np.isfinite(excess) & ~yes
        rows["stall.seen"][long] |= np.uint32(1)  # as if seen before: one is enough
        changed = self._latch.step(rows, yes, no)
        on = self._latch.on(rows)
        rows["calm"][at], rows["usual"][at] = wait if self._job_on is None else np.nan, usual
        rows["calm"][:, on] = np.nan  # what led to it was no calm wait either
        order = sorted((int(row) for row in changed), key=lambda row: rows.entities[row].rank or 0)
        return [self._say(row, float(wait[row]), float(usual[row]), time) for row in order]

    def _say(self, row: int, wait: float, usual: float, time: float) -> Finding:
        entity = self.rows.entities[row]
        if not self._latch.on(self.rows)[row]:
            return self._ended(_KIND, entity, time, f"Rank {entity.rank} gets its batches in time again.")
        typical = self._typical_step()
        evidence = Evidence(
            summary=f"Rank {entity.rank} waited {wait:.3g} s for its batch where {usual:.3g} s are usual: "
            f"{(wait - usual) / typical:.0%} of a step.",
            numbers={"wait_seconds": wait, "usual_seconds": usual, "share": (wait - usual) / typical},
            series=self._series(row),
        )
        return self._finding(_KIND, entity, time, evidence, confidence=0.9, cause=Cause.STORAGE)

    def _series(self, row: int) -> tuple[Series, ...]:
        known = min(self._ticks, self.config.remembered)
        order = [(self._ticks - known + i) % self.config.remembered for i in range(known)]
        wait, usual = self.rows["wait"][order, row], np.nan_to_num(self.rows["usual"][order, row])
        return draw_series("data_wait_seconds", "s", self._steps[order], wait, x_is="step", peers=usual)

    def _worst_calm(self) -> float:
        """The longest calm wait of any rank of late, the last few steps left out: they may be a stall's first."""
        calm = np.delete(self.rows["calm"], self._recent(), axis=0)
        known = calm[np.isfinite(calm)]
        return float(known.max(initial=0.0))

    def _recent(self) -> list[int]:
        """Places of the last few steps."""
        return [(self._ticks - 1 - i) % self.config.remembered for i in range(_LATE)]

    def _job(self, wait: Floats, history: float, ready: Bools, time: float) -> list[Finding]:
        """All ranks wait longer than each ever did of late: what they share drags. Three steps, then eight to end."""
        config, typical = self.config, self._typical_step()
        job = self.rows.entities[0].job if self.rows.entities else None
        if np.count_nonzero(ready) < 2 or job is None:
            return []
        limit = max(history + config.some * typical, config.times * history)
        slow = ready & (wait > limit)
        most = 2 * np.count_nonzero(slow) > np.count_nonzero(ready)
        self._job_yes, self._job_no = (self._job_yes + 1, 0) if most else (0, self._job_no + 1)
        if not self._job_on and self._job_yes >= 3:
            self._job_on = Entity(job=job)
            self.rows["calm"][self._recent()] = np.nan  # what led to it was no calm wait
            middle = float(median(wait[ready]))
            evidence = Evidence(
                summary=f"The job's ranks all wait for data, {middle:.3g} s a step ({middle / typical:.0%} of a step).",
                numbers={"wait_seconds": middle, "share": middle / typical},
            )
            return [self._finding(_KIND, Entity(job=job), time, evidence, confidence=0.9, cause=Cause.STORAGE)]
        if self._job_on and self._job_no >= config.calm:
            self._job_on = None
            return [self._ended(_KIND, Entity(job=job), time, "The job's ranks get their batches in time again.")]
        return []
