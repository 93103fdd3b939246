"""Advice on a job whose ranks are all sound and yet wait for each other: for a person who writes the job's layout.

- **stage_imbalance**: one pipeline stage constantly takes longer than the others in every replica (vocabulary head).
- **sequence_imbalance**: whoever got the longest sequences is slow, another one each step. A slow rank also gives
  equal slowness forward and backward, so what lasts of a rank's deviation is taken off, most ranks must vary, and the
  identity of the worst has to move about as well. Where ranks report their work, it must explain the deviation.
- **gc_jitter**: now this rank, now that one collects garbage while all wait (collect at the same step instead).

Never blame: severity info, entity the job. Source of the three: "Understanding Stragglers in Large Model Training"
(ByteDance), whose M_S says how much sooner a step would end with equal stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median, robust_sigma
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.straggler.compute_time import AssignedWork
from mainstay.probes.core_types import Severity, StepPhase

_SIGNALS = (
    "compute_time_seconds",
    "forward_seconds",
    "backward_seconds",
    "gc_seconds",
    "tokens",
    "sequence_squares",
    "step_phase",
    AssignedWork.signal,
)
_WHOLE, _FORWARD, _BACKWARD, _GC, _TOKENS, _SQUARES = range(6)
_STAGE, _SEQUENCE, _GARBAGE = FindingKind.STAGE_IMBALANCE, FindingKind.SEQUENCE_IMBALANCE, FindingKind.GC_JITTER
_SEVERAL = 3
"""Ranks, or stages with ranks, from which a middle says who stands out."""


class ImbalanceDetector(ArrayDetector):
    """Says ``stage_imbalance``, ``sequence_imbalance``, ``gc_jitter`` of a job. Entities are ranks, groups roles."""

    name = "imbalance"
    kinds = frozenset({_STAGE, _SEQUENCE, _GARBAGE})
    signals = _SIGNALS
    feed = Feed.STEPS
    usual_severity = Severity.INFO
    usual_confidence = 0.8

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 50
        """Steps looked back on: advice may take its time, and garbage is collected seldom."""
        least_steps: int = 20
        every: int = 10
        """Steps between two looks."""
        skip_steps: int = 5
        stage: float = 0.10
        """A stage a tenth above the middle stage: a pipeline then runs a tenth below its best."""
        stage_off: float = 0.05
        constant: float = 0.9
        """Share of steps in which it must be so."""
        spread: float = 0.05
        """Deviation of ranks of a role from which lengths are worth balancing; sound balanced jobs show 0.4-2 %."""
        spread_off: float = 0.03
        correlation: float = 0.9
        """Of forward and backward deviations: work does both longer (0.99 in a real job), hiccups one of them."""
        explained: float = 0.7
        """Correlation of the deviation with that of the reported work: half of the variance."""
        entropy: float = 0.7
        """Of the worst rank's identity, as a share of what chance would give: one slow rank gives near 0."""
        jitter: float = 0.03
        """Beyond the middle of the role, by which the worst rank of a step must be later for garbage to matter."""
        jitter_steps: float = 0.2
        """Share of steps that must be so."""
        jitter_off: float = 0.1

    config: Config

    def reset(self) -> None:
        super().reset()
        self._ticks = 0
        self._assigned = AssignedWork()
        self._on: dict[FindingKind, Entity] = {}
        self._order = np.zeros(0, np.intp)

    def _rows(self) -> EntityState:
        rows = EntityState().field("seen", 0, np.int64)
        return rows.field("seconds", np.nan, np.float64, (6, self.config.remembered))

    def _held(self, _row: int) -> list[FindingKind]:
        return []  # all that it says is about the job

    def _judging(self) -> DetectorStatus:
        if self._known_steps() < self.config.least_steps:
            return DetectorStatus(state=DetectorState.LEARNING, reason="Advice needs more steps.")
        return DetectorStatus(state=DetectorState.ACTIVE, numbers={"advice": float(len(self._on))})

    def _known_steps(self) -> int:
        whole = np.isfinite(self.rows["seconds"][_WHOLE]) | np.isfinite(self.rows["seconds"][_FORWARD])
        return int(np.count_nonzero(whole.any(axis=1)))

    def _follow(self, samples: Samples) -> list[Finding]:
        changed = not self.rows.follows(samples.entities)
        found = super()._follow(samples)
        if changed or len(self._order) != len(samples.entities):
            ranks = [-1 if e.rank is None else e.rank for e in samples.entities]
            self._order = np.argsort(np.array(ranks, np.int64), kind="stable")
        if not samples.entities:
            gone, time = Evidence(summary="The job has no ranks any more."), float(samples.t[0])
            found += [self._finding(kind, job, time, gone, active=False) for kind, job in self._on.items()]
            self._on = {}
        return found

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        values = np.array([samples.signal(k, name) for name in _SIGNALS])
        phase = values[6]
        seconds = values[:6]
        seconds[:3] *= self._assigned.scale(samples, k)
        seconds[:, np.isfinite(phase) & (phase != StepPhase.TRAIN)] = np.nan
        seconds[~(seconds > 0.0) & (np.arange(6) != _GC)[:, None]] = np.nan
        rows = self.rows
        rows["seen"] = rows["seen"] + np.isfinite(seconds[:3]).any(axis=0)
        seconds[:, rows["seen"] <= self.config.skip_steps] = np.nan
        rows["seconds"][:, self._ticks % self.config.remembered] = seconds
        self._ticks += 1
        if self._ticks % self.config.every or self._known_steps() < self.config.least_steps:
            return []
        job = next((e.job for e in rows.entities if e.job is not None), None)
        if job is None:
            return []
        return self._look(_Steps(self, samples), Entity(job=job), float(samples.t[k]))

    def _look(self, steps: _Steps, job: Entity, time: float) -> list[Finding]:
        found: list[Finding] = []
        for kind, judge in ((_STAGE, steps.stage), (_SEQUENCE, steps.sequence), (_GARBAGE, steps.garbage)):
            evidence, holds = judge(kind in self._on)
            if evidence is None or holds == (kind in self._on):
                continue
            if holds:
                self._on[kind] = job
            else:
                del self._on[kind]
            found.append(self._finding(kind, job, time, evidence, active=holds, cause=Cause.WORKLOAD))
        return found


class _Steps:
    """The remembered steps, ranks in order of their numbers so that sums do not depend on the rows' order.

    Each judgment answers (evidence, whether it holds); no evidence where it is unknown.
    """

    def __init__(self, detector: ImbalanceDetector, samples: Samples) -> None:
        self.config = detector.config
        order = detector._order  # noqa: SLF001 - the detector's own other half
        self.ranks = [detector.rows.entities[int(row)].rank for row in order]
        self.seconds = detector.rows["seconds"][:, :, order]
        sections = self.seconds[_FORWARD] + self.seconds[_BACKWARD]
        whole = self.seconds[_WHOLE]
        self.own: Floats = whole if np.isfinite(whole).any() else sections
        labels = np.asarray(samples.groups, dtype=np.str_)[order]
        names, stage = np.unique(labels, return_inverse=True)
        self.names, self.role = [str(name) for name in names], stage.astype(np.intp).reshape(-1)

    def _deviations(self, seconds: Floats) -> Floats:
        """[T, R] log of seconds over the role's middle; NaN in roles of fewer than three."""
        result = np.full(seconds.shape, np.nan)
        for number in range(len(self.names)):
            rows = np.flatnonzero(self.role == number)
            if len(rows) >= _SEVERAL:
                result[:, rows] = np.log(seconds[:, rows] / median(seconds[:, rows])[:, None])
        return result

    def stage_times(self) -> Floats:
        """[T, stage] seconds of the middle rank."""
        return np.stack([median(self.own[:, self.role == number]) for number in range(len(self.names))], axis=1)

    def stage(self, held: bool) -> tuple[Evidence | None, bool]:
        if len(self.names) < 2:
            return None, False
        times = self.stage_times()
        times = times[np.isfinite(times).all(axis=1)]
        if len(times) < self.config.least_steps:
            return None, False
        usual = median(times.T)
        worst = int(np.argmax(usual))
        over = times[:, worst] / median(np.delete(times, worst, axis=1)) - 1.0
        excess = float(median(over))
        if held:
            holds = excess > self.config.stage_off
        else:
            holds = (
                excess >= self.config.stage and float(np.mean(over >= self.config.stage_off)) >= self.config.constant
            )
        if not holds:
            return Evidence(summary="The pipeline's stages take nearly the same time again."), False
        gain = float(usual.max() / usual.mean())
        summary = (
            f"{self.names[worst][:1].upper()}{self.names[worst][1:]} takes {excess:.0%} longer than the middle stage "
            f"in every replica; equal stages would make steps up to {gain:.2f} times as fast. Move layers from it."
        )
        numbers = {"excess": excess, "speedup_at_most": gain} | {
            f"seconds {name}": float(seconds) for name, seconds in zip(self.names, usual, strict=True)
        }
        return Evidence(summary=summary, numbers=numbers), True

    def sequence(self, held: bool) -> tuple[Evidence | None, bool]:
        forward, backward = (self._deviations(self.seconds[part]) for part in (_FORWARD, _BACKWARD))
        own = self._deviations(self.seconds[_FORWARD] + self.seconds[_BACKWARD])
        own -= median(own.T)  # what lasts is a rank's own: its device, its role
        known = np.isfinite(own)
        if np.count_nonzero(known.any(axis=1)) < self.config.least_steps:
            return None, False
        spread = float(median(robust_sigma(own.T)))
        correlation = _correlation(forward[known], backward[known])
        wandering, chance = _entropy(own)
        least = self.config.spread_off if held else self.config.spread
        holds = spread >= least and correlation >= self.config.correlation and wandering >= self.config.entropy * chance
        holds = holds and self._explained(own)
        if not holds:
            return Evidence(summary="Ranks of a role take nearly the same time again, or no longer by turns."), False
        top = np.nanmax(np.where(known, own, -np.inf), axis=1)
        gain = float(np.exp(median(top[np.isfinite(top)])))
        summary = (
            f"Ranks of the same role differ by {spread:.1%} from step to step, forward and backward alike (correlation "
            f"{correlation:.2f}) and by turns: sequence lengths. Balanced batches would make steps up to "
            f"{gain:.2f} times as fast."
        )
        numbers = {"spread": spread, "correlation": correlation, "entropy": wandering / chance, "speedup_at_most": gain}
        return Evidence(summary=summary, numbers=numbers), True

    def _explained(self, own: Floats) -> bool:
        """Whether the work that ranks report varies with their time; also where none is reported."""
        work = [self._deviations(self.seconds[part]) for part in (_TOKENS, _SQUARES)]
        told = [part for part in work if np.isfinite(part).any()]
        return not told or max(_correlation(own, part) for part in told) >= self.config.explained

    def garbage(self, held: bool) -> tuple[Evidence | None, bool]:
        collected = self.seconds[_GC]
        if not np.isfinite(collected).any():
            return None, False
        middle = np.full(self.own.shape, np.nan)
        for number in range(len(self.names)):
            rows = self.role == number
            middle[:, rows] = median(self.own[:, rows])[:, None]
        late = np.where(np.isfinite(self.own - middle), (self.own - middle) / middle, -np.inf)
        worst = late.argmax(axis=1)
        steps = np.arange(len(late))
        most = late[steps, worst]
        known = np.isfinite(most)
        if np.count_nonzero(known) < self.config.least_steps:
            return None, False
        caused = (
            np.nan_to_num(collected[steps, worst] / middle[steps, worst]) >= 0.5 * most
        )  # half of it or more is garbage
        jitter = known & (most >= self.config.jitter) & caused
        share = float(np.count_nonzero(jitter) / np.count_nonzero(known))
        wandering, chance = _entropy_of(worst[jitter], late.shape[1])
        least = self.config.jitter_off if held else self.config.jitter_steps
        holds = share >= least and wandering >= self.config.entropy * chance and late.shape[1] >= _SEVERAL
        if not holds:
            return Evidence(summary="Garbage collection no longer delays steps by turns."), False
        lost = float(median(most[jitter]))
        summary = (
            f"In {share:.0%} of steps all ranks wait {lost:.1%} of a step for one that collects garbage, "
            "each time another. Collect on all ranks at the same step."
        )
        return Evidence(
            summary=summary, numbers={"share": share, "lost": lost, "entropy": wandering / max(chance, 1e-9)}
        ), True


def _correlation(a: Floats, b: Floats) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if np.count_nonzero(both) < _SEVERAL:
        return 0.0
    a, b = a[both] - median(a[both]), b[both] - median(b[both])
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else 0.0


def _entropy(own: Floats) -> tuple[float, float]:
    """Of the worst rank's identity, step by step; and what chance gives."""
    steps = np.isfinite(own).any(axis=1)
    worst = np.where(np.isfinite(own), own, -np.inf)[steps].argmax(axis=1)
    return _entropy_of(worst, int(np.isfinite(own).any(axis=0).sum()))


def _entropy_of(worst: npt.NDArray[np.intp], ranks: int) -> tuple[float, float]:
    """Entropy of the counts in nats; of n draws among R alike about log R - (R - 1) / 2n (Miller), at most log n."""
    n = len(worst)
    if not n or ranks < 2:
        return 0.0, 1.0
    share = np.bincount(worst) / n
    share = share[share > 0]
    entropy = float(-np.sort(share * np.log(share)).sum())
    chance = max(np.log(ranks) - (ranks - 1) / (2 * n), 0.8 * np.log(min(n, ranks)))
    return entropy, float(max(chance, 0.1))
