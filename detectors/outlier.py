"""A device whose measurement stands apart from its cohort, again and again.

Per signal: robust z within the cohort (median and MAD), the sign that matters, N of the last M samples to begin, and
a long enough calm to end. A cohort too small to have a middle is not judged, and a missing sample counts for neither
side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.base import ArrayDetector, Bools, Floats, Samples
from detectors.finding import Entity, Evidence, Finding, FindingKind, Series
from detectors.rows import NORMAL_MAD, Rows, median
from probes.signals import SIGNALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one signal is compared. ``quantum`` and ``share`` floor the scale: MAD is 0 for a constant counter."""

    side: int
    """+1: high is bad; -1: low is bad."""
    quantum: float
    """Least standard deviation, in the signal's unit."""
    share: float = 0.0
    """The same as a share of the cohort's median."""
    kind: FindingKind = FindingKind.SIGNAL_OUTLIER
    busy: bool = False
    """Compare only devices under load: an idle GPU's low clock and power are no fault."""


RULES: dict[str, Rule] = {
    # quantum = what six of which would be worth a word: 12 C hotter than the peers, a clock 6 % lower, ...
    "gpu_temperature_celsius": Rule(side=1, quantum=2.0),
    "gpu_memory_temperature_celsius": Rule(side=1, quantum=2.0),
    "gpu_sm_clock_hertz": Rule(side=-1, quantum=7.5e6, share=0.01, busy=True),  # half of NVIDIA's 15 MHz clock step
    "gpu_memory_clock_hertz": Rule(side=-1, quantum=7.5e6, share=0.01, busy=True),
    "gpu_power_watts": Rule(side=-1, quantum=5.0, share=0.03, busy=True),
    "gpu_ecc_corrected_total": Rule(side=1, quantum=0.2),
    "gpu_pcie_replay_total": Rule(side=1, quantum=0.5, kind=FindingKind.PCIE_DEGRADED),
    "cpu_steal_ratio": Rule(side=1, quantum=0.02, kind=FindingKind.CPU_CONTENTION),
    "processes_blocked": Rule(side=1, quantum=1.0),
    "network_errors_total": Rule(side=1, quantum=0.5, kind=FindingKind.NIC_DEGRADED),
}
"""Signals that peers share whatever they run; memory, disk and load differ by work and are not compared."""

BUSY_SIGNAL = "gpu_utilization_ratio"

_TAIL_INVERSE = (0.0, 1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 12, 1 / 10, 1 / 8)
_TAIL_FACTOR = (1.0, 1.18, 1.41, 1.57, 2.0, 2.5, 3.1, 4.2)
"""By 1 / cohort size: quantile of robust z at p = 1e-4 over the normal's 3.89, by simulation of normal samples: with
eight peers the MAD itself is so uncertain that z = 16 is as rare as z = 4 in a large cohort."""


class OutlierDetector(ArrayDetector):
    """Robust cross-sectional z with hysteresis, for every signal that ``RULES`` knows.

    Entities are devices (hosts and GPUs), groups their cohorts.
    """

    name = "outlier"
    kinds = frozenset(rule.kind for rule in RULES.values())
    signals = (*RULES, BUSY_SIGNAL)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        on: float = 6.0
        """Robust z to begin. 3.5e10 tests a day (80k devices x 40 signals, 1 Hz / 8) allow one false alarm a day at
        z = 3.6 three times in a row for independent normal noise; real noise is neither, hence 6."""
        off: float = 3.0
        """Robust z below which a sample is calm."""
        of_last: int = 5
        """M: samples looked back."""
        needed: int = 3
        """N: loud samples of the last M to begin: one spike is noise, three of five are a state."""
        calm_samples: int = 30
        """Calm samples in a row that end it: throttling comes and goes within half a minute at 1 Hz."""
        least_cohort: int = 8
        """Valid peers below which nobody is judged: a host of eight GPUs; below, z has no usable tail."""
        busy_ratio: float = 0.5
        """Utilisation from which clocks and power are comparable."""
        drawn: int = 32
        """Samples drawn in the evidence."""

    def __init__(self, config: Config | None = None) -> None:
        self.config: OutlierDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._times = np.full(self.config.drawn, np.nan)
        self._at = 0  # where in the ring of drawn samples the latest one lies

    def _rows(self) -> Rows:
        signals, config = len(RULES), self.config
        rows = Rows().field("loud", fill=False, dtype=np.bool_, lead=(config.of_last, signals))
        rows.field("calm", 0, np.int64, lead=(signals,))
        rows.field("state", fill=False, dtype=np.bool_, lead=(signals,))
        rows.field("x", np.nan, np.float32, lead=(config.drawn, signals))
        return rows.field("peers", np.nan, np.float32, lead=(config.drawn, signals))

    def _held(self, row: int) -> list[FindingKind]:
        kinds = [rule.kind for rule in RULES.values()]
        return list(dict.fromkeys(kinds[s] for s in np.flatnonzero(self.rows["state"][:, row])))

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        lines = np.array([s for s, name in enumerate(_NAMES) if name in samples.signals], dtype=np.intp)
        x = np.array([self._signal(samples, k, _NAMES[s]) for s in lines]).reshape(len(lines), -1)
        idle = ~(self._signal(samples, k, BUSY_SIGNAL) >= self.config.busy_ratio)
        x[np.ix_(_BUSY[lines], idle)] = np.nan
        z, peers = self._compare(samples, x, lines)
        self._remember(float(samples.t[k]), x, peers, lines)
        changed = self._decide(z, lines)
        time = float(samples.t[k])
        return [f for line, row in changed for f in self._say(int(lines[line]), row, float(z[line, row]), time)]

    def _compare(self, samples: Samples, x: Floats, lines: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Signed robust z (positive = bad) and the peers' median, [line, entity]; NaN where nobody can say."""
        z, peers = np.full_like(x, np.nan), np.full_like(x, np.nan)
        for rows in self._members(samples):
            if len(rows) < self.config.least_cohort:
                continue
            group = x[:, rows]
            middle = median(group)
            count = np.count_nonzero(np.isfinite(group), axis=1)
            middle[count < self.config.least_cohort] = np.nan
            floor = np.maximum(_QUANTUM[lines], _SHARE[lines] * np.abs(middle))
            away = group - middle[:, None]
            scale = np.fmax(NORMAL_MAD * median(np.abs(away)) * _tail(count), floor)
            z[:, rows] = away * (_SIDE[lines] / scale)[:, None]
            peers[:, rows] = middle[:, None]
        return z, peers

    def _decide(self, z: Floats, lines: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
        """Count what rows with a sample show, then begin or end; returns the changed (line, row)."""
        rows, config = self.rows, self.config
        valid: Bools = np.isfinite(z)
        loud, calm, state = rows["loud"][:, lines], rows["calm"][lines], rows["state"][lines]
        loud = np.where(valid, np.concatenate((loud[1:], (z >= config.on)[None])), loud)
        calm = np.where(valid, np.where(z < config.off, calm + 1, 0), calm)
        begins: Bools = np.count_nonzero(loud, axis=0) >= config.needed
        after = np.where(state, calm < config.calm_samples, begins & valid)
        rows["loud"][:, lines], rows["calm"][lines], rows["state"][lines] = loud, calm, after
        return [(int(line), int(row)) for line, row in np.argwhere(after != state)]

    def _remember(self, time: float, x: Floats, peers: Floats, lines: npt.NDArray[np.intp]) -> None:
        self._at = (self._at + 1) % self.config.drawn
        self._times[self._at] = time
        for name, now in (("x", x), ("peers", peers)):
            self.rows[name][self._at] = np.nan
            self.rows[name][self._at, lines] = now

    def _say(self, signal: int, row: int, z: float, time: float) -> list[Finding]:
        name, rule = _NAMES[signal], RULES[_NAMES[signal]]
        entity = self.rows.entities[row]
        active = bool(self.rows["state"][signal, row])
        if not active and rule.kind in self._held(row):
            return []  # another signal still says the same thing
        if not active:
            evidence = Evidence(summary=f"{name} of {_place(entity)} is back among its peers.")
            return [self._finding(rule.kind, entity, time, evidence, active=False)]
        evidence = self._evidence(signal, row, z)
        return [self._finding(rule.kind, entity, time, evidence, confidence=0.9)]

    def _evidence(self, signal: int, row: int, z: float) -> Evidence:
        name, rule = _NAMES[signal], RULES[_NAMES[signal]]
        order = np.arange(self._at + 1, self._at + 1 + self.config.drawn) % self.config.drawn  # oldest first
        y, peers = self.rows["x"][order, signal, row], self.rows["peers"][order, signal, row]
        drawn = np.isfinite(y) & np.isfinite(peers)
        unit = SIGNALS[name].unit + ("/s" if SIGNALS[name].kind == "counter" else "")
        value, middle = float(y[-1]), float(peers[-1])
        series = Series(
            name=name,
            unit=unit,
            x=tuple(float(t) for t in self._times[order][drawn]),
            y=tuple(float(v) for v in y[drawn]),
            peers=tuple(float(v) for v in peers[drawn]),
        )
        word = "above" if rule.side > 0 else "below"
        return Evidence(
            summary=f"{name} of {_place(self.rows.entities[row])} is {value:.4g} {unit}, "
            f"{word} its cohort's {middle:.4g} {unit} in {self.config.needed} of {self.config.of_last} samples.",
            numbers={"value": value, "peers_median": middle, "z": z},
            series=(series,),
        )


_NAMES = tuple(RULES)
_SIDE = np.array([rule.side for rule in RULES.values()], dtype=np.float64)
_QUANTUM = np.array([rule.quantum for rule in RULES.values()])
_SHARE = np.array([rule.share for rule in RULES.values()])
_BUSY = np.array([rule.busy for rule in RULES.values()])


def _tail(count: Floats) -> Floats:
    """How much wider the scale must be for a cohort of this size."""
    factor: Floats = np.interp(1.0 / np.maximum(count, 1), _TAIL_INVERSE, _TAIL_FACTOR)
    return factor


def _place(entity: Entity) -> str:
    return " ".join(part for part in (entity.node, entity.device) if part)
