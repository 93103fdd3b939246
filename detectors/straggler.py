"""A rank whose own compute is slower than that of ranks with the same role, step after step.

Step time carries no blame, since synchronous training makes everybody equally slow; a rank's own compute time does,
compared only within its role (pipeline stage), never across. Noise is learned in warm-up; a job whose noise is too
large for this test (sequences of varying length) is not judged at all, and says so in ``abstains``.

The test, per rank and step: one-sided CUSUM (Page 1954) on the log-ratio to the role's median::

    L = log(compute) - median over the role
    z = L / max(1.4826 MAD of the warm-up, 0.4 %)
    S = max(0, S + clip(z, -4, 4) - k)

With two peers the median lies between them, so that a slow rank and a fast one look alike: there L is taken against its
own history, and a second CUSUM on the rank's own history (less the drift of the whole job) gives the direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detectors.base import ArrayDetector, Feed, Floats, Samples
from detectors.finding import Evidence, Finding, FindingKind, Series
from detectors.rows import Rows, median, robust_sigma

_PAIR = 2
_PAIR_SCALE = float(np.sqrt(2.0))
"""The half difference of a pair has 1/sqrt(2) of one rank's deviation; times this it compares with larger roles."""


class StragglerDetector(ArrayDetector):
    """Says ``compute_slow`` of the right rank of one job.

    Entities are ranks, groups their roles (pipeline stage and whatever else makes layers differ).
    """

    name = "straggler"
    kinds = frozenset({FindingKind.COMPUTE_SLOW})
    signals = ("compute_time_seconds",)
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        k: float = 1.0
        """Drift that is no fault, in sigma."""
        h: float = 12.0
        """Score to begin: mean time to a false alarm exp(2k(h + 1.17k)) / 2k^2 = 1.3e11 rank-steps for normal noise
        (Siegmund), so 16,384 ranks x 1e5 steps give 0.01; the rest is room for autocorrelation."""
        h_off: float = 3.0
        """Score to end: a healthy rank falls from the cap to here in a dozen steps."""
        cap: float = 15.0
        """Most that a score may reach, so that recovery is seen in bounded time."""
        clip: float = 4.0
        """Most that one step may say: with k = 1 and h = 12 no alarm before the fourth slow step."""
        skip_steps: int = 5
        """First steps of a rank that are not looked at: compilation, cold caches, a restored rank's first touch."""
        learn_steps: int = 10
        """Steps of warm-up; as in the measured protocol of the reference."""
        learn_samples: int = 64
        """And at least so many rank-steps: the MAD of 64 normal samples is good to a tenth."""
        sigma_floor: float = 0.004
        """0.4 %: timers and clock boost alone move a step by this much."""
        sigma_limit: float = 0.05
        """Above 5 % the spread is workload, not hardware: balanced jobs show 0.4-2 %, sequence variance 9 %."""
        pair_steps: int = 32
        """Warm-up of a pair: its base is then good to 0.22 sigma, so that k = 1 covers the base's own error."""
        pair_ratio: float = 1.05
        """Least slowdown blamed within a pair: its direction rests on one rank's history alone."""
        missing_steps: int = 10
        """Steps without a sample after which an unfinished suspicion is dropped."""
        remembered: int = 64
        """Steps kept per rank: for the noise estimate, and to draw."""

    def __init__(self, config: Config | None = None) -> None:
        self.config: StragglerDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.sigma: float | None = None
        """Learned noise of the log-ratio, or None while learning."""
        self._sigma_own = np.nan
        self._sigma_now = 0.0
        self._ticks = 0
        self._steps = np.full(self.config.remembered, np.nan)

    def _rows(self) -> Rows:
        lead = (self.config.remembered,)
        rows = (
            Rows().field("seen", 0, np.int64).field("missing", 0, np.int64).field("state", fill=False, dtype=np.bool_)
        )
        rows.field("score", 0.0).field("own_score", 0.0).field("onset", np.nan).field(
            "pair", fill=False, dtype=np.bool_
        )
        rows.field("base", np.nan).field("own_base", np.nan)
        for name in ("x", "ratio", "peers", "scores"):
            rows.field(name, np.nan, np.float64, lead)
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        return [FindingKind.COMPUTE_SLOW] if self.rows["state"][row] else []

    @property
    def abstains(self) -> str | None:
        """Why nobody is judged now, or None: unknown is never healthy."""
        if self.sigma is None:
            return "still learning this job's noise"
        if not self._noise() <= self.config.sigma_limit:
            limit = self.config.sigma_limit
            return f"compute times of equal ranks differ by {self._noise():.1%} from step to step (limit {limit:.0%})"
        return None

    def _noise(self) -> float:
        return max(self.sigma or 0.0, self._sigma_now, self.config.sigma_floor)

    def _follow(self, samples: Samples) -> list[Finding]:
        """Besides what every detector does: a pair with a new member has no common history, so it learns anew."""
        if self.rows.follows(samples.entities) and self._groups[0] == samples.groups:
            return []
        before = self._pairs()
        found = super()._follow(samples)
        self.rows["pair"] = np.zeros(len(samples.entities), dtype=np.bool_)
        for members in self._members(samples):
            self.rows["pair"][members] = len(members) == _PAIR
        for pair in self._pairs() - before:
            self._forget([self.rows.entities.index(entity) for entity in pair])
        return found

    def _pairs(self) -> set[frozenset[object]]:
        entities = self.rows.entities
        return {
            frozenset(entities[r] for r in m) for m in self._groups[1] if len(m) == _PAIR and max(m) < len(entities)
        }

    def _forget(self, rows: list[int]) -> None:
        for name in ("seen", "score", "own_score"):
            self.rows[name][rows] = 0
        for name in ("base", "own_base", "x", "ratio", "peers", "scores"):
            self.rows[name][..., rows] = np.nan

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        ratio = self._observe(samples, k)
        self._learn()
        if self.abstains is None:
            self._score(ratio, int(samples.steps[k]))
        self.rows["scores"][-1] = self.rows["score"]
        return self._decide(float(samples.t[k]))

    def _observe(self, samples: Samples, k: int) -> Floats:
        """Take one step in; returns the log-ratio to the role (scaled for pairs), NaN where it cannot be said."""
        assert samples.steps is not None
        rows = self.rows
        seconds = self._signal(samples, k, self.signals[0])
        seconds[~(seconds > 0.0)] = np.nan
        valid = np.isfinite(seconds)
        rows["seen"] = rows["seen"] + valid
        rows["missing"] = np.where(valid, 0, rows["missing"] + 1)
        x = np.where(rows["seen"] > self.config.skip_steps, np.log(seconds), np.nan)
        middle, ratio = self._against_role(samples, x)
        self._ticks += 1
        self._steps = np.append(self._steps[1:], samples.steps[k])
        for name, now in (("x", x), ("ratio", ratio), ("peers", middle), ("scores", rows["score"])):
            rows[name][:-1] = rows[name][1:]
            rows[name][-1] = now
        return ratio

    def _against_role(self, samples: Samples, x: Floats) -> tuple[Floats, Floats]:
        middle, ratio = np.full_like(x, np.nan), np.full_like(x, np.nan)
        for members in self._members(samples):
            group = x[members]
            valid = int(np.count_nonzero(np.isfinite(group)))
            if len(members) < _PAIR or valid < min(len(members), _PAIR + 1):
                continue  # nobody to compare with, or not enough of them reported this step
            middle[members] = centre = float(median(group))
            ratio[members] = (group - centre) * (_PAIR_SCALE if len(members) == _PAIR else 1.0)
        return middle, ratio

    def _learn(self) -> None:
        """Learn each rank's own base, then the job's noise; later only watch that the noise stays as it was."""
        rows, config = self.rows, self.config
        needed = np.where(rows["pair"], config.pair_steps, config.learn_steps)
        ready = np.isnan(rows["base"]) & (np.count_nonzero(np.isfinite(rows["ratio"]), axis=0) >= needed)
        if ready.any():
            rows["base"][ready] = median(rows["ratio"][:, ready].T)
            rows["own_base"][ready] = median(rows["x"][:, ready].T)
        if self.sigma is None:
            self._learn_noise()
        elif self._ticks % 8 == 0:  # every eighth step: a median over the whole memory
            self._watch_noise()

    def _watch_noise(self) -> None:
        """Noise of the remembered steps: ten steps of warm-up say little of noise that stays from step to step.

        Suspects are left out, so that a fault does not raise its own threshold.
        """
        rows, config = self.rows, self.config
        calm = np.isfinite(rows["base"]) & ~rows["state"] & (rows["score"] < config.h / 2)
        residuals = rows["ratio"][:, calm] - np.where(rows["pair"], rows["base"], 0.0)[calm]
        if np.count_nonzero(np.isfinite(residuals)) >= config.learn_samples:
            self._sigma_now = _long_run_spread(residuals)

    def _learn_noise(self) -> None:
        rows, config = self.rows, self.config
        judged = np.isfinite(rows["base"])
        # In a large role a rank that is slow from the start stands out of the pool; a pair can only be centred.
        centre = np.where(rows["pair"], rows["base"], 0.0)[judged]
        residuals = rows["ratio"][:, judged] - centre
        if np.count_nonzero(np.isfinite(residuals)) < config.learn_samples:
            return
        self.sigma = max(_long_run_spread(residuals), config.sigma_floor)
        own = rows["x"][:, judged] - rows["own_base"][judged]
        self._sigma_own = max(_long_run_spread(own - _drift(own)[:, None]), config.sigma_floor)

    def _score(self, ratio: Floats, step: int) -> None:
        rows = self.rows
        base = np.where(rows["pair"], rows["base"], 0.0)
        started = rows["score"] <= 0.0
        rows["score"] = self._cusum(rows["score"], (ratio - base) / self._noise())
        if rows["pair"].any():
            own = rows["x"][-1] - rows["own_base"]
            rows["own_score"] = self._cusum(rows["own_score"], (own - _drift(own[None])[0]) / self._sigma_own)
        rows["onset"] = np.where(started & (rows["score"] > 0.0), step, rows["onset"])
        stale = (rows["missing"] >= self.config.missing_steps) & ~rows["state"]
        rows["score"][stale] = 0.0

    def _cusum(self, score: Floats, z: Floats) -> Floats:
        config = self.config
        with np.errstate(invalid="ignore"):
            moved = np.clip(score + np.clip(z, -config.clip, config.clip) - config.k, 0.0, config.cap)
        return np.where(np.isfinite(z), moved, score)

    def _decide(self, time: float) -> list[Finding]:
        rows, config = self.rows, self.config
        begins = ~rows["state"] & (rows["score"] >= config.h) & (rows["missing"] == 0)
        begins[begins] = [self._directed(int(row)) for row in np.flatnonzero(begins)]
        ends = rows["state"] & (rows["score"] <= config.h_off) & (rows["missing"] == 0) & (self.abstains is None)
        rows["state"] = (rows["state"] | begins) & ~ends
        changed = np.flatnonzero(begins | ends)
        order = changed[np.argsort(-rows["score"][changed], kind="stable")]
        return [self._say(int(row), time, active=bool(begins[row])) for row in order]

    def _directed(self, row: int) -> bool:
        """A pair's slow side must be slow by its own history too, or a peer that became faster would accuse it."""
        if not self.rows["pair"][row]:
            return True
        return bool(self.rows["own_score"][row] >= self.config.h) and self._slowdown(row) >= self.config.pair_ratio

    def _slowdown(self, row: int) -> float:
        """Compute time over the peers' since the suspicion began (a pair: over what it was before)."""
        rows = self.rows
        recent = rows["ratio"][self._steps >= rows["onset"][row], row]
        shift = float(median(recent))
        return float(np.exp((shift - rows["base"][row]) * _PAIR_SCALE if rows["pair"][row] else shift))

    def _say(self, row: int, time: float, *, active: bool) -> Finding:
        entity = self.rows.entities[row]
        if not active:
            evidence = Evidence(summary=f"Rank {entity.rank} computes as fast as its peers again.")
            return self._finding(FindingKind.COMPUTE_SLOW, entity, time, evidence, active=False)
        confidence = 0.8 if self.rows["pair"][row] else 0.95  # a pair's direction rests on its history alone
        return self._finding(FindingKind.COMPUTE_SLOW, entity, time, self._evidence(row), confidence=confidence)

    def _evidence(self, row: int) -> Evidence:
        rows, entity = self.rows, self.rows.entities[row]
        slower, onset = self._slowdown(row), float(rows["onset"][row])
        where = f" on {entity.node}" if entity.node else ""
        numbers = {
            "ratio": slower,
            "score": float(rows["score"][row]),
            "next_score": float(np.max(np.delete(rows["score"], row), initial=0.0)),
            "sigma": self._noise(),
            "since_step": onset,
        }
        return Evidence(
            summary=f"Rank {entity.rank}{where} computes {slower - 1:.1%} longer than ranks of the same role "
            f"since step {onset:.0f}; their usual spread is {self._noise():.1%}.",
            numbers=numbers,
            series=self._series(row),
        )

    def _series(self, row: int) -> tuple[Series, ...]:
        rows = self.rows
        drawn = np.isfinite(rows["x"][:, row]) & np.isfinite(rows["peers"][:, row])
        steps = tuple(float(s) for s in self._steps[drawn])
        seconds = tuple(float(v) for v in np.exp(rows["x"][drawn, row]))
        peers = tuple(float(v) for v in np.exp(rows["peers"][drawn, row]))
        scores = tuple(float(v) for v in rows["scores"][drawn, row])
        return (
            Series(name="compute_time_seconds", unit="s", x=steps, y=seconds, x_is="step", peers=peers),
            Series(name="slow_score", unit="sigma", x=steps, y=scores, x_is="step", threshold=self.config.h),
        )


def _spread(residuals: Floats) -> float:
    """Robust standard deviation of all residuals together, [T, rank]; infinite where there is no sample."""
    known = residuals[np.isfinite(residuals)]
    return float(robust_sigma(known)) if len(known) else float("inf")


def _long_run_spread(residuals: Floats) -> float:
    """The same, widened for noise that stays from step to step, which a CUSUM would take for a fault.

    For noise with lag-one correlation r the variance of a long sum is (1 + r) / (1 - r) times that of independent
    noise; r is taken from clipped residuals, so that one spike does not make it.
    """
    spread = _spread(residuals)
    clipped = np.clip(residuals, -3 * spread, 3 * spread)
    products = clipped[1:] * clipped[:-1]
    squares = clipped[np.isfinite(clipped)] ** 2
    if not np.isfinite(products).any() or not squares.any():
        return spread
    r = float(np.clip(np.nanmean(products) / squares.mean(), 0.0, 0.9))
    return spread * float(np.sqrt((1 + r) / (1 - r)))


def _drift(own: Floats) -> Floats:
    """How far the whole job moved at each step [T] from own[T, rank]: known from three ranks on, else taken as none."""
    known = np.count_nonzero(np.isfinite(own), axis=-1) > _PAIR
    return np.where(known, np.nan_to_num(median(own)), 0.0)
