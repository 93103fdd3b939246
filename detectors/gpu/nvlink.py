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
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.gpu.counters import CounterWatch
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.detectors.statistics.poisson_cusum import Counter
from mainstay.probes.core_types import RecommendedAction, Severity

_ACTIVE, _SUPPORTED, _WORST = "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link"
COUNTERS = (
    Counter(name="gpu_nvlink_worst_link_errors_per_second", words="errors of the worst link", rise=1.0, burst=10.0),
    Counter(name="gpu_nvlink_recoveries_total", words="link recoveries", rise=0.5, burst=1.0),
    Counter(name="gpu_nvlink_replays_total", words="replays", rise=10.0, burst=10.0),
    Counter(name="gpu_nvlink_crc_errors_total", words="CRC errors", rise=10.0, burst=10.0),
)
# The statement: the code of the counters, then
_DOWN, _GONE = 256, 512


class NvlinkDetector(ArrayDetector):
    """Says ``nvlink_errors``. Entities are GPUs, groups their cohorts."""

    name = "nvlink"
    kinds = frozenset({FindingKind.NVLINK_ERRORS})
    usual_causes = True
    usual_confidence = 0.95
    usual_action = RecommendedAction.MONITOR
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
        hold = HysteresisConfig(needed=2, of_last=3, calm=config.burst_calm)
        self._errors = CounterWatch(COUNTERS, config.threshold, hold)
        self._cohorts = self._errors.cohorts
        super().reset()

    def _rows(self) -> EntityState:
        rows = self._errors.declare(EntityState()).field("said", 0, np.int16).field("since", np.nan)
        rows.field("active", np.nan).field("best", 0.0).field("worst", np.nan)
        return self._down.declare(rows)

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time, rows = float(samples.t[k]), self.rows
        self._cohorts.follow(samples)
        settled = gpu_context.settled(samples.signal(k, gpu_context.UPTIME), self.config.boot_grace)
        self._step_links(samples.signal(k, _ACTIVE), samples.signal(k, _SUPPORTED), settled, time)
        worst = samples.signal(k, _WORST)
        told = np.isfinite(worst)
        rows["worst"][told] = worst[told]
        down = self._down.on(rows)
        gone = down & (rows["active"] == 0) & (rows["best"] > 0) & (time - rows["since"] >= self.config.gone_seconds)
        code: npt.NDArray[np.int64] = np.where(down, _DOWN, 0) + np.where(gone, _GONE, 0)
        for what, counter in enumerate(COUNTERS):
            rate = samples.signal(k, counter.name)
            code |= self._errors.step(rows, what, rate, counted=settled, judged=settled, time=time)
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

    def _say(self, row: int, code: int, time: float) -> Finding:
        entity, kind = self.rows.entities[row], FindingKind.NVLINK_ERRORS
        where = gpu_context.place(entity)
        if not code:
            return self._ended(kind, entity, time, f"The NVLinks of {where} are as they should be.")
        words, numbers = self._links(row, code)
        errors, counts, series = self._errors.describe(self.rows, row, code)
        worst = float(self.rows["worst"][row])
        if errors and np.isfinite(worst):
            counts["worst_link"] = worst
            errors.append(f"the worst is link {worst:.0f}")
        summary = f"NVLinks of {where}: {'; '.join([*words, *errors])}."
        evidence = Evidence(summary=summary, numbers=numbers | counts, series=tuple(series))
        severity, action = (Severity.CRITICAL, RecommendedAction.RESET_GPU) if code & _GONE else (None, None)
        return self._finding(kind, entity, time, evidence, severity=severity, recommended_action=action)

    def _links(self, row: int, code: int) -> tuple[list[str], dict[str, float]]:
        """Links that are down, in words and numbers."""
        if not code & _DOWN:
            return [], {}
        active, best = gpu_context.nan_to_zero(float(self.rows["active"][row])), float(self.rows["best"][row])
        before = f"of {best:.0f} before" if best > active else "and more at nearly all peers"
        how_long = f", for {self.config.gone_seconds:.0f} s" if code & _GONE else ""
        return [f"{active:.0f} up, {before}{how_long}"], {"links_active": active, "links_best": best}
