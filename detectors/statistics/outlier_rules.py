"""Which signals peers share, how each is compared, and when it is worth a warning: the outlier test's table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.probes.core_types import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRule:
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
    """Beyond this it is a warning, before it information: 62 C among 45 C is odd and harmless."""
    severity: Severity = Severity.WARNING


RULES: dict[str, OutlierRule] = {
    # quantum = what six of which would be worth a word: 12 C hotter than the peers, a clock 6 % lower, ...
    # and worth = where a card is still 10 C from slowing down (H100: 87 C core, 105 C memory)
    "gpu_temperature_celsius": OutlierRule(words="core temperature", side=1, quantum=2.0, busy=True, worth=75.0),
    "gpu_memory_temperature_celsius": OutlierRule(
        words="memory temperature", side=1, quantum=2.0, busy=True, worth=92.0
    ),
    # half of NVIDIA's 15 MHz clock step
    "gpu_sm_clock_hertz": OutlierRule(words="SM clock", side=-1, quantum=7.5e6, share=0.01, busy=True),
    "gpu_memory_clock_hertz": OutlierRule(words="memory clock", side=-1, quantum=7.5e6, share=0.01, busy=True),
    # low power follows from light work as often as from a fault
    "gpu_power_watts": OutlierRule(words="power", side=-1, quantum=5.0, share=0.03, busy=True, severity=Severity.INFO),
    "cpu_steal_ratio": OutlierRule(
        words="share of stolen processor time", side=1, quantum=0.02, kind=FindingKind.CPU_CONTENTION
    ),
    # a checkpoint that is written blocks many
    "processes_blocked": OutlierRule(words="number of blocked processes", side=1, quantum=1.0, severity=Severity.INFO),
    "network_errors_total": OutlierRule(
        words="rate of network errors", side=1, quantum=0.5, kind=FindingKind.NIC_DEGRADED
    ),
}
"""Signals that peers share under any work; memory, disk and load differ by work and are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierConfig:
    """Thresholds of the outlier test, each with its reason."""

    on: float = 6.0
    """Robust z to begin. 3.5e10 tests a day (80k devices x 40 signals, 1 Hz / 8) allow one false alarm a day at
    z = 3.6 three times in a row for independent normal noise; real noise is neither, so 6."""
    off: float = 3.0
    """Robust z below which a sample is calm."""
    of_last: int = 5
    """M: samples looked back."""
    needed: int = 3
    """N: loud samples of the last M to begin: one spike is noise, three of five are a state."""
    calm_samples: int = 30
    """Calm samples in a row that end it: throttling comes and goes within half a minute at 1 Hz."""
    least_cohort: int = 8
    """Valid peers below which no device is judged: a host of eight GPUs; below, z has no usable tail."""
    drawn_peers: int = 2048
    """Members that stand for a larger cohort: its median is then known to 0.03 deviations (``peers``)."""
    least_siblings: int = 3
    """Others of its node at work below which a device has no peer that does the same."""
    busy_ratio: float = 0.5
    """Utilization from which clocks, power and heat are comparable."""
    less_power: float = 0.9
    """Of its siblings' power: a clock held down by a fault draws less, one at the power limit does not."""
    boot_grace: float = 300.0
    """Seconds after boot in which nothing is compared: memory is scrubbed, services start."""
    drawn: int = 32
    """Samples drawn in the evidence; the largest part of the state: 4 bytes each a stream."""
    allowance: float = 1.0
    """k of the self CUSUM, in deviations of the stream's own: half of the least shift worth a word."""
    alarm: float = 12.0
    """h of the self CUSUM: with k = 1 one false alarm in 3.5e10 normal samples (reference ARL)."""
    clip: float = 4.0
    """One sample counts as so many deviations at most: no spike alone passes the self test."""
    learned: int = 64
    """Samples after which a stream has a past. Before, and where it always stood apart, the peers alone judge."""
    memory: int = 256
    """Samples over which the past is averaged: minutes, so that the time of day passes unseen."""
    stuck: int = 60
    """Equal samples in a row that make a sensor stuck..."""
    moving: int = 8
    """...if most of its cohort have moved within so many."""
    false_alarms_a_day: float = 2.0
    """Streams that begin falsely, over all entities and signals: the budget of warnings for 10,000 GPUs."""
    surely: float = 12.0
    """Robust z that passes however heavy the tails: twice ``on``."""
    rules: dict[str, OutlierRule] = field(default_factory=lambda: dict(RULES))


BUSY_SIGNAL = "gpu_utilization_ratio"

_CLOCKS = ("gpu_sm_clock_hertz", "gpu_memory_clock_hertz")


class OutlierRuleArrays:
    """The rules as arrays over their signals."""

    def __init__(self, rules: dict[str, OutlierRule]) -> None:
        self.names, self.rules = tuple(rules), tuple(rules.values())
        self.kinds = [rule.kind for rule in self.rules]
        self.side = [float(rule.side) for rule in self.rules]
        self.quantum = np.array([rule.quantum for rule in self.rules], np.float32)
        self.share = np.array([rule.share for rule in self.rules], np.float32)
        self.work = [rule.busy for rule in self.rules]
        self.cold = [rule.busy and rule.side > 0 for rule in self.rules]
        """Heat: an idle card is left out, one that does not tell its load is compared."""
        self.busy = [rule.busy and rule.side < 0 for rule in self.rules]
        self.clock = [name in _CLOCKS for name in self.names]
        self.power = self.names.index(gpu_context.POWER) if gpu_context.POWER in rules else None
        self.warns = [rule.severity is not Severity.INFO for rule in self.rules]
        self.worth = [-np.inf * rule.side if rule.worth is None else rule.worth for rule in self.rules]
        self._lines: tuple[tuple[str, ...], list[tuple[int, int]]] = ((), [])

    def lines(self, signals: tuple[str, ...]) -> list[tuple[int, int]]:
        """(signal's place in the state, its place in the samples) of each that the samples carry."""
        if self._lines[0] is not signals:
            place = {name: column for column, name in enumerate(signals)}
            self._lines = signals, [(i, place[name]) for i, name in enumerate(self.names) if name in place]
        return self._lines[1]
