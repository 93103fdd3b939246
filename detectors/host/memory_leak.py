"""Host memory that leaks: a minimum that keeps rising, with any load of jobs above it.

Only the least memory in use within a block of time is looked at, at two scales (two hours and six hours). A leak makes
nearly every block's floor higher than the one before. A job that starts is one large step, and the median of the steps
does not see it; a sawtooth (a garbage collector, batches) comes back to its floor, so that the first and the last third
of the blocks have the same one. A minimum that rises where it has been before is a slow tooth or a job like the last
one, and no news. Used memory excludes what the kernel can take back (MemAvailable), so that caches that fill are not
seen.

A leak is information until it is about to end the job: then, and only when memory is nearly full already, a warning.
Jobs that read a data set into memory leak for all that can be seen from outside, but they stop in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Array, ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.host.checks import host_name
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import RecommendedAction, Severity

_USED, _SHARE, _UPTIME = "memory_used_bytes", "memory_used_ratio", "uptime_seconds"
_CALM, _INFO, _WARNING = 0, 1, 2
_GRADE = {
    _INFO: (Severity.INFO, RecommendedAction.MONITOR),
    _WARNING: (Severity.WARNING, RecommendedAction.RESTART_JOB),
}
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class TrendScale:
    """Blocks of time and how many of them are looked at."""

    seconds: float
    blocks: int
    informs: bool
    """Whether it speaks before memory is nearly full."""


class MemoryDetector(ArrayDetector):
    """Says ``memory_leak`` with the time that is left. Entities are hosts."""

    name = "memory_leak"
    kinds = frozenset({FindingKind.MEMORY_LEAK})
    usual_causes = True
    usual_confidence = 0.8
    signals = (_USED, _SHARE, _UPTIME)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        scales: tuple[TrendScale, ...] = (TrendScale(120.0, 60, informs=False), TrendScale(600.0, 36, informs=True))
        """Jobs read their data for an hour and more, so that less than two hours prove nothing; six hours find what
        ends within days."""
        rising: float = 0.9
        """Share of the steps that go up: 32 of 35 by chance alone is 2e-7, and a floor's steps are anticorrelated."""
        known: float = 0.85
        """Share of the steps that are known: what was not measured proves nothing."""
        least_rise: float = 0.01
        """Rise over all blocks as a share of the memory: less is noise of daemons, and far from any end."""
        steady: float = 0.5
        """Rise of the floor from the first to the last third, over what the median step makes of it: 1 for a line,
        0 for a sawtooth."""
        warn_seconds: float = 3600.0
        """Time left from which it is a warning: enough to checkpoint the job and start it again."""
        warn_ratio: float = 0.9
        """And memory in use: many jobs grow for hours and stop."""
        boot_grace_seconds: float = 600.0
        calm_blocks: int = 5
        """Blocks in a row without a rising minimum that end it."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._block = np.full(len(self.config.scales), np.nan)
        self._times = [np.full(scale.blocks, np.nan) for scale in self.config.scales]

    def _rows(self) -> EntityState:
        scales = self.config.scales
        rows = EntityState().field("low", np.nan, lead=(len(scales),)).field("said", _CALM, np.int8)
        rows.field("total", np.nan).field("share", np.nan).field("slope", np.nan, lead=(len(scales),))
        rows.field("peak", np.nan, lead=(len(scales),))
        rows.field("level", _CALM, np.int8, lead=(len(scales),)).field("calm", 0, np.int32, lead=(len(scales),))
        for n, scale in enumerate(scales):
            rows.field(f"blocks{n}", np.nan, np.float64, (scale.blocks,))
        return rows

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        t = float(samples.t[k])
        ended = [n for n in range(len(self.config.scales)) if self._ends(n, t)]
        for n in ended:
            self._judge(n, t)
        self._measure(samples, k)
        return self._speak(t) if ended else []

    def _ends(self, n: int, t: float) -> bool:
        """Whether sample ``t`` is the first of a new block of scale ``n``."""
        block = t // self.config.scales[n].seconds
        before, self._block[n] = self._block[n], block
        return bool(np.isfinite(before) and block != before)

    def _measure(self, samples: Samples, k: int) -> None:
        rows = self.rows
        used, share = samples.signal(k, _USED), samples.signal(k, _SHARE)
        booting = samples.signal(k, _UPTIME) < self.config.boot_grace_seconds
        used[booting], rows["peak"][:, booting] = np.nan, np.nan
        both = np.isfinite(used) & (share > 0.0)
        rows["total"][both] = used[both] / share[both]
        rows["share"][both] = share[both]
        rows["low"] = np.fmin(rows["low"], used)

    def _judge(self, n: int, t: float) -> None:
        rows, config, scale = self.rows, self.config, self.config.scales[n]
        blocks: Array = rows[f"blocks{n}"]
        rows["peak"][n] = np.fmax(rows["peak"][n], blocks[0])
        blocks[:-1], blocks[-1] = blocks[1:].copy(), rows["low"][n]
        self._times[n] = np.append(self._times[n][1:], t)
        measured = np.isfinite(blocks[-1])
        rows["low"][n] = np.nan
        step, leaks = self._leaks(blocks)
        rows["slope"][n] = step / scale.seconds
        with np.errstate(invalid="ignore", divide="ignore"):
            left = rows["total"] * (1.0 - rows["share"]) / rows["slope"][n]
        urgent = leaks & (left <= config.warn_seconds) & (rows["share"] >= config.warn_ratio)
        before: Array = rows["level"][n]
        rows["calm"][n] = np.where(leaks, 0, rows["calm"][n] + measured)
        over = rows["calm"][n] >= config.calm_blocks
        news = scale.informs & leaks & ~(blocks[-1] <= rows["peak"][n] + config.least_rise * rows["total"])
        level = np.maximum(before, np.where(urgent, _WARNING, np.where(news, _INFO, _CALM)))
        rows["level"][n] = np.where(over, _CALM, level)

    def _leaks(self, blocks: Floats) -> tuple[Floats, Bools]:
        """The median step of a block in bytes, and whether the floor keeps rising; [host]."""
        config, count = self.config, len(blocks)
        steps = np.diff(blocks, axis=0)
        known = np.count_nonzero(np.isfinite(steps), axis=0)
        up = np.count_nonzero(steps > 0.0, axis=0)
        third = count // 3
        step = median(steps.T)
        first, last = (np.fmin.reduce(part, axis=0) for part in (blocks[:third], blocks[-third:]))
        with np.errstate(invalid="ignore"):
            rise = step * (count - 1)
            # From the first block of the first third to the first of the last: where the floors of a line lie.
            line = step * (count - third)
            leaks = (known >= config.known * (count - 1)) & (up >= config.rising * known)
            leaks &= (rise >= config.least_rise * self.rows["total"]) & (last - first >= config.steady * line)
        return step, leaks

    def _speak(self, t: float) -> list[Finding]:
        level = self.rows["level"].max(axis=0, initial=_CALM)
        before: Array = self.rows["said"].copy()
        self.rows["said"] = level
        return [self._say(int(row), int(level[row]), t) for row in np.flatnonzero(level != before)]

    def _say(self, row: int, level: int, t: float) -> Finding:
        rows, entity = self.rows, self.rows.entities[row]
        if level == _CALM:
            return self._ended(
                FindingKind.MEMORY_LEAK, entity, t, f"{host_name(entity)}: the memory in use no longer keeps rising."
            )
        n = next(n for n in range(len(self.config.scales)) if rows["level"][n, row] == level)
        severity, action = _GRADE[level]
        evidence = self._evidence(n, row)
        return self._finding(FindingKind.MEMORY_LEAK, entity, t, evidence, severity=severity, recommended_action=action)

    def _evidence(self, n: int, row: int) -> Evidence:
        rows = self.rows
        slope, total, share = (float(v) for v in (rows["slope"][n, row], rows["total"][row], rows["share"][row]))
        left = total * (1.0 - share) / slope if slope > 0.0 else np.inf
        numbers = {"bytes_per_second": slope, "used_ratio": share, "total_bytes": total}
        if np.isfinite(left):
            numbers["seconds_left"] = left
        return Evidence(
            summary=f"{host_name(self.rows.entities[row])} uses {slope * 3600 / _GIB:.3g} GiB more memory every hour, "
            f"{share:.0%} of {total / _GIB:.0f} GiB now: none is left in {_span(left)}.",
            numbers=numbers,
            series=draw_series(_USED, "B", self._times[n], rows[f"blocks{n}"][:, row], threshold=total),
        )


def _span(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "a long time"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.3g} h"
