"""A job that as a whole became slower: a lasting rise of its step times that its work does not explain.

The series is the log of the median step time over the ranks that train, less what the work of the slowest replica
explains (``expected_pace``). A one-sided CUSUM (Page 1954) suspects a lasting rise. The detector reports it when
*verified*, as in Greyhound (ATC'25): without outliers (|z| > 3), five samples or more lie ``verify`` above the level
before, clear of noise, and the last three are all slow. Real jobs spike singly dozens of times a day and almost never
three times in a row; Unicron's rule (one step above 1.1 times the mean) fires at each.

Many jobs swing: with the time of day, the neighbors, the data. So a level that the job rose to before is not new: block
medians of thousands of samples are kept, and a rise must exceed them. Until enough are known, it must be larger.

Whose compute rose is read from the ranks' own times: a rank or node that alone became slow is named, and all ranks are
called alike only where all of them are. A run that later becomes faster for long was slow at its start: information.
So is a run whose first samples are slower than those of earlier runs of the job (``earlier_runs``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import NORMAL_MAD, EntityState, median
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind, Series
from mainstay.detectors.job.earlier_runs import EarlierRuns, RunPace
from mainstay.detectors.job.expected_pace import SIGNALS, ExpectedPace, work_of
from mainstay.detectors.job.rank_share import describe_share
from mainstay.detectors.straggler.compute_time import ComputeTime
from mainstay.detectors.straggler.noise import drift_of, noise_of
from mainstay.probes.core_types import Severity, StepPhase

_BLOCK = 16
"""Samples of a block: its median spreads a third as much as one sample."""
_TRIALS = (5, 8, 12, 20, 32, 50)
"""Lengths of the new level that are tried: a rise may come while a smaller one is still suspected."""


class SlowdownDetector(ArrayDetector):
    """Says ``job_slowdown`` of a job."""

    name = "slowdown"
    kinds = frozenset({FindingKind.JOB_SLOWDOWN})
    signals = ("step_time_seconds", "communication_wait_seconds", "gc_seconds", *ComputeTime.signals)
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        verify: float = 1.05
        """Least slowdown said: Greyhound's 10 % misses what two days of training would notice..."""
        verify_new: float = 1.07
        """...and until ``known_blocks`` are known: swings of five per cent are common, and the first is no fault."""
        known_blocks: int = 192
        """About three thousand samples: whole periods of most swings."""
        blocks: int = 512
        """Blocks remembered: eight thousand samples, several hours of a large job."""
        sure: float = 5.0
        """Standard errors by which a rise must be clear of noise."""
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
        """And so many of the last, all slower than half of what is verified."""
        apart: int = 10
        """Least samples from the end of a finding to the next."""
        skip: int = 5
        """First samples, after a start or a rollback, that are not looked at."""
        learn: int = 20
        """Samples of the first level: as many as the reference leaves out as warm-up."""
        window: int = 64
        """Samples of the level before."""
        fitted: int = 256
        """Samples from which the work's share in the pace is learned."""
        floor: float = 0.004
        """0.4 %, least noise: timers and clock boost alone move a step by this much."""
        limit: float = 0.1
        """Noise above which a tenth is within one deviation: no finding."""
        give_up: int = 50
        """Samples after which an unverified suspicion becomes the level."""
        accept: int = 500
        """Samples after which a slow level is the new normal."""
        repeated: int = 2
        """Slowdowns that ended, from which on their level is one of the job's own."""
        start_blocks: int = 16
        """Blocks in a row that must all be faster than the start for it to have been slow."""
        drawn: int = 64

    config: Config
    earlier: EarlierRuns
    """Runs to compare with; none until they are set."""
    pace: RunPace | None
    """Of the first ``drawn`` samples; None until then."""

    def reset(self) -> None:
        super().reset()
        config = self.config
        self._expected, self._compute = ExpectedPace(), ComputeTime()
        wide = 2 + len(SIGNALS)
        self._calm, self._blocks = np.full((config.fitted, wide), np.nan), np.full((config.blocks, wide), np.nan)
        self._recent = self._block = self._start = np.zeros((0, wide))
        """[n, 5] step, log seconds and work of the slowest replica: of the level before, of the last samples, of a
        block that grows, of whole blocks (the count of samples at their end instead of a step), and of the first level
        until it is judged."""
        self._skip, self._last, self._count, self._depth = config.skip, -1, 0, 0
        self._finding_now: Finding | None = None
        self.earlier, self.pace = EarlierRuns(), None
        self._lasted = self._ended_before = 0
        self._clear(config.apart)

    def _clear(self, since_end: int) -> None:
        self._score, self._suspected, self._since_end = 0.0, 0, since_end

    def _rows(self) -> EntityState:
        rows, lead = EntityState(), (self.config.drawn,)
        ComputeTime.fields(rows)
        return rows.field("own", np.nan, np.float64, lead).field("work", np.nan, np.float64, (len(SIGNALS), *lead))

    def _held(self, _row: int) -> list[FindingKind]:
        return []

    # What it says of itself

    @property
    def _learning(self) -> bool:
        return self._depth < self.config.learn

    def status(self) -> DetectorStatus:
        if not len(self._recent):
            return DetectorStatus(state=DetectorState.IDLE, reason="No step times are reported.")
        if self._learning:
            return DetectorStatus(state=DetectorState.LEARNING, reason="Still learning how long a step takes.")
        noise, usual = self._level()[1], float(np.exp(median(self._calm[-self.config.window :, 1])))
        numbers = {"usual_seconds": usual, "noise": noise}
        if noise > self.config.limit:
            why = f"Step times differ by {noise:.0%} from step to step."
            return DetectorStatus(state=DetectorState.ABSTAINING, reason=why, numbers=numbers)
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    # One step

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
        pace = self._observe(samples, k, step)
        if pace is None:
            return []
        time, job = float(samples.t[k]), Entity(job=samples.entities[0].job)
        if self._count == self.config.drawn:
            middle = median(self._recent.T)
            nodes = frozenset(entity.node for entity in samples.entities if entity.node is not None)
            self.pace = RunPace(seconds=float(np.exp(middle[1])), work=tuple(middle[2:].tolist()), nodes=nodes)
        if self._learning:
            self._learn(pace)
            self._start = self._calm[-self._depth :]
            return []
        if self._finding_now:
            return self._watch_end(time)
        return self._watch_begin(pace, time, job) or self._watch_start(time, job)

    def _observe(self, samples: Samples, k: int, step: int) -> Floats | None:
        """Take one step in; None where it is skipped, or too few ranks train and report to speak for the job."""
        seconds, phase = samples.signal(k, "step_time_seconds"), samples.signal(k, "step_phase")
        own = self._compute.seconds(self.rows, samples, k)
        trains = ~(np.isfinite(phase) & (phase != StepPhase.TRAIN))
        seconds[~(seconds > 0.0) | ~trains] = np.nan
        if np.count_nonzero(np.isfinite(seconds)) * 4 < len(seconds) or not len(seconds):
            return None  # fewer than a quarter: a part of the job is no judge of the whole
        works, largest = work_of(samples, k, trains)
        middle = float(median(seconds)) - _waited_for_garbage(samples, k, seconds)
        pace: Floats = np.concatenate(([float(step), float(np.log(middle if middle > 0.0 else np.nan))], largest))
        if not np.isfinite(self._residuals(pace)):
            return None  # its work is missing
        if self._skip > 0:
            self._skip -= 1
            return None
        at = self._count % self.config.drawn
        self.rows["own"][at], self.rows["work"][:, at] = np.log(own), works
        self._recent = _append(self._recent, pace, self.config.drawn)
        self._count += 1
        return pace

    def _residuals(self, paces: Floats) -> Floats:
        """[...] log seconds less what the work explains, of [..., 5]."""
        return paces[..., 1] - self._expected.expected(paces[..., 2:])

    def _level(self) -> tuple[float, float]:
        """Middle and noise of the level before."""
        before = self._residuals(self._calm[-min(self._depth, self.config.window) :])
        middle = float(median(before))
        return middle, max(NORMAL_MAD * float(median(np.abs(before - middle))), self.config.floor)

    def _learn(self, pace: Floats) -> None:
        self._calm = _append(self._calm, pace, self.config.fitted)
        self._depth += 1
        if self._depth % _BLOCK == 0 or self._depth == self.config.learn:
            self._fit()

    def _fit(self) -> None:
        known = self._calm[np.isfinite(self._calm[:, 0])]
        self._expected.fit(known[:, 1], known[:, 2:])

    @property
    def _least(self) -> float:
        """Least rise said, in log units."""
        config = self.config
        known = np.isfinite(self._blocks[-config.known_blocks, 0])
        return float(np.log(config.verify if known else config.verify_new))

    # It becomes slower

    def _watch_begin(self, pace: Floats, time: float, job: Entity) -> list[Finding]:
        config = self.config
        middle, noise = self._level()
        drift = min(max(1.0, self._least / 2 / noise), config.k_most)
        z = (float(self._residuals(pace)) - middle) / noise
        self._score = max(0.0, self._score + float(np.clip(z, -config.clip, config.clip)) - drift)
        self._suspected = self._suspected + 1 if self._score > 0.0 else 0
        self._since_end += 1
        if noise <= config.limit and self._score >= config.h and self._since_end >= config.apart:
            samples = self._verified(middle, noise)
            if samples:
                return [self._begin(samples, middle, time, job)]
        self._block = _append(self._block, pace, _BLOCK)
        if len(self._block) == _BLOCK:
            self._remember(self._block)
        if self._suspected > config.give_up:
            self._adopt(self._recent[-config.learn :])
            self._clear(config.apart)
        elif self._score <= config.h / 4:
            self._learn(pace)
        return []

    def _verified(self, middle: float, noise: float) -> int:
        """How many samples the new level has; 0 where none is slow enough, and new to the job."""
        config, least = self.config, self._least
        each = config.sure * max(noise, self._wander())
        for samples in (n for n in (*_TRIALS, self._suspected) if config.samples <= n <= self._suspected):
            since = self._residuals(self._recent[-samples:])
            kept = since[np.abs(since - float(median(since))) <= config.outlier * noise]
            if len(kept) < config.samples or not (since[-config.in_a_row :] - middle >= least / 2).all():
                continue
            error = each / np.sqrt(len(kept))
            known = self._known_level(self._count - samples) - noise / 4  # the error of a block's median
            if float(kept.mean()) >= max(middle + max(least, error), known + max(np.log(config.verify) / 2, error)):
                return samples
        return 0

    def _known_level(self, before: int) -> float:
        """The slowest level that the job rose to before that sample; minus infinity where it never rose."""
        level = self._residuals(self._blocks[self._blocks[:, 0] <= before])
        risen = level[level - np.fmin.accumulate(level) >= np.log(self.config.verify) / 2]
        return float(risen.max(initial=-np.inf))

    def _remember(self, paces: Floats) -> None:
        block = median(paces.T)
        block[0] = self._count
        self._blocks, self._block = _append(self._blocks, block, self.config.blocks), self._block[:0]

    def _adopt(self, paces: Floats) -> None:
        """These become the level; what the work explains is learned from earlier ones too."""
        self._calm = np.concatenate((self._calm, paces))[-self.config.fitted :]
        self._depth = len(paces)
        self._fit()

    def _begin(self, samples: int, middle: float, time: float, job: Entity) -> Finding:
        since = self._recent[-samples:]
        ratio = float(np.exp(median(self._residuals(since)) - middle))
        usual = float(np.exp(middle + median(self._expected.expected(since[:, 2:]))))
        steps = tuple(self._recent[:, 0].tolist())
        series = Series(
            name="step_time_seconds",
            unit="s",
            x=steps,
            y=tuple(np.exp(self._recent[:, 1]).tolist()),
            x_is="step",
            threshold=usual * float(np.exp(self._least)),
            peers=(usual,) * len(steps),
        )
        own = self._own()
        rise = median(own[-samples:].T) - median(own[:-samples].T)
        who = describe_share(self.rows.entities, rise, float(np.log(ratio)))
        evidence = Evidence(
            summary=f"Steps take {usual * ratio:.3g} s since step {since[0, 0]:.0f}, {ratio - 1:.0%} longer "
            f"than the {usual:.3g} s before{who}.",
            numbers={"ratio": ratio, "usual_seconds": usual, "since_step": float(since[0, 0])},
            series=(series,),
        )
        self._lasted, self._slow = 0, since
        self._finding_now = self._finding(FindingKind.JOB_SLOWDOWN, job, time, evidence, confidence=0.9)
        return self._finding_now

    def _own(self) -> Floats:
        """[n, R] log seconds of each rank's own compute in the last samples, less what its work explains."""
        known = min(self._count, self.config.drawn)
        order = (self._count - known + np.arange(known)) % self.config.drawn
        work = np.moveaxis(self.rows["work"][:, order], 0, -1)
        return self.rows["own"][order] - self._expected.expected(work)

    def _wander(self) -> float:
        """Long-run noise of a rank beside the others, of which the slowest's pace has a part; zero: not known."""
        own = self._own()
        own -= median(own.T)
        sigma = noise_of(own - drift_of(own)[:, None]).sigma
        return sigma if np.isfinite(sigma) else 0.0

    # It ends

    def _watch_end(self, time: float) -> list[Finding]:
        config = self.config
        self._lasted += 1
        now = self._residuals(self._recent[-config.samples :])
        if float(median(now)) - self._level()[0] <= np.log(config.verify) / 2:
            self._ended_before += 1
            if self._ended_before >= config.repeated:
                self._remember(self._slow)
            return [self._end(time, "Steps take as long as before again.")]
        if self._lasted >= config.accept:
            self._adopt(self._recent)
            summary = f"Steps have been slow for {config.accept} samples: that is now taken as usual."
            return [self._end(time, summary)]
        return []

    def _end(self, time: float, summary: str) -> Finding:
        assert self._finding_now is not None
        entity, self._finding_now = self._finding_now.entity, None
        self._block = self._block[:0]
        self._clear(0)
        return self._ended(FindingKind.JOB_SLOWDOWN, entity, time, summary)

    # It was slow from the start

    def _watch_start(self, time: float, job: Entity) -> list[Finding]:
        """Whether the start was slow: earlier runs were faster, or the run has long been faster since."""
        config = self.config
        if self._count == config.drawn and self.pace is not None:
            slower = self.earlier.compare(self.pace)
            return [] if slower is None else self._inform(job, time, slower, 0.7, "It is about the start only.")
        if self._count % _BLOCK or not len(self._start):
            return []
        since, least = self._residuals(self._blocks[-config.start_blocks :]), float(np.log(config.verify))
        faster = float(median(self._residuals(self._start))) - since
        if float(median(faster)) < least or not (faster >= least / 2).all():
            return []
        now = float(np.exp(median(self._blocks[-config.start_blocks :, 1])))
        ratio = float(np.exp(median(faster)))
        self._start = self._start[:0]
        samples = config.start_blocks * _BLOCK
        evidence = Evidence(
            summary=f"The run started slowly: its first steps took {ratio * now:.3g} s, {ratio - 1:.0%} longer than "
            f"the {now:.3g} s of the last {samples} samples.",
            numbers={"ratio": ratio, "usual_seconds": now},
        )
        return self._inform(job, time, evidence, 0.9, "The run is faster than it was at its start.")

    def _inform(self, job: Entity, time: float, evidence: Evidence, confidence: float, over: str) -> list[Finding]:
        """Information, begun and ended at once."""
        kind, severity = FindingKind.JOB_SLOWDOWN, Severity.INFO
        said = self._finding(kind, job, time, evidence, severity=severity, confidence=confidence)
        return [said, said.ended(time, over)]


def _waited_for_garbage(samples: Samples, k: int, seconds: Floats) -> float:
    """Seconds by which the last of the ranks would have been ready sooner, had none collected garbage.

    A rank is ready after its ``seconds`` [R] of a step less its wait for others; one that tells no wait is left out.
    """
    ready = seconds - samples.signal(k, "communication_wait_seconds")
    known = np.isfinite(ready)
    without = ready[known] - np.nan_to_num(samples.signal(k, "gc_seconds"))[known]
    return float(ready[known].max() - without.max()) if known.any() else 0.0


def _append(paces: Floats, pace: Floats, most: int) -> Floats:
    return np.concatenate((paces[max(0, len(paces) + 1 - most) :], pace[None]))
