"""Rising rates of errors that a GPU corrects: the trend that comes before the fault.

Corrected memory errors, rows remapped, PCIe replays, recoveries and correctable errors. Trends go by the Poisson CUSUM
of ``poisson``; an error storm needs no past (4.6k to 17.7k corrected errors a second blocked DCGM for 45 s and its
monitor 49 times: DCGM#313, NVSentinel#1748).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import ArrayDetector, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.gpu.counters import TREND, CounterWatch
from mainstay.detectors.statistics.hysteresis import HysteresisConfig
from mainstay.detectors.statistics.poisson_cusum import Counter
from mainstay.probes.core_types import RecommendedAction

COUNTERS = (
    Counter(name="gpu_ecc_corrected_total", words="corrected memory errors", rise=1.0, burst=50.0),
    Counter(
        name="gpu_remapped_rows_corrected_total", words="rows remapped after corrected errors", rise=0.2, burst=1.0
    ),
    Counter(
        name="gpu_remapped_rows_uncorrected_total", words="rows remapped after uncorrected errors", rise=0.2, burst=1.0
    ),
    # DCGM's limit for a generation 5 link of 16 lanes is 31 replays a minute
    Counter(name="gpu_pcie_replay_total", words="PCIe replays", rise=2.0, burst=1.0),
    Counter(name="gpu_pcie_correctable_errors_total", words="corrected PCIe errors", rise=2.0, burst=1.0),
    Counter(name="gpu_pcie_recoveries_total", words="PCIe link recoveries", rise=10.0, burst=5.0, at_work=True),
)
_KINDS = (FindingKind.ECC_CORRECTED, FindingKind.PCIE_DEGRADED)
_OF = np.array([0, 0, 0, 1, 1, 1])
"""The finding kind of each counter."""


class DriftDetector(ArrayDetector):
    """Says ``ecc_corrected`` and ``pcie_degraded``. Entities are GPUs, groups their cohorts."""

    name = "error_drift"
    kinds = frozenset(_KINDS)
    usual_confidence = 0.95
    usual_action = RecommendedAction.MONITOR
    signals = (*(counter.name for counter in COUNTERS), gpu_context.UTILIZATION, gpu_context.POWER)
    settling_seconds = 86_400.0  # a trend is not seen again in the first hours after a restart

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        threshold: float = 21.0
        """exp(21) minutes between false alarms of one card and counter: for 6 counters of 10,000 cards that is less
        than one in two weeks."""
        burst_needed: int = 2
        burst_of_last: int = 3
        burst_calm: int = 60
        """Readings below the burst rate that end it."""
        work_seconds: float = 15.0
        """Uninterrupted work before a reading of ten seconds surely holds nothing else."""

    config: Config

    def reset(self) -> None:
        config = self.config
        hold = HysteresisConfig(needed=config.burst_needed, of_last=config.burst_of_last, calm=config.burst_calm)
        self._errors = CounterWatch(COUNTERS, config.threshold, hold)
        super().reset()

    def _rows(self) -> EntityState:
        rows = self._errors.declare(EntityState()).field("said", 0, np.int16, lead=(len(_KINDS),))
        return rows.field("working_since", np.inf)

    def _held(self, row: int) -> list[FindingKind]:
        return [kind for i, kind in enumerate(_KINDS) if self.rows["said"][i, row]]

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time, rows = float(samples.t[k]), self.rows
        self._errors.cohorts.follow(samples)
        utilization, power = gpu_context.activity(samples, k)
        since = rows["working_since"]
        since[:] = np.where(gpu_context.busy(utilization, power), np.minimum(since, time), np.inf)
        working = time - since >= self.config.work_seconds
        always = np.ones_like(working)
        code = np.zeros((len(_KINDS), len(samples.entities)), np.int16)
        for what, counter in enumerate(COUNTERS):
            rate = samples.signal(k, counter.name)
            counted = working if counter.at_work else always
            code[_OF[what]] |= self._errors.step(rows, what, rate, counted=counted, judged=always, time=time)
        changed = np.argwhere(code != rows["said"])
        rows["said"] = code
        return [self._say(int(kind), int(row), int(code[kind, row]), time) for kind, row in changed]

    def _say(self, kind: int, row: int, code: int, time: float) -> Finding:
        entity = self.rows.entities[row]
        if not code:
            text = (
                f"{_KINDS[kind].value.replace('_', ' ').capitalize()} of "
                f"{gpu_context.place(entity)}: back at the usual rate."
            )
            return self._ended(_KINDS[kind], entity, time, text)
        words, numbers, series = self._errors.describe(self.rows, row, code)
        for what, counter in enumerate(COUNTERS):
            if self._errors.state(code, what) == TREND:
                numbers[f"{counter.words.replace(' ', '_')}_score"] = float(self.rows["score"][what, row])
        summary = f"{gpu_context.place(entity)}: {'; '.join(words)}."
        evidence = Evidence(summary=summary, numbers=numbers, series=tuple(series))
        return self._finding(_KINDS[kind], entity, time, evidence)
