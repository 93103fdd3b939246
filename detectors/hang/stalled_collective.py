"""GPUs that are fully used and do nothing: kernels of a collective that wait for a missing rank.

A waiting kernel keeps utilization at 100 % at a fraction of the power that the same work drew before, and steadily so.
Several GPUs of a node do it together. It says that a job hangs, never that this node is to blame: who waits is seldom
who is late. What a card's busy power is, is learned from the present run of work alone: a lighter job that comes next
begins with an idle card, and with it learning begins again.
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
from mainstay.probes.core_types import RecommendedAction, Severity

_LIMIT, _MEMORY = "gpu_power_limit_watts", "gpu_memory_used_bytes"
_NONE, _INFO, _WARNING = range(3)


class StalledCollectiveDetector(ArrayDetector):
    """Says ``stalled_collective`` about one GPU of a node, in the name of all that wait there. Entities are GPUs."""

    name = "stalled_collective"
    kinds = frozenset({FindingKind.STALLED_COLLECTIVE})
    usual_confidence = 0.8
    usual_action = RecommendedAction.RESTART_JOB
    signals = (gpu_context.UTILIZATION, gpu_context.POWER, _LIMIT, _MEMORY)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        full_ratio: float = 0.98
        """A spinning kernel leaves no gap; a step of real work does, now and then."""
        power_share: float = 0.55
        """Of its own busy power. Collectives that wait draw 25-40 % of what training draws."""
        heavy_share: float = 0.5
        """Of the power limit: below, a card's work is too light to tell from waiting."""
        steady_watts: float = 15.0
        """Mean change from second to second above which the card works: waiting draws the same all the time."""
        learning_seconds: float = 120.0
        """Of work, before a card's busy power is known."""
        rest_seconds: float = 30.0
        """At rest for so long, what was learned belongs to another job; a checkpoint is shorter."""
        memory_share: float = 0.2
        """Memory that falls below this share of its most means that the process is gone."""
        info_seconds: float = 60.0
        """Waiting for so long is worth a word; the longest healthy all-to-all takes seconds."""
        warn_seconds: float = 300.0
        """Half of NCCL's default time-out of ten minutes."""
        together: int = 2
        """Cards of a node that have to wait at the same time: one alone may run a small kernel."""
        share: float = 0.5
        """Of those at work there."""
        end_seconds: float = 5.0
        """Of real work or rest that end it."""

    config: Config

    def reset(self) -> None:
        self._drawn = Drawn(gpu_context.POWER, 120)
        self._nodes: tuple[tuple[object, ...], npt.NDArray[np.intp], int] = ((), np.zeros(0, np.intp), 0)
        super().reset()

    def _rows(self) -> EntityState:
        rows = EntityState()
        for name in ("busy_power", "power", "change", "limit"):
            rows.field(name, np.nan)
        for name in ("learned", "most_memory", "rest", "wait", "awake"):
            rows.field(name, 0.0)
        return self._drawn.declare(rows.field("said", _NONE, np.int8))

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        rows, time = self.rows, float(samples.t[k])
        utilization, power = gpu_context.activity(samples, k)
        limit = samples.signal(k, _LIMIT)
        rows["limit"] = np.where(np.isfinite(limit), limit, rows["limit"])
        self._drawn.note(rows, time, power)
        told = np.isfinite(utilization) & np.isfinite(power)
        full = told & (utilization >= self.config.full_ratio)
        self._forget(samples.signal(k, _MEMORY), told & (utilization <= gpu_context.IDLE_RATIO), told)
        self._follow_power(power, told)
        low = full & (power < self.config.power_share * rows["busy_power"])
        steady = rows["change"] <= self.config.steady_watts
        known = (rows["learned"] >= self.config.learning_seconds) & (
            rows["busy_power"] >= self.config.heavy_share * rows["limit"]
        )
        waits = low & steady & known
        self._learn(power, told & (utilization >= gpu_context.BUSY_RATIO) & ~low)
        wait, awake = rows["wait"], rows["awake"]
        awake[:] = np.where(waits, 0.0, np.where(told, awake + 1, awake))
        wait[:] = np.where(waits, wait + 1, np.where(awake >= self.config.end_seconds, 0.0, wait))
        if not (wait.any() or rows["said"].any()):
            return []
        return self._judge(samples, told & (utilization >= gpu_context.BUSY_RATIO), time)

    def _forget(self, memory: Floats, resting: Bools, told: Bools) -> None:
        """A run of work is over when the card rested for long or its memory was given back."""
        rows, config = self.rows, self.config
        rows["rest"] = np.where(resting, rows["rest"] + 1, np.where(told, 0.0, rows["rest"]))
        rows["most_memory"] = np.fmax(rows["most_memory"], memory)
        over = (rows["rest"] >= config.rest_seconds) | (memory < config.memory_share * rows["most_memory"])
        if over.any():
            for name, fill in (("busy_power", np.nan), ("learned", 0.0), ("wait", 0.0), ("most_memory", 0.0)):
                rows[name][over] = fill

    def _follow_power(self, power: Floats, told: Bools) -> None:
        """Mean change of power from sample to sample, over some ten of them."""
        rows = self.rows
        change = np.abs(power - rows["power"])
        mean = np.where(np.isfinite(rows["change"]), rows["change"] + 0.1 * (change - rows["change"]), change)
        rows["change"] = np.where(np.isfinite(change), mean, rows["change"])
        rows["power"] = np.where(told, power, rows["power"])

    def _learn(self, power: Floats, at_work: Bools) -> None:
        """A slow mean of the power of real work, [E]."""
        rows = self.rows
        learned, mean = rows["learned"], rows["busy_power"]
        learned[:] += at_work
        weight = 1.0 / np.clip(learned, 1.0, 600.0)
        new = np.where(np.isfinite(mean), mean + weight * (power - mean), power)
        mean[:] = np.where(at_work, new, mean)

    def _judge(self, samples: Samples, at_work: Bools, time: float) -> list[Finding]:
        rows, config = self.rows, self.config
        node, count = self._by_node(samples)
        waiting = rows["wait"] >= config.info_seconds
        many = np.bincount(node, waiting, count)
        busy = np.maximum(np.bincount(node, at_work | waiting, count), 1)
        stalls = (many >= config.together) & (many >= config.share * busy)
        longest = np.zeros(count)
        np.maximum.at(longest, node, np.where(waiting, rows["wait"], 0.0))
        level = np.where(stalls, np.where(longest >= config.warn_seconds, _WARNING, _INFO), _NONE)
        voice = self._voices(node, level, waiting)
        wanted = np.where(voice, level[node], _NONE)
        changed = np.flatnonzero(wanted != rows["said"])
        rows["said"] = wanted
        many = np.bincount(node, rows["wait"] >= config.info_seconds / 2, count)  # the others follow within seconds
        return [
            self._say(int(row), int(wanted[row]), float(many[node[row]]), float(busy[node[row]]), time)
            for row in changed
        ]

    def _by_node(self, samples: Samples) -> tuple[npt.NDArray[np.intp], int]:
        if self._nodes[0] is not samples.entities:
            _, index = np.unique([entity.node or "" for entity in samples.entities], return_inverse=True)
            self._nodes = (samples.entities, index.astype(np.intp), int(index.max(initial=-1)) + 1)
        return self._nodes[1], self._nodes[2]

    def _voices(self, node: npt.NDArray[np.intp], level: npt.NDArray[np.intp], waiting: Bools) -> Bools:
        """Which card speaks for its node: the one that does already, else the first that waits."""
        voice = np.zeros_like(waiting)
        said = self.rows["said"] > 0
        for one in np.flatnonzero(level):
            here = np.flatnonzero((node == one) & (said | waiting))
            entities = self.rows.entities
            voice[min((int(row) for row in here), key=lambda row: (not said[row], entities[row].key))] = True
        return voice

    def _say(self, row: int, level: int, waiting: float, busy: float, time: float) -> Finding:
        entity, kind = self.rows.entities[row], FindingKind.STALLED_COLLECTIVE
        if not level:
            return self._ended(kind, entity, time, f"The GPUs of {entity.node} work again, or their job is over.")
        power, usual = (
            gpu_context.nan_to_zero(float(self.rows["power"][row])),
            gpu_context.nan_to_zero(float(self.rows["busy_power"][row])),
        )
        seconds = float(self.rows["wait"][row])
        evidence = Evidence(
            summary=f"{waiting:.0f} of {busy:.0f} busy GPUs of {entity.node} are fully used at {power:.0f} W "
            f"instead of {usual:.0f} W for {seconds:.0f} s: their job waits for another rank.",
            numbers={"waiting": waiting, "busy": busy, "watts": power, "busy_watts": usual, "seconds": seconds},
            series=self._drawn.series(self.rows, row, unit="W", threshold=self.config.power_share * usual),
        )
        severity = Severity.WARNING if level == _WARNING else Severity.INFO
        return self._finding(kind, entity, time, evidence, severity=severity)
