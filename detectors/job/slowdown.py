"""A job that as a whole became slower, with no rank to blame: a change point in its step times.

The series is the log of the median over ranks of the step time, in training steps only. A one-sided CUSUM finds a
lasting shift, Bayesian change-point detection (``mainstay.detectors.statistics.bocpd``) says when it began and is a
second way to find it; neither speaks before *verification*, as in Greyhound (ATC'25): after dropping outliers (|z| > 3)
the level since the change lies at least 5 % above the level before, five samples or more belong to it, and the last
three are all slow. Real jobs spike singly dozens of times a day and almost never three times in a row; Unicron's rule
(one step above 1.1 times the mean) fires at each.

The level before follows slowly while nothing is suspected, so day and night pass; a level that has lasted for
``accept`` samples is taken as the new normal, and the finding ends saying so.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Samples
from mainstay.detectors.entity_state import NORMAL_MAD, EntityState, median
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind, Series
from mainstay.detectors.statistics.bocpd import Bocpd
from mainstay.probes.core_types import StepPhase


class SlowdownDetector(ArrayDetector):
    """Says ``job_slowdown`` of a job."""

    name = "slowdown"
    kinds = frozenset({FindingKind.JOB_SLOWDOWN})
    signals = ("step_time_seconds", "step_phase")
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        verify: float = 1.05
        """Least slowdown said: Greyhound's 10 % misses what two days of training would notice."""
        h: float = 8.0
        """Score that makes a suspicion: at k = 1 once in exp(2k(h + 1.17k)) / 2k^2 = 4.6e7 independent samples
        (Siegmund), a year of 1 s steps."""
        clip: float = 4.0
        """Most that one sample may say, in noise."""
        k_most: float = 2.0
        """Drift in noise: half of what is verified, between 1 and this, so that a step of a quiet job counts too."""
        outlier: float = 3.0
        """Deviations beyond which a sample of a level is dropped from it."""
        samples: int = 5
        """Of the new level, before the first finding."""
        in_a_row: int = 3
        """And so many of the last, all slower than half of ``verify``."""
        apart: int = 10
        """Least samples between two changes."""
        sure: float = 0.9
        """Probability of a recent change by Bocpd, as in Greyhound."""
        skip: int = 5
        """First samples, after a start or a rollback, that are not looked at."""
        learn: int = 20
        """Samples of the first level: as many as the reference leaves out as warm-up."""
        window: int = 64
        """Samples of the level before."""
        floor: float = 0.004
        """0.4 %, least noise: timers and clock boost alone move a step by this much."""
        limit: float = 0.1
        """Noise above which a tenth is within one deviation: no finding."""
        give_up: int = 50
        """Samples after which an unverified suspicion becomes the level."""
        accept: int = 500
        """Samples after which a slow level is the new normal."""
        drawn: int = 64

    config: Config

    def reset(self) -> None:
        super().reset()
        self._level: list[float] = []
        """Samples of the level before, newest last."""
        self._recent: list[tuple[float, float]] = []
        """Step and sample, to verify and to draw."""
        self._skip = self.config.skip
        self._last = -1
        self._scale = (0.0, 1.0)
        self._clear()
        self._finding_now: Finding | None = None
        self._lasted = 0
        self._since_change = self.config.apart

    def _clear(self) -> None:
        self._score, self._suspected = 0.0, 0
        self._bocpd = Bocpd(longest=2 * self.config.window)

    def _rows(self) -> EntityState:
        return EntityState()

    def _held(self, row: int) -> list[FindingKind]:
        del row
        return []

    @property
    def noise(self) -> float:
        """Spread of the log step time within its level; NaN while learning."""
        if len(self._level) < self.config.learn:
            return float("nan")
        middle = statistics.median(self._level)
        return max(NORMAL_MAD * statistics.median(abs(x - middle) for x in self._level), self.config.floor)

    def status(self) -> DetectorStatus:
        if not self._recent:
            return DetectorStatus(state=DetectorState.IDLE, reason="No step times are reported.")
        if len(self._level) < self.config.learn:
            return DetectorStatus(state=DetectorState.LEARNING, reason="Still learning how long a step takes.")
        numbers = {"usual_seconds": float(np.exp(statistics.median(self._level))), "noise": self.noise}
        if self.noise > self.config.limit:
            why = f"Step times differ by {self.noise:.0%} from step to step."
            return DetectorStatus(state=DetectorState.ABSTAINING, reason=why, numbers=numbers)
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    def _follow(self, samples: Samples) -> list[Finding]:
        found = super()._follow(samples)
        if not samples.entities and self._finding_now is not None:
            found.append(self._end(float(samples.t[0]), "The job left the fleet and is no longer watched."))
        return found

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        step = int(samples.steps[k])
        if step <= self._last:
            self._skip = self.config.skip  # rolled back: the first steps are slow for their own reasons
        self._last = step
        x = self._pace(samples, k)
        if not np.isfinite(x):
            return []
        if self._skip > 0:
            self._skip -= 1
            return []
        self._recent = [*self._recent[1 - self.config.drawn :], (float(step), x)]
        if len(self._level) < self.config.learn:
            self._level.append(x)
            self._scale = (statistics.median(self._level), self.noise)
            return []
        time, job = float(samples.t[k]), samples.entities[0].job
        return self._watch_end(time) if self._finding_now else self._watch_begin(x, time, job)

    def _pace(self, samples: Samples, k: int) -> float:
        """Log of the median step time over the ranks that train; NaN where too few say."""
        seconds, phase = (samples.signal(k, name) for name in self.signals)
        with np.errstate(invalid="ignore"):
            seconds[~(seconds > 0.0) | (np.isfinite(phase) & (phase != StepPhase.TRAIN))] = np.nan
        if np.count_nonzero(np.isfinite(seconds)) * 4 < len(seconds) or not len(seconds):
            return float("nan")  # fewer than a quarter: a part of the job is no judge of the whole
        return float(np.log(median(seconds)))

    def _watch_begin(self, x: float, time: float, job: str | None) -> list[Finding]:
        config = self.config
        middle, noise = statistics.median(self._level), self.noise
        least = float(np.log(config.verify))
        drift = min(max(1.0, least / 2 / noise), config.k_most)
        move = float(np.clip((x - middle) / noise, -config.clip, config.clip)) - drift
        self._score = max(0.0, self._score + move)
        self._suspected = self._suspected + 1 if self._score > 0.0 else 0
        self._since_change += 1
        filtered = statistics.median(value for _, value in self._recent[-3:])  # a single spike never enters
        self._bocpd.update(np.array([(filtered - self._scale[0]) / self._scale[1]]))
        if noise <= config.limit and self._since_change >= config.apart:
            onset = self._onset()
            if onset is not None and self._verified(onset, middle, noise):
                return [self._begin(onset, middle, time, job)]
        if self._suspected > config.give_up:
            self._level = [value for _, value in self._recent[-config.learn :]]
            self._restart()
        elif self._score <= config.h / 4:
            self._level = [*self._level[1 - config.window :], x]
        return []

    def _onset(self) -> int | None:
        """How many samples the new level has, by whichever test found one."""
        config = self.config
        length = int(self._bocpd.run_length()[0])
        recent = float(self._bocpd.changed_within(config.give_up)[0])
        if config.samples <= length <= config.give_up and recent > config.sure:
            return min(length + 1, len(self._recent))  # the filter is late by one
        if self._score >= config.h and self._suspected >= config.samples:
            return min(self._suspected, len(self._recent))
        return None

    def _verified(self, samples: int, middle: float, noise: float) -> bool:
        config = self.config
        least = np.log(config.verify)
        since = np.array([value for _, value in self._recent[-samples:]])
        centre = float(median(since))
        kept = since[np.abs(since - centre) <= config.outlier * noise]
        if len(kept) < config.samples:
            return False
        return bool(float(kept.mean()) - middle >= least and (since[-config.in_a_row :] - middle >= least / 2).all())

    def _begin(self, samples: int, middle: float, time: float, job: str | None) -> Finding:
        since = self._recent[-samples:]
        ratio = float(np.exp(median(np.array([value for _, value in since])) - middle))
        steps = tuple(step for step, _ in self._recent)
        series = Series(
            name="step_time_seconds",
            unit="s",
            x=steps,
            y=tuple(float(np.exp(value)) for _, value in self._recent),
            x_is="step",
            threshold=float(np.exp(middle)) * self.config.verify,
            peers=(float(np.exp(middle)),) * len(steps),
        )
        evidence = Evidence(
            summary=f"Steps take {np.exp(middle) * ratio:.3g} s since step {since[0][0]:.0f}, {ratio - 1:.0%} longer "
            f"than the {np.exp(middle):.3g} s before; all ranks alike.",
            numbers={"ratio": ratio, "usual_seconds": float(np.exp(middle)), "since_step": since[0][0]},
            series=(series,),
        )
        self._lasted = 0
        self._finding_now = self._finding(FindingKind.JOB_SLOWDOWN, Entity(job=job), time, evidence, confidence=0.9)
        return self._finding_now

    def _watch_end(self, time: float) -> list[Finding]:
        config = self.config
        self._lasted += 1
        now = np.array([value for _, value in self._recent[-config.samples :]])
        if float(median(now)) - statistics.median(self._level) <= np.log(config.verify) / 2:
            return [self._end(time, "Steps take as long as before again.")]
        if self._lasted >= config.accept:
            self._level = [value for _, value in self._recent]
            summary = f"Steps have been slow for {config.accept} samples: that is now taken as usual."
            return [self._end(time, summary)]
        return []

    def _end(self, time: float, summary: str) -> Finding:
        assert self._finding_now is not None
        entity, self._finding_now = self._finding_now.entity, None
        self._restart()
        return self._ended(FindingKind.JOB_SLOWDOWN, entity, time, summary)

    def _restart(self) -> None:
        self._clear()
        self._since_change = 0
        self._scale = (statistics.median(self._level), self.noise)
