"""Step times of simulated jobs that are healthy and yet not even: what a judge of a whole job must leave alone.

Every series is drawn from a seed: kind, size and period of what moves it, and noise between 0.3 and 3 per cent with
some memory and with single spikes, as in the published step times of Megatron runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.lib_pace import pace_of
from mainstay.detectors.base import Floats, Samples
from mainstay.probes.core_types import StepPhase

KINDS: Final = ("steady", "periodic", "drifting", "phases", "growing", "lengths")
STEP_SECONDS: Final = 4.0
_REPLICAS: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class PaceSeries:
    """[T] of a job: seconds and phase of each step, and tokens and squared lengths of its replicas, [T, replica]."""

    seconds: Floats
    phase: Floats
    tokens: Floats
    squares: Floats

    def part(self, start: int, stop: int) -> PaceSeries:
        cut = slice(start, stop)
        return PaceSeries(
            seconds=self.seconds[cut], phase=self.phase[cut], tokens=self.tokens[cut], squares=self.squares[cut]
        )

    def slower(self, since: int, by: float) -> PaceSeries:
        seconds = self.seconds.copy()
        seconds[since:] *= by
        return PaceSeries(seconds=seconds, phase=self.phase, tokens=self.tokens, squares=self.squares)

    def samples(self) -> Samples:
        """A job of one rank per replica, of which all report the step's seconds."""
        signals = {
            "step_time_seconds": np.repeat(self.seconds[:, None], _REPLICAS, axis=1),
            "step_phase": np.repeat(self.phase[:, None], _REPLICAS, axis=1),
            "tokens": self.tokens,
            "sequence_squares": self.squares,
        }
        return pace_of(self.seconds, signals)


def draw(kind: str, seed: int, steps: int) -> PaceSeries:
    """A healthy series; a seed gives the same one again."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    seconds = STEP_SECONDS * _noise(rng, steps)
    phase = np.full(steps, float(StepPhase.TRAIN))
    tokens = np.full((steps, _REPLICAS), 8192.0)
    squares = np.full((steps, _REPLICAS), 2048.0 * 8192.0)
    k = np.arange(steps)
    if kind == "periodic":  # five per cent from bottom to top
        wave = np.sin(2 * np.pi * k / rng.integers(300, 3000) + rng.uniform(0, 2 * np.pi))
        seconds *= 1.0 + 0.025 * (np.sign(wave) if rng.random() < 0.5 else wave)
    elif kind == "drifting":  # a tenth per five to twenty thousand steps, either way, and a random walk
        seconds *= np.exp(
            rng.choice([-0.1, 0.1]) * k / rng.integers(5_000, 20_000) + np.cumsum(rng.normal(0, 2e-4, steps))
        )
    elif kind == "phases":  # long evaluations and checkpoints with their phase, and the slow step after each
        every = int(rng.integers(100, 1000))
        seconds[every::every] *= rng.uniform(5, 30)
        phase[every::every] = rng.choice([float(StepPhase.EVALUATE), float(StepPhase.CHECKPOINT)])
        seconds[every + 1 :: every] *= rng.uniform(1.0, 2.0)
    elif kind == "growing":  # a curriculum: longer sequences in steps or steadily, of which attention is a part
        grown = 1.0 + 2.0 * (np.floor(4 * k / steps) / 4 if rng.random() < 0.5 else k / steps)
        squares *= grown[:, None]
        share = rng.uniform(0.1, 0.5)
        seconds *= 1.0 - share + share * grown
    elif kind == "lengths":
        spread = np.exp(rng.uniform(0.02, 0.12) * rng.standard_normal(tokens.shape))
        tokens, squares = tokens * spread, squares * spread**2
        share = rng.uniform(0.0, 0.5)
        seconds *= ((1.0 - share) * spread + share * spread**2).max(axis=1)
    return PaceSeries(seconds=seconds, phase=phase, tokens=tokens, squares=squares)


def _noise(rng: np.random.Generator, steps: int) -> Floats:
    size, memory = rng.uniform(0.003, 0.03), rng.uniform(0.0, 0.4)
    noise = rng.normal(0.0, size, steps)
    for k in range(1, steps):
        noise[k] += memory * noise[k - 1]
    noise[rng.random(steps) < 0.003] += rng.uniform(0.1, 0.7)
    seconds: Floats = np.exp(noise)
    return seconds
