"""NVLinks that are down, and links whose errors come faster than they did and than anywhere else.

Down is what was up before, or what is up at nearly all peers; a card without a bridge never had a link and misses none,
and after a boot links train for minutes. Errors are judged by their velocity: 505 recoveries on one link of 5,760, all
others at zero, came five days before a rack fell (marin#8934), and no threshold would have shown it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.correlation.root_causes import USUAL
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.detectors.statistics.poisson_cusum import Counter, PoissonCusum
from mainstay.probes.core_types import RecommendedAction, Severity

_ACTIVE, _SUPPORTED, _WORST = "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link"
COUNTERS = (
    Counter(name="gpu_nvlink_worst_link_errors_per_second", rise=1.0, burst=10.0),
    Counter(name="gpu_nvlink_recoveries_total", rise=0.5, burst=1.0),
    Counter(name="gpu_nvlink_replays_total", rise=10.0, burst=10.0),
    Counter(name="gpu_nvlink_crc_errors_total", rise=10.0, burst=10.0),
)
_WORDS = ("errors of the worst link", "link recoveries", "replays", "CRC errors")
# The statement: two bits for each counter, then
_DOWN, _GONE = 256, 512


class NvlinkDetector(ArrayDetector):
    """Says ``nvlink_errors``. Entities are GPUs, groups their cohorts."""

    name = "nvlink"
    kinds = frozenset({FindingKind.NVLINK_ERRORS})
    signals = (_ACTIVE, _SUPPORTED, _WORST, *(counter.name for counter in COUNTERS))
    host_signals = (gpu_context.UPTIME,)
    settling_seconds = 3600.0  # a trend is not seen again in the first hour after a restart

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        needed: int = 3
        """Readings (10 s apart) in a row: a driver that is loaded again finds its links down in the first."""
        up_readings: int = 3
        """Readings with all links that end it."""
        peers_share: float = 0.8
        """When so many peers have more links, a card that never had them lacks them."""
        peers_least: int = 8
        gone_seconds: float = 300.0
        """All links of a card down for so long take it out: a node that shuts down is silent by then."""
        threshold: float = 21.0
        """As in ``error_drift``: less than one false alarm in two weeks for 10,000 cards."""
        burst_calm: int = 60
        boot_grace: float = 600.0
        """214 of 288 nodes said NVLINK_DOWN in 3.5 weeks, all of them planned reboots (NVSentinel#1701)."""

    config: Config

    def reset(self) -> None:
        config = self.config
        self._down = Hysteresis(
            "down", HysteresisConfig(needed=config.needed, of_last=config.needed, calm=config.up_readings)
        )
        self._drift = PoissonCusum(COUNTERS, config.threshold)
        hold = HysteresisConfig(needed=2, of_last=3, calm=config.burst_calm)
        self._bursts = tuple(Hysteresis(f"burst{i}", hold) for i in range(len(COUNTERS)))
        self._cohorts = gpu_context.Cohorts()
        super().reset()

    def _rows(self) -> EntityState:
        rows = self._drift.declare(EntityState()).field("said", 0, np.int16).field("since", np.nan)
        rows.field("active", np.nan).field("best", 0.0).field("worst", np.nan).field("rate", np.nan, lead=(4,))
        for latch in (self._down, *self._bursts):
            latch.declare(rows)
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        return [FindingKind.NVLINK_ERRORS] if self.rows["said"][row] else []

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time, rows = float(samples.t[k]), self.rows
        self._cohorts.follow(samples)
        settled = gpu_context.settled(self._signal(samples, k, gpu_context.UPTIME), self.config.boot_grace)
        self._step_links(self._signal(samples, k, _ACTIVE), self._signal(samples, k, _SUPPORTED), settled, time)
        worst = self._signal(samples, k, _WORST)
        told = np.isfinite(worst)
        rows["worst"][told] = worst[told]
        down = self._down.on(rows)
        gone = down & (rows["active"] == 0) & (rows["best"] > 0) & (time - rows["since"] >= self.config.gone_seconds)
        code: npt.NDArray[np.int64] = np.where(down, _DOWN, 0) + np.where(gone, _GONE, 0)
        for what, counter in enumerate(COUNTERS):
            errors = self._step_errors(what, self._signal(samples, k, counter.name), settled, time)
            code = code | errors << (2 * what)
        changed = np.flatnonzero(code != rows["said"])
        rows["said"] = code
        return [self._say(int(row), int(code[row]), time) for row in changed]

    def _step_links(self, active: Floats, supported: Floats, settled: Bools, time: float) -> None:
        rows = self.rows
        told = np.isfinite(active)
        if not told.any():
            return
        rows["active"][told] = active[told]
        judged = told & settled
        best = rows["best"]
        fewer = judged & (active < best)
        lacking = judged & ~fewer & (active < supported)
        if lacking.any():
            fewer |= lacking & self._behind(active, lacking)
        best[:] = np.where(judged, np.fmax(best, active), best)
        changed = self._down.step(rows, fewer, told & ~fewer)
        rows["since"][changed] = np.where(self._down.on(rows)[changed], time, np.nan)

    def _behind(self, active: Floats, lacking: Bools) -> Bools:
        """Whose peers nearly all have more links."""
        last = self.rows["active"]
        known = self._cohorts.total(np.isfinite(last))
        behind = np.zeros_like(lacking)
        for links in np.unique(active[lacking]):  # a handful of values at most
            more = self._cohorts.total(last > links)
            behind |= (active == links) & (known > self.config.peers_least) & (more >= self.config.peers_share * known)
        return behind

    def _step_errors(self, what: int, rate: Floats, settled: Bools, time: float) -> npt.NDArray[np.int64]:
        """0 fine, 1 a trend, 2 a burst."""
        rows, burst = self.rows, COUNTERS[what].burst
        self._drift.step(rows, what, rate, settled, time)
        self._drift.close(rows, what, self._cohorts, time)
        bursts = settled & (rate >= burst)
        rows["rate"][what][bursts] = rate[bursts]
        self._bursts[what].step(rows, bursts, rate < burst)
        return np.where(self._bursts[what].on(rows), 2, rows["drifts"][what].astype(np.int64))

    def _say(self, row: int, code: int, time: float) -> Finding:
        entity, kind = self.rows.entities[row], FindingKind.NVLINK_ERRORS
        where = gpu_context.place(entity)
        if not code:
            return self._ended(kind, entity, time, f"The NVLinks of {where} are as they should be.")
        words, numbers = self._words(row, code)
        which = [what for what in range(len(COUNTERS)) if code >> (2 * what) & 3]
        series = tuple(line for what in which for line in self._drift.series(self.rows, what, row))
        evidence = Evidence(summary=f"NVLinks of {where}: {'; '.join(words)}.", numbers=numbers, series=series)
        gone = bool(code & _GONE)
        severity = Severity.CRITICAL if gone else Severity.WARNING
        recommended_action = RecommendedAction.RESET_GPU if gone else RecommendedAction.MONITOR
        return self._finding(
            kind,
            entity,
            time,
            evidence,
            severity=severity,
            recommended_action=recommended_action,
            confidence=0.95,
            cause=USUAL.get(kind),
        )

    def _words(self, row: int, code: int) -> tuple[list[str], dict[str, float]]:
        rows = self.rows
        words: list[str] = []
        numbers: dict[str, float] = {}
        if code & _DOWN:
            active, best = gpu_context.nan_to_zero(float(rows["active"][row])), float(rows["best"][row])
            before = f"of {best:.0f} before" if best > active else "and more at nearly all peers"
            words.append(
                f"{active:.0f} up, {before}" + (f", for {self.config.gone_seconds:.0f} s" if code & _GONE else "")
            )
            numbers |= {"links_active": active, "links_best": best}
        for what in range(len(COUNTERS)):
            state, name = code >> (2 * what) & 3, _WORDS[what].replace(" ", "_")
            if state == 2:
                numbers[f"{name}_per_second"] = rate = gpu_context.nan_to_zero(float(rows["rate"][what, row]))
                words.append(f"{rate:.4g} {_WORDS[what]} a second")
            elif state:
                trend = self._drift.trend(rows, what, row, self._cohorts)
                words.append(trend.describe_trend(_WORDS[what]))
                numbers |= trend.numbers(name)
        if code & (_DOWN - 1) and np.isfinite(rows["worst"][row]):
            numbers["worst_link"] = float(rows["worst"][row])
            words.append(f"the worst is link {numbers['worst_link']:.0f}")
        return words, numbers
