"""Numbers of the straggler test, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerConfig:
    k: float = 1.0
    """Drift that is no fault, in sigma."""
    h: float = 12.0
    """Score to begin: mean time to a false alarm exp(2k(h + 1.17k)) / 2k^2 = 1.3e11 rank-steps for normal noise
    (Siegmund), so 16,384 ranks x 1e5 steps give 0.01; the rest is room for tails and for noise that changes."""
    h_off: float = 3.0
    """Score to end: a healthy rank falls from the cap to here in a dozen steps."""
    cap: float = 15.0
    """Most that a score may reach, so that recovery is seen in bounded time."""
    clip: float = 4.0
    """Most that one step may say: with k = 1 and h = 12 no alarm before the fourth slow step."""
    least_ratio: float = 1.01
    """Least slowdown worth a word: healthy GPUs of one model differ by as much."""
    skip_steps: int = 5
    """First steps of a rank that are not looked at: compilation, cold caches, a restored rank's first touch."""
    settle_steps: int = 3
    """The same after a roll-back, and for a rank that comes back after silence: its caches only are cold."""
    learn_steps: int = 5
    """Steps of warm-up, with the skipped ones the ten of the reference's protocol..."""
    learn_samples: int = 64
    """...and at least so many rank-steps: the MAD of 64 normal samples is good to a tenth."""
    role_samples: int = 512
    """Rank-steps from which a role's own noise counts more than all roles' together: known to five per cent by then."""
    pair_steps: int = 10
    """Warm-up of a pair: its base rests on its own history, whose error the forecast's deviation carries."""
    pair_least: int = 7
    """Samples of these that a pair must have: some go missing, and the forecast knows how many there were."""
    pair_base_steps: int = 32
    """A pair's base is fixed after so many: it has no bound of credibility that would stop a slow drift."""
    pair_ratio: float = 1.015
    """Least slowdown blamed within a pair: its direction rests on one rank's history alone."""
    sigma_floor: float = 0.004
    """0.4 %: timers and clock boost alone move a step by this much."""
    offset_floor: float = 0.005
    """0.5 %: lasting differences of healthy GPUs that a short warm-up cannot see."""
    offset_limit: float = 4.0
    """Lasting differences are believed up to so many of their deviations: 3e-5 of healthy ranks lie beyond."""
    sigma_limit: float = 0.05
    """Above 5 % the spread is workload, not hardware: balanced jobs show 0.4-2 %, sequence variance 9 %."""
    switch: float = 0.8
    """Another way judges when its noise is below this share of the present one's."""
    gate: float = 4.0
    """Score from which a rank's steps teach nothing: a healthy one is there 3 steps in 10,000 (exp(-2 gate))."""
    delay_steps: int = 8
    """Steps after which a calm step is believed: a fault reaches the gate before its first step would teach."""
    core_wait: float = 0.05
    """Share of its time that a rank waits for a core, beyond the others', from which its device is not the suspect."""
    neighbor_share: float = 0.1
    """Part of what another process takes from the rank on its core that other ranks of the node may lose by it unnamed:
    a thread put aside for 60 ms of a step slowed the next core's by 0.6 to 1 ms."""
    missing_steps: int = 10
    """Steps without a sample after which an unfinished suspicion is dropped."""
    remembered: int = 64
    """Steps kept per rank: for noise and fits, and to draw."""

    def smallest_slowdown(self, sigma: float) -> float:
        """Share by which a rank must be slower to be named within a dozen steps: (k + h / 12) sigma."""
        within = 12  # steps that the goal for small slowdowns allows
        return max(math.expm1((self.k + self.h / within) * sigma), self.least_ratio - 1.0)
