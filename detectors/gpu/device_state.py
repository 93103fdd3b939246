"""What the driver says about a GPU's state: errors that could not be corrected, rows to remap, what it asks for.

NVML's recovery action leads: it is a state, so it survives a missed event, and the driver knows more than a catalog
of codes. Each state holds until it is read as healthy again. A counter that restarts is no new error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.probes.core_types import RecommendedAction, Severity

_ECC = ("gpu_ecc_uncorrected_total", "gpu_ecc_uncorrected_aggregate_total")
_PENDING, _FAILED, _SRAM = "gpu_remap_pending", "gpu_remap_failed", "gpu_sram_threshold_exceeded"
_ACTION, _FABRIC, _MASK = "gpu_recovery_action", "gpu_fabric_state", "gpu_fabric_health_mask"
_KINDS = (
    FindingKind.ECC_UNCORRECTABLE,
    FindingKind.ROW_REMAP,
    FindingKind.GPU_RECOVERY_ACTION,
    FindingKind.FABRIC_DOWN,
)
_IN_PROGRESS, _COMPLETED = 2, 3
# What each kind's code means: bits, but for the action.
_GREW, _UNASKED, _EXCEEDED = 1, 2, 4
_WAITS, _CANNOT = 1, 2
_UNTRAINED, _UNHEALTHY = 1, 2
_SURE, _WORKING = 8, 16  # beside the action itself, 0 to 7

_ACTIONS: dict[int, tuple[str, RecommendedAction]] = {
    1: ("a reset of the GPU", RecommendedAction.RESET_GPU),
    2: ("a reboot of the node", RecommendedAction.REBOOT_NODE),
    3: ("peer-to-peer traffic to be drained", RecommendedAction.RESTART_JOB),
    4: ("the GPU to be drained and reset", RecommendedAction.RESET_GPU),
    5: ("a recovery of the IMEX domain", RecommendedAction.MONITOR),
    6: ("a reset of the bus", RecommendedAction.RESET_GPU),
    7: ("a reboot of the system", RecommendedAction.REBOOT_NODE),
}
_IMEX = 5
_CONDITIONS = {
    # Fields of two bits: 1 is true, 2 is false, 0 not supported.
    0: "bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "an access timed out",
}
_CONFIGURATION, _CONFIGURED = 8, 1
"""A field of four bits: 0 not supported, 1 configured as it should be."""

Said = tuple[Severity, RecommendedAction, str]


class DeviceStateDetector(ArrayDetector):
    """Says ``ecc_uncorrectable``, ``row_remap``, ``gpu_recovery_action`` and ``fabric_down``. Entities are GPUs."""

    name = "device_state"
    kinds = frozenset(_KINDS)
    usual_causes = True
    signals = (*_ECC, _PENDING, _FAILED, _SRAM, _ACTION, _FABRIC, _MASK, gpu_context.UTILIZATION, gpu_context.POWER)
    host_signals = (gpu_context.UPTIME,)
    settling_seconds = 3600.0  # as long as an error counts as news: it appears only once

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        news_seconds: float = 3600.0
        """How long an uncorrectable error is held without a further one or a reboot: long enough to be repeated."""
        sure_readings: int = 2
        """Readings in a row (10 s apart) before work has to leave a node: one could stem from a reset under way."""
        healthy_readings: int = 2
        working_readings: int = 3
        """Readings under load until a sick IMEX domain matters; jobs that use it join it within seconds."""
        boot_grace: float = 600.0
        """Links and fabric train for minutes after boot; 214 false NVLINK_DOWN in 3.5 weeks came from reboots."""
        training_readings: int = 12
        """Two minutes: a driver that was loaded again trains for one."""
        mask_readings: int = 3
        """Half a minute: routes recover within seconds."""

    config: Config

    def reset(self) -> None:
        config = self.config
        self._sram, self._failed, self._pending, self._untrained, self._unhealthy = (
            Hysteresis(name, HysteresisConfig(needed=readings, of_last=readings, calm=config.healthy_readings))
            for name, readings in (
                ("sram", config.sure_readings),
                ("failed", config.sure_readings),
                ("pending", 1),
                ("untrained", config.training_readings),
                ("unhealthy", config.mask_readings),
            )
        )
        self._cohorts = gpu_context.Cohorts()
        super().reset()

    def _rows(self) -> EntityState:
        rows = EntityState().field("said", 0, np.int16, lead=(len(_KINDS),)).field("errors", 0.0)
        rows.field("grew_at", np.nan).field("uptime", np.nan).field("mask", 0, np.int64)
        rows.field("asked", fill=False, dtype=np.bool_).field("trained", fill=False, dtype=np.bool_)
        rows.field("action", 0, np.int16).field("readings", 0, np.int16).field("quiet", 0, np.int16)
        rows.field("working", 0, np.int16)
        for latch in (self._sram, self._failed, self._pending, self._untrained, self._unhealthy):
            latch.declare(rows)
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        return [kind for i, kind in enumerate(_KINDS) if self.rows["said"][i, row]]

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time, rows = float(samples.t[k]), self.rows
        uptime = samples.signal(k, gpu_context.UPTIME)
        at_work = gpu_context.busy(*gpu_context.activity(samples, k))
        self._step_ecc(samples, k, uptime)
        self._step_action(samples.signal(k, _ACTION), at_work)
        for latch, name in ((self._sram, _SRAM), (self._failed, _FAILED), (self._pending, _PENDING)):
            value = samples.signal(k, name)
            latch.step(rows, value >= 1, value < 1)
        self._step_fabric(samples, k, gpu_context.settled(uptime, self.config.boot_grace))
        code = self._codes()
        changed = np.argwhere(code != rows["said"])
        before = rows["said"].copy() if len(changed) else rows["said"]
        rows["said"] = code
        found = [self._say(int(what), int(row), int(before[what, row]), time) for what, row in changed]
        return [finding for finding in found if finding is not None]

    def _step_ecc(self, samples: Samples, k: int, uptime: Floats) -> None:
        """Note growth; forget it at a reboot or when it is no news any more."""
        rows, time = self.rows, float(samples.t[k])
        rate = np.fmax(samples.signal(k, _ECC[0]), samples.signal(k, _ECC[1]))
        grew = rate > 0
        rows["grew_at"][grew] = time
        rows["errors"][grew] += rate[grew]
        rebooted = uptime < rows["uptime"] - 1
        rows["uptime"] = np.where(np.isfinite(uptime), uptime, rows["uptime"])
        old = (rate == 0) & (time - rows["grew_at"] >= self.config.news_seconds)
        over = rebooted | old
        if over.any():
            rows["grew_at"][over], rows["errors"][over] = np.nan, 0.0

    def _step_action(self, reading: Floats, at_work: Bools) -> None:
        """Count readings that ask for the same; two healthy ones end it."""
        rows = self.rows
        told = np.isfinite(reading)
        if not told.any():
            return
        rows["asked"][told] = True
        action = np.where(told, reading, 0).astype(np.int16)
        action[action > max(_ACTIONS)] = 0  # of a newer driver: unknown is no order
        asks, same = told & (action > 0), action == rows["action"]
        rows["readings"][asks] = np.where(same, np.minimum(rows["readings"] + 1, 1000), 1)[asks]
        rows["action"][asks] = action[asks]
        rows["working"][told] = np.where(asks & at_work, np.minimum(rows["working"] + 1, 1000), 0)[told]
        rows["quiet"][told] = np.where(asks, 0, np.minimum(rows["quiet"] + 1, 1000))[told]
        rows["action"][told & ~asks & (rows["quiet"] >= self.config.healthy_readings)] = 0

    def _step_fabric(self, samples: Samples, k: int, settled: Bools) -> None:
        rows = self.rows
        state, mask = samples.signal(k, _FABRIC), samples.signal(k, _MASK)
        done = state == _COMPLETED
        rows["trained"] |= done
        others = self._cohorts.follow(samples).most(rows["trained"], np.ones_like(done), share=0.5, least=8)
        # A card that never was part of a fabric, among peers that are not either, misses nothing.
        waits = (state >= 1) & ~done & settled & (rows["trained"] | others | (state == _IN_PROGRESS))
        self._untrained.step(rows, waits, done)
        told = np.isfinite(mask)
        if not told.any():
            return
        bits = np.where(told, mask, 0).astype(np.int64)
        bad = np.zeros_like(told)
        for shift in _CONDITIONS:
            bad |= (bits >> shift) & 3 == 1
        bad |= (bits >> _CONFIGURATION) & 15 > _CONFIGURED
        rows["mask"][told & bad] = bits[told & bad]
        self._unhealthy.step(rows, told & bad & settled, told & ~bad)

    def _codes(self) -> npt.NDArray[np.int16]:
        """[kind, E]: what holds, in the numbers named above."""
        rows = self.rows
        grew = np.isfinite(rows["grew_at"])
        sure = rows["readings"] >= self.config.sure_readings
        action = rows["action"]
        working = (action == _IMEX) & (rows["working"] >= self.config.working_readings)
        code = np.empty_like(rows["said"])
        code[0] = np.where(grew, np.where(rows["asked"], _GREW, _GREW | _UNASKED), 0)
        code[0] |= np.where(self._sram.on(rows), _EXCEEDED, 0).astype(np.int16)
        code[1] = np.where(self._pending.on(rows), _WAITS, 0) | np.where(self._failed.on(rows), _CANNOT, 0)
        code[2] = np.where(action > 0, action | np.where(sure, _SURE, 0) | np.where(working, _WORKING, 0), 0)
        code[3] = np.where(self._untrained.on(rows), _UNTRAINED, 0) | np.where(self._unhealthy.on(rows), _UNHEALTHY, 0)
        return code

    def _say(self, what: int, row: int, before: int, time: float) -> Finding | None:
        entity, kind, code = self.rows.entities[row], _KINDS[what], int(self.rows["said"][what, row])
        where = gpu_context.place(entity)
        if not code:
            return self._ended(
                kind, entity, time, f"{where} is read as healthy again: {kind.value.replace('_', ' ')} is over."
            )
        describe = (self._ecc, self._remap, self._asks, self._fabric)[what]
        severity, recommended_action, text = describe(row, code)
        if before and describe(row, before) == (severity, recommended_action, text):
            return None
        numbers = {"errors": float(self.rows["errors"][row])} if what == 0 else {"state": float(code & 7)}
        evidence = Evidence(summary=f"{where} {text}.", numbers=numbers)
        return self._finding(kind, entity, time, evidence, severity=severity, recommended_action=recommended_action)

    def _ecc(self, row: int, code: int) -> Said:
        if code & _EXCEEDED:
            text = "has passed the vendor's threshold of uncorrectable SRAM errors: it should be replaced"
            return Severity.CRITICAL, RecommendedAction.REPLACE, text
        text = f"had {max(1, round(float(self.rows['errors'][row])))} memory error(s) that could not be corrected"
        if (
            code & _UNASKED
        ):  # a driver that names no recovery action leaves the old rule: reset after a double-bit error
            return Severity.CRITICAL, RecommendedAction.RESET_GPU, text
        return (
            Severity.WARNING,
            RecommendedAction.RESTART_JOB,
            text + "; the driver's recovery action says whether more is needed",
        )

    def _remap(self, _row: int, code: int) -> Said:
        if code & _CANNOT:
            return (
                Severity.CRITICAL,
                RecommendedAction.REPLACE,
                "could not remap a row of its memory: it should be replaced",
            )
        return (
            Severity.WARNING,
            RecommendedAction.MONITOR,
            "has memory rows that wait for its next reset to be remapped",
        )

    def _asks(self, _row: int, code: int) -> Said:
        text, recommended_action = _ACTIONS[code & 7]
        text = f"asks for {text} (the driver's recovery action {code & 7})"
        if code & 7 == _IMEX:  # 13 days of it on healthy idle nodes (aicr#2641)
            return (Severity.WARNING if code & _WORKING else Severity.INFO), recommended_action, text
        if not recommended_action.evicts:
            return Severity.WARNING, recommended_action, text
        return (
            (Severity.CRITICAL, recommended_action, text)
            if code & _SURE
            else (Severity.WARNING, RecommendedAction.MONITOR, text)
        )

    def _fabric(self, row: int, code: int) -> Said:
        words = ["has not finished joining its NVLink fabric"] if code & _UNTRAINED else []
        mask = int(self.rows["mask"][row])
        if code & _UNHEALTHY:
            words += [text for shift, text in _CONDITIONS.items() if (mask >> shift) & 3 == 1]
            words += ["its fabric is misconfigured"] if (mask >> _CONFIGURATION) & 15 > _CONFIGURED else []
        text = "; ".join(words)
        return (
            Severity.WARNING,
            RecommendedAction.MONITOR,
            text if code & _UNTRAINED else f"reports about its fabric: {text}",
        )
