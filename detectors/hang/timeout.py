"""How long a job may go without completing a collective: learned by phase from the gaps of the healthy job.

Training: ``max(4 s, 3 x p99.9)`` of the gaps (reference 3.2). Other phases may be long and silent, so their limit is
``5 x p99`` of the longest gap of each past phase (reference, fault 8), never below a floor. Until some phases are
known, it is the time-out at which the collective library itself would give up; of a checkpoint, ten minutes.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np

from mainstay.probes.core_types import StepPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTimeoutConfig:
    least: float = 4.0
    """Seconds: no shorter standstill is a hang (reference 3.2)."""
    factor: float = 3.0
    """Times the 99.9th percentile of the healthy gaps (Unicron's three iterations, reference 1.3)."""
    learn_gaps: int = 10
    """Gaps, and ``learn_steps`` whole steps, after which the limit holds: a step has its long computation and its
    dense communication, and must have been seen from end to end more than once."""
    tail_gaps: int = 1000
    """Gaps that show their 99.9th percentile. Of fewer, the largest is scaled as that of an exponential tail is:
    ``ln 1000 / ln n``."""
    unlearned: float = 300.0
    """Seconds until then: forming communicators of a large job and its first step take minutes."""
    remembered: int = 2048
    """Gaps kept: the 99.9th percentile of them is nearly the largest, that of two thousand is seldom luck."""
    step_factor: float = 3.0
    step_margin: float = 2.0
    """Where only steps are reported: 3 x median step + 2 s (reference 6)."""
    learn_steps: int = 3
    """Steps between which the first, slower ones hardly weigh in the median."""
    masked_factor: float = 5.0
    """Other phases: times the 99th percentile of history (NVRx's safety factor, reference 1.18)."""
    masked_least: float = 60.0
    """Seconds: storage that is slow for once takes tens of seconds, not a minute."""
    compile_least: float = 600.0
    """Seconds: a first compilation and a recompilation have nothing in common."""
    masked_unlearned: float = 1800.0
    """Seconds: the time-out of gloo and of DeepSpeed, longer than NCCL's ten minutes."""
    checkpoint_unlearned: float = 600.0
    """Seconds, or more where a checkpoint seen took long: terabytes at a gigabyte per second and node need minutes."""
    learn_failure_runs: int = 3
    idle_factor: float = 3.0
    idle_least: float = 60.0
    """No rank is inside a call: all ranks compute or read, which a long step does too; so wait longer."""


_FAILURE_RUNS = 64
"""Past occurrences of a phase that count: a day of checkpoints every half hour."""
_MASKED = (StepPhase.WARM_UP, StepPhase.COMPILE, StepPhase.EVALUATE, StepPhase.CHECKPOINT)


class HangTimeoutModel:
    """Gaps of the healthy job, and the limits that follow from them."""

    def __init__(self, limits: HangTimeoutConfig) -> None:
        self.limits = limits
        self._gaps, self._steps = deque[float](maxlen=limits.remembered), deque[float](maxlen=limits.remembered)
        self._masked_phases = {phase: deque[float](maxlen=_FAILURE_RUNS) for phase in _MASKED}
        self._tail: float | None = None
        self._pauses = 0

    @property
    def learned(self) -> bool:
        """Whether the limit of training rests on this job's own gaps."""
        return len(self._gaps) >= self.limits.learn_gaps and len(self._steps) >= self.limits.learn_steps

    @property
    def step_seconds(self) -> float:
        """Median step; 0 until one is known."""
        return statistics.median(self._steps) if self._steps else 0.0

    def learn_gap(self, seconds: float, *, alarmed: bool = False) -> None:
        """A gap of training that ended without a recovery; one that alarmed is believed only when it comes again."""
        if alarmed:
            self._pauses += 1
            if self._pauses == 1:
                return
        self._gaps.append(seconds)
        self._tail = None

    def learn_steps(self, seconds: float) -> None:
        self._steps.append(seconds)

    def learn_masked_phase(self, phase: StepPhase, longest: float) -> None:
        self._masked_phases[phase].append(longest)

    def limit(self, phase: StepPhase, interval: float, *, counted: bool, waiting: bool) -> float:
        """Seconds of quiet from which on the job hangs.

        Args:
            phase: what the job does.
            interval: seconds between samples: a gap is seen that much too short.
            counted: whether collectives are counted, not only steps.
            waiting: whether any rank is inside a call.
        """
        limits = self.limits
        if phase is not StepPhase.TRAIN:
            return self._masked(phase)
        if counted:
            learned = self.learned
            limit = max(limits.least, limits.factor * self._tail_gap() + interval) if learned else limits.unlearned
        else:
            learned = len(self._steps) >= limits.learn_steps
            longest = limits.step_factor * self.step_seconds + limits.step_margin
            limit = max(limits.least, longest) if learned else limits.unlearned
        return limit if waiting or not learned else max(limits.idle_factor * limit, limits.idle_least)

    def _tail_gap(self) -> float:
        if self._tail is None:
            seen = min(len(self._gaps), self.limits.tail_gaps)
            scale = np.log(self.limits.tail_gaps) / np.log(max(seen, 2))
            self._tail = float(np.quantile(self._gaps, 0.999, method="higher") * scale)
        return self._tail

    def _masked(self, phase: StepPhase) -> float:
        limits = self.limits
        known = self._masked_phases[phase]
        if len(known) < limits.learn_failure_runs:
            if phase is StepPhase.CHECKPOINT:
                return max(limits.checkpoint_unlearned, limits.masked_factor * max(known, default=0.0))
            return limits.masked_unlearned
        least = limits.compile_least if phase in {StepPhase.COMPILE, StepPhase.WARM_UP} else limits.masked_least
        return max(least, limits.masked_factor * float(np.quantile(known, 0.99, method="higher")))
