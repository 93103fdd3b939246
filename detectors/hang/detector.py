"""A job that stands still, and who holds it up: from what every rank's progress thread tells once a second.

The clock is job-wide: seconds since any rank completed a collective or a step. Its limit is learned by phase
(``mainstay.detectors.hang.timeout``); who is to blame follows from the counters at the standstill
(``mainstay.detectors.hang.wait_graph``). A rank of which nothing is heard while others speak holds the job up; a job of
which nothing at all is heard is unknown, not hung: the heartbeat speaks of that. Counters cannot prove a mismatched
collective; the flight recorder can (``mainstay analyze-hang``).

Reference: C4 (comm and non-comm hang), Unicron (three iterations), Mycroft (trigger and blame), NVRx.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, DetectorState, DetectorStatus, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.hang.groups import GroupLabels
from mainstay.detectors.hang.messages import HangVerdict, verdict
from mainstay.detectors.hang.timeout import HangTimeoutConfig, HangTimeoutModel
from mainstay.detectors.hang.wait_graph import StallKind, localize_hang, still_in_phase
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import GROUP_KINDS, RecommendedAction, Severity, StepPhase

_COMPLETED = tuple(f"{kind}_completed" for kind in GROUP_KINDS)
_ENQUEUED = tuple(f"{kind}_enqueued" for kind in GROUP_KINDS)


class JobActivity(StrEnum):
    """How a job stands, for whoever shows it."""

    UNKNOWN = "unknown"  # no rank reports
    MOVING = "moving"
    WAITING = "waiting"  # quiet, but within the limit
    MASKED = "masked"  # quiet in a phase that may be
    HUNG = "hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class HangStatus:
    activity: JobActivity = JobActivity.UNKNOWN
    quiet_seconds: float = 0.0
    limit_seconds: float = 0.0
    phase: StepPhase = StepPhase.TRAIN


class HangDetector(ArrayDetector):
    """Says ``noncomm_hang`` of the ranks that hold up a job, else ``comm_hang`` of the job. Entities are ranks."""

    name = "hang"
    kinds = frozenset({FindingKind.NONCOMM_HANG, FindingKind.COMM_HANG})
    feed: ClassVar = ArrayDetector.feed.PROGRESS
    signals = ("progress_phase", "in_collective_seconds", "progress_step", *_ENQUEUED, *_COMPLETED)
    settling_seconds = 20.0
    usual_severity = Severity.CRITICAL
    usual_action = RecommendedAction.RESTART_JOB

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        limits: HangTimeoutConfig = field(default_factory=HangTimeoutConfig)
        silent_seconds: float = 3.0
        """A rank not heard for so long while others are: three lost samples in a row are 1 in 8,000 at 5 % loss."""
        frozen_seconds: float = 8.0
        """A rank heard within the standstill and not for so long since is frozen, where no counter shows another
        culprit: seven lost samples in a row are 1 in 10^9 at 5 % loss, of 16,384 ranks and ten samples 1 in 8,000."""
        lost_before: float = 5.0
        """Seconds, and at least two steps: a rank that stopped reporting so long before the standstill has a telemetry
        fault, no hang, since the others would have waited for it."""
        frozen_moves: int = 20
        """Samples in which the job moved, a rank's counters did not, and its group passed them: a stuck sensor."""
        settle: int = 10
        """Samples after the alarm in which blame may still be corrected by what comes late."""
        blamed: int = 256
        """Most ranks blamed one by one (thirty-two nodes of eight); beyond, the finding is the job's."""
        drawn: int = 120
        """Samples of quiet time kept to draw."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._quiet = HangTimeoutModel(self.config.limits)
        self._groups_of = GroupLabels()
        self._job: Entity | None = None
        self._job_held: FindingKind | None = None
        self._t: float | None = None
        self._interval = 1.0
        self._moved: float | None = None
        self._moves = 0
        self._counted = False
        self._phase = StepPhase.TRAIN
        self._gap_phase = StepPhase.TRAIN
        self._masked_phase = 0.0
        self._step: tuple[float, float] | None = None
        self._hung_for = 0
        self._drawn = np.full((self.config.drawn, 2), np.nan)
        self.hang_status = HangStatus()

    def _rows(self) -> EntityState:
        lead = (len(GROUP_KINDS),)
        rows = EntityState().field("heard", -np.inf)
        for name in ("phase", "step", "inside", "inside_at"):
            rows.field(name, np.nan)
        rows.field("enqueued", np.nan, np.float64, lead).field("completed", np.nan, np.float64, lead)
        rows.field("changed", 0, np.int64).field("phase_changed", 0, np.int64)
        return rows.field("state", fill=False, dtype=np.bool_)

    def _held(self, row: int) -> list[FindingKind]:
        return [FindingKind.NONCOMM_HANG] if self.rows["state"][row] else []

    def status(self) -> DetectorStatus:
        """Learning until the job's own gaps are known; then judging. The numbers are those of the progress view."""
        now = self.hang_status
        numbers = {"quiet_seconds": now.quiet_seconds, "limit_seconds": now.limit_seconds, "phase": float(now.phase)}
        if now.activity is JobActivity.UNKNOWN:
            return DetectorStatus(state=DetectorState.IDLE, reason="No rank reports progress.", numbers=numbers)
        if self._counted and not self._quiet.learned:
            why = f"Still learning how long this job is quiet; until then {now.limit_seconds:.0f} s."
            return DetectorStatus(state=DetectorState.LEARNING, reason=why, numbers=numbers)
        if now.phase is not StepPhase.TRAIN:
            why = f"In phase {now.phase.name.lower()} a job may be quiet for {now.limit_seconds:.0f} s."
            return DetectorStatus(state=DetectorState.ACTIVE, reason=why, numbers=numbers)
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    def _follow(self, samples: Samples) -> list[Finding]:
        """In addition to what every detector does: the job's own finding goes with the job."""
        jobs = {entity.job for entity in samples.entities}
        found = super()._follow(samples)
        mine = None if self._job is None else self._job.job
        if self._job is not None and self._job_held is not None and mine not in jobs:
            found.append(
                self._ended(self._job_held, self._job, float(samples.t[0]), "The job ended and is no longer watched.")
            )
            self._job_held = None
        job = next((job for job in sorted(j for j in jobs if j is not None)), None)
        if job != mine:
            self._restart()
        self._job = None if job is None else Entity(job=job)
        return found

    def _restart(self) -> None:
        self._moved, self._hung_for, self._step = None, 0, None

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        t = float(samples.t[k])
        if self._t is not None and t > self._t:
            self._interval = min(t - self._t, 5.0) if self._moves else 1.0
        moved, heard = self._take(samples, k, t)
        if not heard:  # unknown is not a hang: the clock stands still
            if self._moved is not None and self._t is not None:
                self._moved += max(0.0, t - self._t)
            self._t = t
            self.hang_status = HangStatus(phase=self._phase)
            return []
        before, self._t = self._t, t
        found: list[Finding] = []
        if moved or self._moved is None:
            found = self._move(t, before)
        quiet = self._quiet_seconds(t)
        limit = self._quiet.limit(self._phase, self._interval, counted=self._counted, waiting=self._somebody_waits())
        self._drawn = np.concatenate([self._drawn[1:], [(t, quiet)]])
        if self._hung_for or quiet >= limit:
            found += self._judge(samples, t, quiet, limit)
        self.hang_status = HangStatus(
            activity=self._activity(quiet), quiet_seconds=quiet, limit_seconds=limit, phase=self._phase
        )
        return found

    def _quiet_seconds(self, t: float) -> float:
        """Seconds since the last completion: seen up to one interval late, unless ranks tell since when they wait."""
        assert self._moved is not None
        seen = t - self._moved
        inside, at = self.rows["inside"], self.rows["inside_at"]
        waiting = inside > 0.0
        if not waiting.any():
            return seen
        told = float(np.median(inside[waiting] + (t - at[waiting])))
        return float(np.clip(told, seen, seen + self._interval))

    def _activity(self, quiet: float) -> JobActivity:
        if self._hung_for:
            return JobActivity.HUNG
        if quiet <= self._interval:
            return JobActivity.MOVING
        return JobActivity.WAITING if self._phase is StepPhase.TRAIN else JobActivity.MASKED

    def _take(self, samples: Samples, k: int, t: float) -> tuple[bool, bool]:
        """Take a sample in: whether the job moved, and whether any rank reported."""
        rows = self.rows
        phase, inside, step = (samples.signal(k, name) for name in self.signals[:3])
        enqueued = np.stack([samples.signal(k, name) for name in _ENQUEUED])
        completed = np.stack([samples.signal(k, name) for name in _COMPLETED])
        heard = np.isfinite(step) | np.isfinite(phase) | np.isfinite(inside) | np.isfinite(completed).any(axis=0)
        self._counted |= bool(np.isfinite(completed).any())
        with np.errstate(invalid="ignore"):
            known = np.isfinite(completed) & np.isfinite(rows["completed"])
            counted = (known & (completed != rows["completed"])).any(axis=0)
            stepped = np.isfinite(step) & np.isfinite(rows["step"]) & (step != rows["step"])
            turned = np.isfinite(phase) & (phase != rows["phase"])
        first = not (rows["heard"] > -np.inf).any()
        self._note_steps(step, t)
        for name, now in (("phase", phase), ("step", step), ("inside", inside)):
            rows[name] = np.where(np.isfinite(now), now, rows[name])
        rows["inside_at"] = np.where(np.isfinite(inside), t, rows["inside_at"])
        rows["enqueued"] = np.where(np.isfinite(enqueued), enqueued, rows["enqueued"])
        rows["completed"] = np.where(np.isfinite(completed), completed, rows["completed"])
        rows["heard"] = np.where(heard, t, rows["heard"])
        moved = bool((counted | stepped).any())
        self._moves += moved
        rows["changed"] = np.where(counted | stepped | ~np.isfinite(rows["step"]), self._moves, rows["changed"])
        rows["phase_changed"] = np.where(turned, self._moves, rows["phase_changed"])
        changed = self._settle_phase()
        return moved or changed or (first and bool(heard.any())), bool(heard.any())

    def _note_steps(self, step: Floats, t: float) -> None:
        """Seconds a step, from the furthest rank."""
        if not np.isfinite(step).any():
            return
        furthest = float(np.nanmax(step))
        if self._step is None or furthest < self._step[1]:
            self._step = (t, furthest)
        elif furthest > self._step[1]:
            if self._phase is StepPhase.TRAIN and not self._hung_for:
                self._quiet.learn_steps((t - self._step[0]) / (furthest - self._step[1]))
            self._step = (t, furthest)

    def _settle_phase(self) -> bool:
        """What the job does: the phase with the longest patience that any rank claims; whether that is new.

        A claim that outlived much training of the others is a stuck sensor's.
        """
        rows = self.rows
        claims = rows["phase"]
        known = np.isfinite(claims) & (rows["heard"] > -np.inf)
        if not known.any():
            return False
        training = np.count_nonzero(claims[known] == StepPhase.TRAIN) * 2 > np.count_nonzero(known)
        stale = (self._moves - rows["phase_changed"] >= self.config.frozen_moves) & training
        masked = known & (claims != StepPhase.TRAIN) & ~stale
        values = {int(value) for value in np.unique(claims[masked])}
        phases = sorted(StepPhase(value) for value in values if value in StepPhase._value2member_map_)
        limits = {p: self._quiet.limit(p, self._interval, counted=self._counted, waiting=True) for p in phases}
        phase = max(phases, key=lambda p: (limits[p], -p)) if phases else StepPhase.TRAIN
        if phase is self._phase:
            return False
        if self._phase is not StepPhase.TRAIN:
            self._quiet.learn_masked_phase(self._phase, self._masked_phase)
        self._phase, self._masked_phase = phase, 0.0
        return True

    def _move(self, t: float, before: float | None) -> list[Finding]:
        """Something was completed: learn the gap before it, and say that a hang is over."""
        alarmed = self._hung_for > 0
        if self._moved is not None and before is not None:
            gap = max(0.0, before - self._moved)  # the last sample at which it was still quiet
            self._masked_phase = max(self._masked_phase, gap)
            if self._gap_phase is self._phase is StepPhase.TRAIN and self._counted and self._quiet.step_seconds:
                self._quiet.learn_gap(gap, alarmed=alarmed)  # not of the first step, which compiles and allocates
        self._moved, self._gap_phase, self._hung_for = t, self._phase, 0
        return self._over(t) if alarmed else []

    def _over(self, t: float) -> list[Finding]:
        rows = self.rows
        summary = "The job moves again."
        blamed = self._by_rank(rows["state"])
        found = [self._ended(FindingKind.NONCOMM_HANG, rows.entities[row], t, summary) for row in blamed]
        rows["state"][:] = False
        if self._job is not None and self._job_held is not None:
            found.append(self._ended(self._job_held, self._job, t, summary))
        self._job_held = None
        return found

    def _by_rank(self, mask: Bools) -> list[int]:
        entities = self.rows.entities
        return sorted(np.flatnonzero(mask).tolist(), key=lambda row: (entities[row].rank or 0, entities[row].key))

    def _open(self) -> Bools:
        """[E] inside a call, by counters or by the call's own clock."""
        rows = self.rows
        with np.errstate(invalid="ignore"):
            counted: Bools = (rows["enqueued"] > rows["completed"]).any(axis=0) | (rows["inside"] > 0.0)
        return counted

    def _somebody_waits(self) -> bool:
        """Whether any rank is inside a call, or no rank reports it (then only the clock is left)."""
        rows = self.rows
        told = np.isfinite(rows["inside"]) | np.isfinite(rows["completed"]).any(axis=0)
        return bool(self._open().any()) or not bool(told.any())

    def _judge(self, samples: Samples, t: float, quiet: float, limit: float) -> list[Finding]:
        """Hung: find out who holds it up, and correct that while late reports come in."""
        self._hung_for += 1
        if self._hung_for > self.config.settle and (self._job_held is not None or self.rows["state"].any()):
            return []
        silent = self._silent(t)
        progress = self._groups_of.progress(samples, self.rows, self._moves - self.config.frozen_moves)
        inside = self._inside(samples, t, quiet)
        place = localize_hang(progress, self._ranks(samples, silent), inside)
        frozen = silent | self._frozen(t)
        if not place.culprits and frozen.any():
            place = localize_hang(progress, self._ranks(samples, frozen), inside)
        kept = self._kept_in_phase()
        if place.stall is StallKind.UNCLEAR and kept.any():
            place = still_in_phase(self._ranks(samples, kept))
        said = verdict(
            place, progress, samples, quiet=quiet, limit=limit, phase=self._phase, kept=kept, most=self.config.blamed
        )
        return self._say(said, t, limit)

    def _kept_in_phase(self) -> Bools:
        """Ranks still in the phase, such as a checkpoint, from which others have returned; none while all are in it."""
        kept: Bools = self.rows["phase"] == self._phase
        returned = self.rows["phase"] == StepPhase.TRAIN
        return kept if self._phase is not StepPhase.TRAIN and returned.any() else np.zeros_like(kept)

    def _silent(self, t: float) -> Bools:
        """Ranks that stopped reporting with the standstill, while others report.

        One that was heard within the standstill only lost some samples: its counters stand. One that stopped more
        than a step before has lost its reporter, since its peers continued.
        """
        assert self._moved is not None
        heard = self.rows["heard"]
        before = max(self.config.lost_before, 2.0 * self._quiet.step_seconds)
        silent: Bools = (t - heard >= self.config.silent_seconds) & (heard <= self._moved)
        return silent & (self._moved - heard <= before)

    def _frozen(self, t: float) -> Bools:
        """Ranks that reported once more during the standstill: frozen inside the call in which all others wait.

        What they said then looks like everybody's (in a job of long calls or on a busy machine), and stays so.
        """
        heard = self.rows["heard"]
        return (t - heard >= self.config.frozen_seconds) & (heard > self._moved)

    def _ranks(self, samples: Samples, mask: Bools) -> npt.NDArray[np.int64]:
        return np.array([samples.entities[row].rank for row in np.flatnonzero(mask)], np.int64)

    def _inside(self, samples: Samples, t: float, quiet: float) -> npt.NDArray[np.int64] | None:
        """Ranks inside a call by the call's own clock; None where no rank keeps one."""
        inside, at = self.rows["inside"], self.rows["inside_at"]
        if not np.isfinite(inside).any():
            return None
        with np.errstate(invalid="ignore"):  # one that shows less than half the standstill is stuck or is in other code
            return self._ranks(samples, (inside > 0.0) & (inside + (t - at) >= 0.5 * quiet))

    def _say(self, said: HangVerdict, t: float, limit: float) -> list[Finding]:
        rows, series = self.rows, draw_series("quiet_seconds", "s", *self._drawn.T, threshold=limit)
        blamed = np.zeros(len(rows.entities), np.bool_)
        blamed[list(said.rows)] = True
        cleared, summary = self._by_rank(rows["state"] & ~blamed), "Later reports clear it: others hold up the job."
        found = [self._ended(FindingKind.NONCOMM_HANG, rows.entities[row], t, summary) for row in cleared]
        if self._job is not None and said.kind is not self._job_held:
            if self._job_held is not None:
                found.append(self._ended(self._job_held, self._job, t, "Later reports say otherwise."))
            if said.kind is not None:
                evidence = Evidence(summary=said.summary, numbers=said.numbers, series=series)
                sure = said.confidence
                found.append(self._finding(said.kind, self._job, t, evidence, confidence=sure, cause=said.cause))
        self._job_held = said.kind
        for row in self._by_rank(blamed & ~rows["state"]):
            summary, numbers = said.rows[row]
            evidence = Evidence(summary=summary, numbers=numbers, series=series)
            about = FindingKind.NONCOMM_HANG, rows.entities[row]
            found.append(self._finding(*about, t, evidence, confidence=said.confidence, cause=said.cause))
        rows["state"][:] = blamed
        return found
