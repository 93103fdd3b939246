"""A device whose measurement stands apart from its cohort, again and again.

Per signal: robust z within the cohort (median and MAD), the sign that matters, N of the last M samples to begin, and
a long enough calm to end. A cohort too small to have a middle is not judged, and a missing sample counts for neither
side. Cohorts run different jobs, the GPUs of a node mostly the same one: what depends on the work is compared with
both, and without siblings at work it is information. A host that has just booted is not judged.

Corrected errors of memory and PCIe are not here: ``drift`` owns them, ``pcie`` and ``nvlink`` the links. So each kind
of finding about a GPU has one owner, but for ``pcie_degraded``, of which two detectors are independent witnesses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors import gpu
from detectors.base import ArrayDetector, Bools, Floats, Samples
from detectors.finding import Entity, Evidence, Finding, FindingKind, Series
from detectors.rows import NORMAL_MAD, Rows, median
from probes.signals import SIGNALS
from probes.words import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How one signal is compared. ``quantum`` and ``share`` floor the scale: MAD is 0 for a constant counter."""

    words: str
    """What people call it."""
    side: int
    """+1: high is bad; -1: low is bad."""
    quantum: float
    """Least standard deviation, in the signal's unit."""
    share: float = 0.0
    """The same as a share of the cohort's median."""
    kind: FindingKind = FindingKind.SIGNAL_OUTLIER
    busy: bool = False
    """It depends on the work: compare only devices not known to be idle, with their siblings, too."""
    worth: float | None = None
    """Beyond this it is a warning, before it information: 62 C among 45 C is odd and harms nobody."""
    severity: Severity = Severity.WARNING


RULES: dict[str, Rule] = {
    # quantum = what six of which would be worth a word: 12 C hotter than the peers, a clock 6 % lower, ...
    # and worth = where a card is still 10 C from slowing down (H100: 87 C core, 105 C memory)
    "gpu_temperature_celsius": Rule(words="core temperature", side=1, quantum=2.0, busy=True, worth=75.0),
    "gpu_memory_temperature_celsius": Rule(words="memory temperature", side=1, quantum=2.0, busy=True, worth=92.0),
    # half of NVIDIA's 15 MHz clock step
    "gpu_sm_clock_hertz": Rule(words="SM clock", side=-1, quantum=7.5e6, share=0.01, busy=True),
    "gpu_memory_clock_hertz": Rule(words="memory clock", side=-1, quantum=7.5e6, share=0.01, busy=True),
    # low power follows from light work as often as from a fault
    "gpu_power_watts": Rule(words="power", side=-1, quantum=5.0, share=0.03, busy=True, severity=Severity.INFO),
    "cpu_steal_ratio": Rule(
        words="share of stolen processor time", side=1, quantum=0.02, kind=FindingKind.CPU_CONTENTION
    ),
    # a checkpoint that is written blocks many
    "processes_blocked": Rule(words="number of blocked processes", side=1, quantum=1.0, severity=Severity.INFO),
    "network_errors_total": Rule(words="rate of network errors", side=1, quantum=0.5, kind=FindingKind.NIC_DEGRADED),
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
    host_signals = (gpu.UPTIME,)

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
        least_siblings: int = 3
        """Others of its node at work below which a device has nobody who does the same."""
        busy_ratio: float = 0.5
        """Utilisation from which clocks, power and heat are comparable."""
        less_power: float = 0.9
        """Of its siblings' power: a clock held down by a fault draws less, one at the power limit does not."""
        boot_grace: float = 300.0
        """Seconds after boot in which nothing is compared: memory is scrubbed, services start."""
        drawn: int = 32
        """Samples drawn in the evidence."""

    def __init__(self, config: Config | None = None) -> None:
        self.config: OutlierDetector.Config = config or self.Config()
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._times = np.full(self.config.drawn, np.nan)
        self._at = 0  # where in the ring of drawn samples the latest one lies
        self._siblings = gpu.Siblings()

    def _rows(self) -> Rows:
        signals, config = len(RULES), self.config
        rows = Rows().field("loud", 0, np.uint32, lead=(signals,))  # the last samples' verdicts as bits
        rows.field("calm", 0, np.int32, lead=(signals,))
        rows.field("state", fill=False, dtype=np.bool_, lead=(signals,))
        rows.field("grave", fill=False, dtype=np.bool_, lead=(signals,))
        rows.field("x", np.nan, np.float32, lead=(config.drawn, signals))
        return rows.field("peers", np.nan, np.float32, lead=(config.drawn, signals))

    def _held(self, row: int) -> list[FindingKind]:
        kinds = [rule.kind for rule in RULES.values()]
        return list(dict.fromkeys(kinds[s] for s in np.flatnonzero(self.rows["state"][:, row])))

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        lines = np.array([s for s, name in enumerate(_NAMES) if name in samples.signals], dtype=np.intp)
        x = np.array([self._signal(samples, k, _NAMES[s]) for s in lines]).reshape(len(lines), -1)
        load = self._signal(samples, k, BUSY_SIGNAL)
        x[np.ix_(_COLD[lines], load < self.config.busy_ratio)] = np.nan
        x[np.ix_(_BUSY[lines], ~(load >= self.config.busy_ratio))] = np.nan
        x[:, ~gpu.settled(self._signal(samples, k, gpu.UPTIME), self.config.boot_grace)] = np.nan
        z, peers, scale = self._compare(samples, x, lines)
        z, known = self._compare_siblings(samples, x, z, scale, lines)
        time = float(samples.t[k])
        self._remember(time, x, peers, lines)
        changed = self._decide(z, lines)
        changed += self._weigh(samples, x, known, lines, changed)
        return [f for line, row in changed for f in self._say(int(lines[line]), row, float(z[line, row]), time)]

    def _compare(self, samples: Samples, x: Floats, lines: npt.NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Signed robust z (positive = bad), the peers' median and scale, [line, entity]; NaN where nobody can say."""
        z, peers, scales = (np.full_like(x, np.nan) for _ in range(3))
        for members in self._members(samples):
            if len(members) < self.config.least_cohort:
                continue
            rows = slice(None) if len(members) == x.shape[1] else members  # one cohort is the usual case: no copies
            group = x[:, rows]
            middle = median(group)
            count = np.count_nonzero(np.isfinite(group), axis=1)
            middle[count < self.config.least_cohort] = np.nan
            floor = np.maximum(_QUANTUM[lines], _SHARE[lines] * np.abs(middle))
            away = group - middle[:, None]
            scale = np.fmax(NORMAL_MAD * median(np.abs(away)) * _tail(count), floor)
            z[:, rows] = away * (_SIDE[lines] / scale)[:, None]
            peers[:, rows], scales[:, rows] = middle[:, None], scale[:, None]
        return z, peers, scales

    def _compare_siblings(
        self, samples: Samples, x: Floats, z: Floats, scale: Floats, lines: npt.NDArray[np.intp]
    ) -> tuple[Floats, Bools]:
        """Of what depends on the work: the lesser z of cohort and siblings; and where siblings could be asked."""
        known = np.broadcast_to(~_WORK[lines][:, None], z.shape).copy()
        for line in np.flatnonzero(_WORK[lines]):
            odd = np.flatnonzero(z[line] >= self.config.off)
            if not len(odd):
                continue
            others = self._siblings.of(samples)[odd]
            values = np.where(others >= 0, x[line, others], np.nan)
            asked = np.count_nonzero(np.isfinite(values), axis=1) >= self.config.least_siblings
            away = (x[line, odd] - median(values)) * _SIDE[lines][line] / scale[line, odd]
            z[line, odd] = np.where(asked, np.minimum(z[line, odd], away), z[line, odd])
            known[line, odd] = asked
        return z, known

    def _unexplained(self, samples: Samples, x: Floats, lines: npt.NDArray[np.intp]) -> Bools:
        """A low clock at a power like the siblings' is a thirsty chip at its power limit, as some chips are."""
        fine = np.ones(x.shape, np.bool_)
        power = np.flatnonzero(lines == _NAMES.index(gpu.POWER))
        for line in np.flatnonzero(np.isin(lines, _CLOCKS)):
            low = np.flatnonzero(self.rows["state"][lines[line]])
            if not len(low):
                continue
            fine[line, low] = False
            if len(power):
                others = self._siblings.of(samples)[low]
                usual = median(np.where(others >= 0, x[power[0], others], np.nan))
                fine[line, low] = x[power[0], low] < self.config.less_power * usual
        return fine

    def _weigh(
        self, samples: Samples, x: Floats, known: Bools, lines: npt.NDArray[np.intp], changed: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Note what is worth a warning; returns what has become so without having changed otherwise."""
        state, grave = self.rows["state"][lines], self.rows["grave"][lines]
        if not state.any() and not grave.any():
            return []
        side = _SIDE[lines][:, None]
        known &= self._unexplained(samples, x, lines)
        worth = known & _WARNS[lines][:, None] & ~(x * side < _WORTH[lines][:, None] * side)
        after = state & (grave | (worth & np.isfinite(x)))
        self.rows["grave"][lines] = after
        told = set(changed)
        return [(int(line), int(row)) for line, row in np.argwhere(after & ~grave) if (line, row) not in told]

    def _decide(self, z: Floats, lines: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
        """Count what rows with a sample show, then begin or end; returns the changed (line, row)."""
        rows, config = self.rows, self.config
        valid: Bools = np.isfinite(z)
        loud, calm, state = rows["loud"][lines], rows["calm"][lines], rows["state"][lines]
        latest = ((loud << np.uint32(1)) | (z >= config.on)) & np.uint32(2**config.of_last - 1)
        loud = np.where(valid, latest, loud)
        calm = np.where(valid, np.where(z < config.off, calm + 1, 0), calm)
        begins: Bools = np.bitwise_count(loud) >= config.needed
        after = np.where(state, calm < config.calm_samples, begins & valid)
        rows["loud"][lines], rows["calm"][lines], rows["state"][lines] = loud, calm, after
        return [(int(line), int(row)) for line, row in np.argwhere(after != state)]

    def _remember(self, time: float, x: Floats, peers: Floats, lines: npt.NDArray[np.intp]) -> None:
        self._at = (self._at + 1) % self.config.drawn
        self._times[self._at] = time
        for name, now in (("x", x), ("peers", peers)):
            self.rows[name][self._at] = np.nan
            self.rows[name][self._at, lines] = now

    def _say(self, signal: int, row: int, z: float, time: float) -> list[Finding]:
        rule = RULES[_NAMES[signal]]
        entity = self.rows.entities[row]
        active = bool(self.rows["state"][signal, row])
        if not active and rule.kind in self._held(row):
            return []  # another signal still says the same thing
        if not active:
            evidence = Evidence(summary=f"The {rule.words} of {_place(entity)} is back among its peers.")
            return [self._finding(rule.kind, entity, time, evidence, active=False)]
        alike = [i for i, other in enumerate(RULES.values()) if other.kind is rule.kind]
        grave = bool(self.rows["grave"][alike, row].any())  # one finding speaks for all signals of its kind
        severity = Severity.WARNING if grave else Severity.INFO
        return [
            self._finding(rule.kind, entity, time, self._evidence(signal, row, z), severity=severity, confidence=0.9)
        ]

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
            summary=f"The {rule.words} of {_place(self.rows.entities[row])} is {_spoken(value, unit)}, "
            f"{word} its cohort's {_spoken(middle, unit)}, "
            f"in {self.config.needed} of {self.config.of_last} samples.",
            numbers={"value": value, "peers_median": middle, "z": z},
            series=(series,),
        )


_NAMES = tuple(RULES)
_SIDE = np.array([rule.side for rule in RULES.values()], dtype=np.float64)
_QUANTUM = np.array([rule.quantum for rule in RULES.values()])
_SHARE = np.array([rule.share for rule in RULES.values()])
_WORK = np.array([rule.busy for rule in RULES.values()])
_COLD = np.array([rule.busy and rule.side > 0 for rule in RULES.values()])
"""Heat: an idle card is left out, one that does not tell its load is compared."""
_BUSY = _WORK & ~_COLD
_CLOCKS = [_NAMES.index(name) for name in ("gpu_sm_clock_hertz", "gpu_memory_clock_hertz")]
_WARNS = np.array([rule.severity is not Severity.INFO for rule in RULES.values()])
_WORTH = np.array([-np.inf * rule.side if rule.worth is None else rule.worth for rule in RULES.values()])


def _spoken(value: float, unit: str) -> str:
    """A value as people say it: ``1.32 GHz``, ``88 C``, ``0.3``."""
    if unit == "Hz":
        return f"{value / 1e9:.3g} GHz"
    return f"{value:.3g} {unit}".removesuffix(" 1").replace(" 1/s", " a second")


def _tail(count: Floats) -> Floats:
    """How much wider the scale must be for a cohort of this size."""
    factor: Floats = np.interp(1.0 / np.maximum(count, 1), _TAIL_INVERSE, _TAIL_FACTOR)
    return factor


def _place(entity: Entity) -> str:
    return " ".join(part for part in (entity.node, entity.device) if part)
