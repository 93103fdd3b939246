"""A PCIe link that runs slower or narrower than it could, while there is work for it.

At rest a link falls to its first generation to save power: nothing. Under load it is compared with the card's and
slot's best, with what this very card had before, and with its cohort: where all peers run alike, it is how these
machines are built, which is information. Errors that were not corrected count by themselves; the corrected ones drift
(see ``error_drift``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.series import Drawn
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.probes.core_types import RecommendedAction, Severity

_LINK = (
    ("gpu_pcie_width", "gpu_pcie_width_max", "lanes"),
    ("gpu_pcie_generation", "gpu_pcie_generation_max", "generation"),
)
_BYTES = ("gpu_pcie_receive_bytes_total", "gpu_pcie_transmit_bytes_total")
_ERRORS = ("gpu_pcie_nonfatal_errors_total", "gpu_pcie_fatal_errors_total")
# The bits of the statement.
_LOW = (1, 2)  # width, generation
_BUILT = 4  # all peers run alike and it never ran better
_SLOT = 8  # its slot allows less than its peers' slots
_FAILED = (16, 32)  # errors: not fatal, fatal


class PcieDetector(ArrayDetector):
    """Says ``pcie_degraded``. Entities are GPUs, groups their cohorts."""

    name = "pcie"
    kinds = frozenset({FindingKind.PCIE_DEGRADED})
    usual_causes = True
    usual_confidence = 0.95
    usual_action = RecommendedAction.MONITOR
    signals = (
        *(n for now, most, _ in _LINK for n in (now, most)),
        *_BYTES,
        *_ERRORS,
        gpu_context.UTILIZATION,
        gpu_context.POWER,
    )
    host_signals = (gpu_context.UPTIME,)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        busy_seconds: tuple[int, int] = (2, 5)
        """Seconds of work before width and generation are judged: lanes do not sleep, while the generation rises when
        work begins and the utilization of that second is already an average."""
        bytes_per_second: float = 1e9
        """Traffic that needs a link that is awake: generation 1 with 16 lanes carries four times as much."""
        needed: int = 2
        """Of the last three seconds of work."""
        of_last: int = 3
        calm_samples: int = 30
        """Seconds of work at full speed that end it."""
        built_share: float = 0.5
        """When half of the peers at work run as low, it is how they are built."""
        built_least: int = 8
        news_seconds: float = 3600.0
        """How long an uncorrected error is held."""
        boot_grace: float = 300.0

    config: Config

    def reset(self) -> None:
        config = self.config
        hold = HysteresisConfig(needed=config.needed, of_last=config.of_last, calm=config.calm_samples)
        self._low = tuple(Hysteresis(name, hold) for _, _, name in _LINK)
        self._cohorts = gpu_context.Cohorts()
        self._drawn = tuple(Drawn(now) for now, _, _ in _LINK)
        super().reset()

    def _rows(self) -> EntityState:
        rows = EntityState().field("said", 0, np.int16).field("worked", 0, np.int32)
        rows.field("now", np.nan, lead=(2,)).field("most", np.nan, lead=(2,)).field("best", 0.0, lead=(2,))
        rows.field("built", fill=False, dtype=np.bool_, lead=(2,)).field("failed_at", np.nan, lead=(2,))
        for latch, drawn in zip(self._low, self._drawn, strict=True):
            latch.declare(rows)
            drawn.declare(rows)
        return rows

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time, rows = float(samples.t[k]), self.rows
        self._cohorts.follow(samples)
        worked = self._work(samples, k)
        code = np.zeros(len(samples.entities), np.int16)
        for what, (now, most, _) in enumerate(_LINK):
            code |= self._step(what, samples.signal(k, now), samples.signal(k, most), worked)
            self._drawn[what].note(rows, time, rows["now"][what])
        for what, name in enumerate(_ERRORS):
            code |= self._step_errors(what, samples.signal(k, name), time)
        changed = np.flatnonzero(code != rows["said"])
        rows["said"] = code
        return [self._say(int(row), int(code[row]), time) for row in changed]

    def _work(self, samples: Samples, k: int) -> npt.NDArray[np.int32]:
        """Seconds of uninterrupted work so far, 0 in this sample's absence."""
        utilization, power = gpu_context.activity(samples, k)
        traffic = np.fmax(samples.signal(k, _BYTES[0]), samples.signal(k, _BYTES[1]))
        rest = gpu_context.idle(utilization, power)
        at_work = gpu_context.busy(utilization, power) | ((traffic >= self.config.bytes_per_second) & ~rest)
        at_work &= gpu_context.settled(samples.signal(k, gpu_context.UPTIME), self.config.boot_grace)
        told = np.isfinite(utilization) | np.isfinite(power)
        worked: npt.NDArray[np.int32] = self.rows["worked"]
        worked[:] = np.where(at_work, worked + 1, np.where(told, 0, worked))
        return np.where(at_work, worked, 0)

    def _step(self, what: int, now: Floats, most: Floats, worked: npt.NDArray[np.int32]) -> npt.NDArray[np.int16]:
        """Judge width or generation; returns its bits."""
        rows, config = self.rows, self.config
        known = np.isfinite(most) & (most > 0)
        rows["most"][what][known] = most[known]
        judged = (worked >= config.busy_seconds[what]) & np.isfinite(now) & (now > 0) & (rows["most"][what] > 0)
        rows["now"][what][judged] = now[judged]
        low = judged & (now < rows["most"][what])
        self._low[what].step(rows, low, judged & ~low)
        best = rows["best"][what]
        held = self._low[what].on(rows)
        if low.any() or held.any():
            alike = self._cohorts.most(low, judged, share=config.built_share, least=config.built_least)
            built = rows["built"][what]
            built[:] = np.where(judged, alike & low & (now >= best), built & held)
        else:
            built = held
        best[:] = np.where(judged, np.fmax(best, now), best)
        bits = np.where(held, _LOW[what] | np.where(built, _BUILT, 0), 0)
        return (bits | np.where(self._slot(what), _SLOT, 0)).astype(np.int16)

    def _slot(self, what: int) -> Bools:
        """Whose limit is lower than that of most of its cohort."""
        most = self.rows["most"][what]
        known = most > 0
        count = self._cohorts.total(known)
        mean = self._cohorts.total(np.where(known, most, 0.0)) / np.maximum(count, 1)
        if not (known & (most < mean)).any():
            return np.zeros_like(known)
        fewer: Bools = known & (count >= self.config.built_least) & (most < 0.9 * mean)
        return fewer

    def _step_errors(self, what: int, rate: Floats, time: float) -> npt.NDArray[np.int16]:
        at = self.rows["failed_at"][what]
        at[rate > 0] = time
        at[(rate == 0) & (time - at >= self.config.news_seconds)] = np.nan
        return np.where(np.isfinite(at), _FAILED[what], 0).astype(np.int16)

    def _say(self, row: int, code: int, time: float) -> Finding:
        entity, kind = self.rows.entities[row], FindingKind.PCIE_DEGRADED
        where = gpu_context.place(entity)
        if not code:
            return self._ended(kind, entity, time, f"The PCIe link of {where} runs as it should.")
        words, grave, numbers = self._words(row, code)
        series = tuple(
            line
            for what, drawn in enumerate(self._drawn)
            if code & _LOW[what]
            for line in drawn.series(
                self.rows, row, unit="1", threshold=gpu_context.nan_to_zero(float(self.rows["most"][what, row]))
            )
        )
        evidence = Evidence(summary=f"PCIe of {where}: {'; '.join(words)}.", numbers=numbers, series=series)
        severity = Severity.WARNING if grave else Severity.INFO
        return self._finding(kind, entity, time, evidence, severity=severity)

    def _words(self, row: int, code: int) -> tuple[list[str], bool, dict[str, float]]:
        """What is wrong, whether it is a fault, and the numbers."""
        words: list[str] = []
        numbers: dict[str, float] = {}
        for what, (_, _, name) in enumerate(_LINK):
            if code & _LOW[what]:
                now, most = (gpu_context.nan_to_zero(float(self.rows[field][what, row])) for field in ("now", "most"))
                words.append(
                    f"{name} {now:.0f} of {most:.0f} under load" + (", as all its peers" if code & _BUILT else "")
                )
                numbers |= {name: now, f"{name}_max": most}
        if code & _SLOT:
            words.append("its slot allows less than its peers' slots")
        words += ["an uncorrected error"] if code & _FAILED[0] else []
        words += ["a fatal error"] if code & _FAILED[1] else []
        low = code & (_LOW[0] | _LOW[1]) and not code & _BUILT
        return words, bool(low or code & _FAILED[1]), numbers
