"""Clocks held down by heat or by an external power brake, from the counters of the time spent so.

A counter of nanoseconds, read as a rate, is the share of time that was lost: it misses nothing between two looks, and
one nanosecond is nothing, whereas the bitmask of reasons shows a moment. The power cap is normal under load and never a
fault. The detector reports a hardware slowdown or a brake after two samples and keeps the finding while it lasts;
software slowdown is how a hot card defends itself, so it is news only where the peers do not need it. When most of a
large cohort is held back, there is one finding, about the room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.series import Drawn
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig
from mainstay.probes.core_types import RecommendedAction, Severity

_COUNTER = "gpu_throttle_{}_nanoseconds_total"
_HARDWARE, _BRAKE = _COUNTER.format("hardware_thermal"), _COUNTER.format("power_brake")
_SOFTWARE, _THERMAL = _COUNTER.format("software_thermal"), _COUNTER.format("thermal")
_HEAT, _POWER = 0, 1
_KIND = (FindingKind.THERMAL_THROTTLE, FindingKind.POWER_BRAKE)
_CAUSE = ("heat", "an external power brake")
_NONE, _INFO, _WARNING, _CRITICAL = range(4)
_GRADE = (Severity.INFO, Severity.INFO, Severity.WARNING, Severity.CRITICAL)


class ThrottleDetector(ArrayDetector):
    """Says ``thermal_throttle`` and ``power_brake``. Entities are GPUs, groups their cohorts."""

    name = "throttle"
    kinds = frozenset(_KIND)
    usual_causes = True
    usual_action = RecommendedAction.MONITOR
    signals = (gpu_context.UTILIZATION, gpu_context.POWER, _HARDWARE, _BRAKE, _SOFTWARE, _THERMAL)
    host_signals = (gpu_context.UPTIME,)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        share: float = 0.2
        """Share of a second from which it counts: DCGM alarms at 1 ns (DCGM#285), brakes seen in the field took all."""
        needed: int = 2
        """Of the last three samples: a counter of time has no noise, and 2 s is what 5 s to the alarm leave."""
        of_last: int = 3
        calm_samples: int = 60
        """Seconds under load without it: heat comes and goes within half a minute."""
        idle_samples: int = 600
        """Seconds without it at rest: weaker proof, yet a drained node must be able to recover."""
        soft_needed: int = 20
        """Of the last 30 s: software slowdown touches healthy cards for seconds when a job starts."""
        soft_of_last: int = 30
        room_share: float = 0.5
        """When half of the peers are held back, the cause is not theirs."""
        room_least: int = 64
        """Peers at work (eight nodes) below which a room cannot be told from a rack."""
        last_seconds: float = 1800.0
        """Held for so long it takes the node out (NVSentinel#1666: 36 h unnoticed); shorter, a person may be at it."""
        boot_grace: float = 300.0

    config: Config

    def reset(self) -> None:
        config = self.config
        fast = HysteresisConfig(needed=config.needed, of_last=config.of_last, calm=config.calm_samples)
        slow = HysteresisConfig(needed=config.soft_needed, of_last=config.soft_of_last, calm=config.calm_samples)
        self._hard = (Hysteresis("heat", fast), Hysteresis("brake", fast))
        self._soft, self._warm = Hysteresis("soft", slow), Hysteresis("warm", slow)
        self._cohorts = gpu_context.Cohorts()
        self._drawn = (Drawn("heat_share"), Drawn("brake_share"))
        super().reset()

    def _rows(self) -> EntityState:
        rows = EntityState().field("since", np.nan, lead=(2,)).field("said", _NONE, np.int8, lead=(2,))
        rows.field("rest", 0, np.int64, lead=(2,)).field("voice", fill=False, dtype=np.bool_, lead=(2,))
        rows.field("room", fill=False, dtype=np.bool_, lead=(2,))
        for latch in (*self._hard, self._soft, self._warm):
            latch.declare(rows)
        for drawn in self._drawn:
            drawn.declare(rows)
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        return [_KIND[what] for what in (_HEAT, _POWER) if self.rows["said"][what, row]]

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        time = float(samples.t[k])
        utilization, power = gpu_context.activity(samples, k)
        settled = gpu_context.settled(samples.signal(k, gpu_context.UPTIME), self.config.boot_grace)
        at_work, at_rest = gpu_context.busy(utilization, power) & settled, gpu_context.idle(utilization, power)
        self._cohorts.follow(samples)
        hard = (samples.signal(k, _HARDWARE), samples.signal(k, _BRAKE))
        soft = np.fmax(samples.signal(k, _SOFTWARE), samples.signal(k, _THERMAL)) * 1e-9
        self._step_soft(soft, at_work)
        found: list[Finding] = []
        for what in (_HEAT, _POWER):
            share = hard[what] * 1e-9
            self._step_hard(what, share, settled & ~at_rest, at_work, at_rest)
            shown = np.fmax(share, soft) if what == _HEAT else share
            self._drawn[what].note(self.rows, time, shown)
            found += self._judge(what, shown, at_work, time)
        return found

    def _step_hard(self, what: int, share: Floats, awake: Bools, at_work: Bools, at_rest: Bools) -> None:
        """Begin when not at rest, end under load; at rest only a long calm ends it."""
        yes, no = (share >= self.config.share) & awake, (share < self.config.share)
        rest, latch = self.rows["rest"][what], self._hard[what]
        on = latch.on(self.rows)
        if on.any():
            rest[:] = np.where(on & no & at_rest, rest + 1, np.where(yes | ~on, 0, rest))
            over = rest >= self.config.idle_samples
            rest[over] = 0
            latch.drop(self.rows, over)
        latch.step(self.rows, yes, no & at_work)

    def _step_soft(self, share: Floats, at_work: Bools) -> None:
        """``soft``: it slows itself down. ``warm``: and its peers do not."""
        yes, no = (share >= self.config.share) & at_work, (share < self.config.share) & at_work
        self._soft.step(self.rows, yes, no)
        if yes.any() or self._warm.on(self.rows).any():
            peers = self._cohorts.total(yes | no) - 1
            alone = (peers >= 7) & (self._cohorts.total(yes) - 1 <= 0.05 * peers)  # a host of eight, or one in twenty
            self._warm.step(self.rows, yes & alone, no | (yes & ~alone))

    def _judge(self, what: int, share: Floats, at_work: Bools, time: float) -> list[Finding]:
        """Say what changed in how grave it is."""
        rows, config = self.rows, self.config
        hard, said, since = self._hard[what].on(rows), rows["said"][what], rows["since"][what]
        soft = self._soft.on(rows) if what == _HEAT else np.zeros_like(hard)
        if not (hard.any() or soft.any() or said.any()):
            return []
        warm = self._warm.on(rows) & soft if what == _HEAT else soft
        since[:] = np.where(hard, np.where(np.isnan(since), time, since), np.nan)
        level = np.where(hard, np.where(time - since >= config.last_seconds, _CRITICAL, _WARNING), _NONE)
        level = np.maximum(level, np.where(warm, _WARNING, np.where(soft, _INFO, _NONE)))
        share_of_room = np.where(rows["room"][what], config.room_share / 2, config.room_share)  # so that it cannot flap
        room = self._cohorts.most(hard | soft, at_work | hard, share=share_of_room, least=config.room_least)
        rows["room"][what] = room
        if room.any():
            level = np.where(room, np.where(self._voices(what, room & (level > _NONE), share), _WARNING, _NONE), level)
        changed = np.flatnonzero(level != said)
        found = [self._say(what, int(row), int(level[row]), share, time) for row in changed]
        said[:] = level
        return found

    def _voices(self, what: int, affected: Bools, share: Floats) -> Bools:
        """One of each cohort speaks for all: who already does, else the one that is held back most."""
        voice = np.zeros_like(affected)
        for cohort in np.unique(self._cohorts.index[affected]):
            rows = np.flatnonzero(affected & (self._cohorts.index == cohort))
            entities = self.rows.entities
            speaking = self.rows["voice"][what, rows]
            best = min(
                (int(r) for r in rows), key=lambda r: (-gpu_context.nan_to_zero(float(share[r])), entities[r].key)
            )
            voice[rows[speaking][0] if speaking.any() else best] = True
        self.rows["voice"][what] = voice
        return voice

    def _say(self, what: int, row: int, level: int, share: Floats, time: float) -> Finding:
        room = bool(self.rows["room"][what, row])
        entity, kind = self.rows.entities[row], _KIND[what]
        if level == _NONE:
            text = "is one of many; see its cohort" if room else f"is no longer held back by {_CAUSE[what]}"
            return self._ended(kind, entity, time, f"{gpu_context.place(entity)} {text}.")
        numbers = {"share": gpu_context.nan_to_zero(share[row])}
        where = f"The clocks of {gpu_context.place(entity)} were"
        if room:
            numbers |= self._count(what, row)
            where = (
                f"{numbers['affected']:.0f} of {numbers['watched']:.0f} peers of "
                f"{gpu_context.place(entity)} have their clocks"
            )
        hard = bool(self._hard[what].on(self.rows)[row])
        how = "" if hard else " in software"
        evidence = Evidence(
            summary=f"{where} held down by {_CAUSE[what]}{how} for {100 * numbers['share']:.0f} % of the last second"
            + (": look at the room." if room else "."),
            numbers=numbers,
            series=self._drawn[what].series(self.rows, row, unit="1", threshold=self.config.share),
        )
        action = RecommendedAction.INSPECT_NODE if level == _CRITICAL else None
        sure = 0.99 if hard else 0.9
        return self._finding(
            kind, entity, time, evidence, severity=_GRADE[level], recommended_action=action, confidence=sure
        )

    def _count(self, what: int, row: int) -> dict[str, float]:
        held = self._hard[what].on(self.rows) | (self._soft.on(self.rows) if what == _HEAT else False)
        return {
            "affected": float(self._cohorts.total(held)[row]),
            "watched": float(self._cohorts.total(np.ones_like(held))[row]),
        }
