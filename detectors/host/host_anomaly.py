"""A node whose signals together are not as usual: none may be far off, but they no longer go with each other.

Each minute the means of a host's signals, less the median of its cohort's in that minute (what all do together is no
anomaly), are scored by the node's own past (``statistics.node_models``) and judged by how rare that is for it and for
the fleet (``statistics.node_anomalies``). Two of three minutes beyond the threshold begin a finding. The threshold
follows a budget of findings a day for the whole fleet, true ones included, and is tightened when there are more.

It says that something changed, never what is broken: always information, which opens no incident. A job that begins or
ends on one node of a cohort changes it, too. A change that stays is the node's usual state after two days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

import numpy as np

from mainstay.detectors.base import Array, ArrayDetector, DetectorState, DetectorStatus, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind, join_names
from mainstay.detectors.host.checks import host_name
from mainstay.detectors.host.gpu_extremes import EXTREMES
from mainstay.detectors.series import Drawn
from mainstay.detectors.statistics.node_anomalies import START, Judged, NodeAnomalies, NodeAnomalyConfig
from mainstay.detectors.statistics.node_models import VIEWS
from mainstay.probes.core_types import Severity

_MINUTE, _MINUTES_A_DAY = 60.0, 1440.0
_UPTIME = "uptime_seconds"
LEAST: dict[str, float] = {
    # Deviation below which a signal does not vary: ratios as they are, all others as logarithms of 1 + value.
    "cpu_utilization_ratio": 0.02,
    "memory_used_ratio": 0.01,
    "load_1m": 0.1,
    "processes_blocked": 0.2,
    "disk_read_bytes_total": 0.2,
    "disk_write_bytes_total": 0.2,
    "network_receive_bytes_total": 0.2,
    "network_transmit_bytes_total": 0.2,
    "context_switches_total": 0.1,
    "gpu_temperature_celsius": 0.03,
    "gpu_memory_temperature_celsius": 0.03,
    "gpu_memory_used_bytes": 0.02,
    "gpu_utilization_ratio": 0.02,
    "gpu_power_watts": 0.05,
    "gpu_sm_clock_hertz": 0.01,
}
_SIGNALS = tuple(LEAST)
_LOGGED = np.array([not name.endswith("_ratio") for name in _SIGNALS])[:, None]


class HostAnomalyDetector(ArrayDetector):
    """Says ``signal_outlier`` of a host, with the signals that contribute most. Entities are hosts."""

    name = "host_anomaly"
    kinds = frozenset({FindingKind.SIGNAL_OUTLIER})
    signals = (*(name for name in _SIGNALS if name not in EXTREMES), _UPTIME)
    gpu_signals = tuple(EXTREMES)
    settling_seconds = 6 * 3600.0  # a new process learns for four hours before its silence means anything

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        learned_minutes: int = 240
        """Minutes of a node before it is judged: sixteen samples and more for each of fifteen signals."""
        memory_minutes: float = 20_160.0
        """Of a node's first that are its reference: two weeks, and what comes later is learned thirty times slower."""
        least_peers: int = 3
        """Others of the cohort, below which a node is compared with its own past alone."""
        findings_a_day: float = 2.0
        """That begin in the whole fleet, true ones included: more are not looked at."""
        calm: float = 2.0
        """Deviations below which a node is as usual."""
        calm_minutes: int = 5
        """Minutes in a row as usual that end a finding."""
        accepted_minutes: int = 2880
        """After which a finding that stands is learned as fast as in the reference: two days."""
        boot_grace_seconds: float = 600.0

    config: Config

    def reset(self) -> None:
        c = self.config
        config = NodeAnomalyConfig(
            learned=c.learned_minutes,
            memory=c.memory_minutes,
            rate=c.findings_a_day / _MINUTES_A_DAY,
            usual=c.calm,
            calm=c.calm_minutes,
            accepted=c.accepted_minutes,
        )
        self._anomalies = NodeAnomalies(np.array([*LEAST.values()]), config)
        self._drawn = Drawn("distance")
        self._minute = np.nan
        self._before, self._awaited = EntityState(), set[Entity]()
        super().reset()

    def _rows(self) -> EntityState:
        lead = (len(_SIGNALS),)
        rows = EntityState().field("sum", 0.0, lead=lead).field("count", 0, np.int32, lead=lead)
        return self._drawn.declare(self._anomalies.declare(rows))

    def _held(self, row: int) -> list[FindingKind]:
        return [*self.kinds] if self._anomalies.latch.on(self.rows)[row] else []

    def learned(self) -> dict[str, Array]:
        hosts = np.array([(entity.node, entity.device) for entity in self.rows.entities], np.str_).reshape(-1, 2)
        anomalies = self._anomalies
        clock = np.array([self._minute, anomalies.models.samples, anomalies.budget.shift, self._drawn.at])
        shared = {"hosts": hosts, "clock": clock, "drawn": self._drawn.times}
        return {"signals": np.array(_SIGNALS), **shared, **self.rows.arrays}

    def restore_learned(self, learned: Mapping[str, Array]) -> None:
        if learned.get("signals", np.zeros(0)).tolist() != [*_SIGNALS]:
            raise ValueError("it was learned of other signals")
        before = EntityState.stored(tuple(Entity(node=n, device=d) for n, d in learned["hosts"].tolist()), learned)
        self.rows.recall(before)  # checks that the fields are the same
        self._minute, samples, self._anomalies.budget.shift, at = map(float, learned["clock"])
        self._anomalies.models.samples, self._drawn.at = int(samples), int(at)
        self._drawn.times[...] = learned["drawn"]
        self._before, self._awaited = before, set(before.entities)

    def _follow(self, samples: Samples) -> list[Finding]:
        """Nodes that come back after a restart, at once or one by one, continue from what was learned of them."""
        ended = super()._follow(samples)
        if new := self._awaited.intersection(self.rows.entities):
            self.rows.recall(self._before, new)
            self._awaited -= new
        return ended

    def status(self) -> DetectorStatus:
        if not self.rows.entities:
            return DetectorStatus(state=DetectorState.IDLE)
        learned = int(np.count_nonzero(self.rows["age"] >= self.config.learned_minutes))
        numbers = {"nodes": float(len(self.rows.entities)), "learned": float(learned)}
        numbers["tightened"] = exp(-self._anomalies.budget.shift)
        if not learned:
            return DetectorStatus(
                state=DetectorState.LEARNING,
                reason=f"No node has {self.config.learned_minutes} minutes of samples yet.",
                numbers=numbers,
            )
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        t = float(samples.t[k])
        minute = t // _MINUTE
        before, self._minute = self._minute, minute
        found = self._judge(samples, t) if np.isfinite(before) and minute != before else []
        x = np.stack([samples.signal(k, name) for name in _SIGNALS])
        x[:, samples.signal(k, _UPTIME) < self.config.boot_grace_seconds] = np.nan
        known = np.isfinite(x)
        self.rows["sum"] += np.where(known, x, 0.0)
        self.rows["count"] += known
        return found

    def _judge(self, samples: Samples, t: float) -> list[Finding]:
        """Score the minute that is over."""
        x = self._residuals(samples)
        judged = self._anomalies.step(self.rows, x)
        self._drawn.note(self.rows, t, np.fmax.reduce(judged.scores, axis=0))
        return [self._say(row, x[:, row], judged, t) for row in judged.changed.tolist()]

    def _residuals(self, samples: Samples) -> Floats:
        """[S, E] means of the minute less the cohort's median; an own past has no cohort where that is too small."""
        rows = self.rows
        x: Floats = np.where(rows["count"] > 0, rows["sum"] / np.maximum(rows["count"], 1), np.nan)
        rows["sum"], rows["count"] = np.zeros_like(rows["sum"]), np.zeros_like(rows["count"])
        x = np.where(_LOGGED, np.log1p(np.maximum(x, 0.0)), x)
        for members in self._members(samples):
            values = x[:, members]
            enough = np.count_nonzero(np.isfinite(values), axis=1) > self.config.least_peers
            x[:, members] = values - np.where(enough, median(values), 0.0)[:, None]
        return x

    def _say(self, row: int, x: Floats, judged: Judged, t: float) -> Finding:
        (kind,), entity, anomalies = self.kinds, self.rows.entities[row], self._anomalies
        if not anomalies.latch.on(self.rows)[row]:
            return self._ended(kind, entity, t, f"The signals of {host_name(entity)} are as usual again.")
        scores, chance = judged.scores[:, row], float(judged.chance[row])
        parts = anomalies.models.culprits(self.rows, x, row)
        order = np.argsort(-parts, kind="stable")[:3]
        names = [_SIGNALS[i] for i in order]
        view = VIEWS[int(np.argmax(scores))]
        # What the budget expects of healthy nodes against this one: at the threshold as likely as not.
        expected = chance * len(self.rows.entities) * len(VIEWS) / anomalies.budget.rate
        numbers = {"distance": float(scores.max()), "chance": float(f"{chance:.0e}")}  # no more of a tail is known
        numbers |= {name: float(parts[i]) for name, i in zip(names, order, strict=True)}
        return self._finding(
            kind,
            entity,
            t,
            Evidence(
                summary=f"The signals of {host_name(entity)} together differ from their usual {view}, "
                f"most of all {join_names(names)}.",
                numbers={name: float(f"{value:.4g}") for name, value in numbers.items()},
                series=self._drawn.series(self.rows, row, unit="1", threshold=START),
            ),
            severity=Severity.INFO,
            confidence=round(min(0.9, max(0.3, 1.0 - 0.5 * expected)), 3),
        )
