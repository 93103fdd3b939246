"""A node that has gone silent, and whether it is the node or only its probe.

The deadline is learned from the node's own beats; time in which no process listened (a paused detection loop, a
restarted service) never counts as silence, and a node that was never heard is unknown, not lost.

After the phi-accrual detector (Hayashibara et al. 2004), in closed form: silence is judged when it exceeds the mean gap
by 5.6 standard deviations, which is phi = 8 for normal gaps, and three gaps were missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainstay.detectors.base import Array, ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState, append_rows
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind, Series
from mainstay.probes.core_types import Severity

_FINE, _LOST, _SILENT = 0, 1, 2
_KIND = {_LOST: FindingKind.NODE_LOST, _SILENT: FindingKind.PROBE_UNRESPONSIVE}
_REMEMBERED = 16  # beats drawn in the evidence: enough to see the rhythm before it stopped


class HeartbeatDetector(ArrayDetector):
    """Says ``node_lost`` or, while other streams of the node still report, ``probe_unresponsive``.

    Entities are nodes; signals are ``last_beat`` (when the node's latest frame arrived, Unix seconds, float64) and
    ``last_other`` (when anything else from the node arrived: step records, launcher events); NaN = never.
    """

    name = "heartbeat"
    kinds = frozenset({FindingKind.NODE_LOST, FindingKind.PROBE_UNRESPONSIVE})
    signals = ("last_beat", "last_other")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        missed: float = 3.0
        """Beats that must be missing: one late beat in a thousand is common, three in a row are not."""
        deviations: float = 5.6
        """Standard deviations above the mean gap: phi = 8, one false alarm in 1e8 gaps of normal jitter."""
        jitter_ratio: float = 0.1
        """Least standard deviation, as a share of the mean gap: a perfect rhythm is never certain to continue."""
        floor_seconds: float = 1.5
        """Never sooner: a two-core host under load delays a thread by a second (measured in the recovery notes)."""
        learning_gaps: int = 3
        """Gaps to hear before the learned rhythm is trusted."""
        learning_deadline_seconds: float = 10.0
        """Deadline until then, and after we begin to listen: a probe reconnects within 5 s of back-off, twice that."""
        other_seconds: float = 15.0
        """How long another stream counts as speaking: training steps take up to some 15 s."""
        listening_seconds: float = 2.0
        """A longer gap between two ticks means that we were deaf; only this much of it counts as silence."""
        deaf_seconds: float = 10.0
        """After a longer gap between two ticks, requests were refused or timed out, and senders wait before they come
        back; a loaded service that is a few seconds late still hears everything."""
        return_seconds: float = 16.0
        """How long no node is accused after that, and after we begin to listen: a daemon's back-off is 15 s at most."""
        forget: float = 0.1
        """Weight of a new gap in the learned rhythm: about the last ten beats."""
        clear_beats: int = 2
        """Beats that end an alarm, so that one straggling frame does not."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._time = np.nan
        self._listened = 0.0  # seconds in which we could have heard something
        self._accused_from = self.config.return_seconds  # when all had time to come back, on the same clock

    def _rows(self) -> EntityState:
        rows = EntityState().field("variance", 0.0).field("gaps", 0, np.int64).field("back", 0, np.int64)
        for name in ("beat", "beat_heard", "other", "other_heard", "mean"):
            rows.field(name, np.nan)
        return rows.field("state", _FINE, np.int8).field("beats", np.nan, lead=(_REMEMBERED,))

    def _held(self, row: int) -> list[FindingKind]:
        state = int(self.rows["state"][row])
        return [_KIND[state]] if state else []

    def deadline(self) -> Floats:
        """Seconds of silence that each node is allowed, [E]."""
        config, rows = self.config, self.rows
        deviation = np.maximum(np.sqrt(rows["variance"]), config.jitter_ratio * rows["mean"])
        learned = np.maximum(config.missed * rows["mean"], rows["mean"] + config.deviations * deviation)
        trusted = rows["gaps"] >= config.learning_gaps
        return np.where(trusted, np.fmax(learned, config.floor_seconds), config.learning_deadline_seconds)

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        now = float(samples.t[k])
        heard = self._listen(now)
        deadline = self.deadline()
        fresh = self._hear("beat", samples.signal(k, "last_beat"), now, heard, deadline)
        self._hear("other", samples.signal(k, "last_other"), now, heard, deadline)
        state = self._judge(fresh, deadline)
        before = self.rows["state"].copy()
        self.rows["state"] = state
        found: list[Finding] = []
        for row in np.flatnonzero(state != before):
            found.extend(self._say(int(row), int(before[row]), int(state[row]), now, float(deadline[row])))
        return found

    def _listen(self, now: float) -> float:
        """Advance the listening clock; returns the seconds by which it moved."""
        gap = 0.0 if np.isnan(self._time) else max(now - self._time, 0.0)
        step = min(gap, self.config.listening_seconds)
        self._time = now
        self._listened += step
        if gap > self.config.deaf_seconds:
            self._accused_from = self._listened + self.config.return_seconds
        return step

    def _hear(self, what: str, latest: Floats, now: float, heard: float, deadline: Floats) -> Bools:
        """Note what arrived since the last tick; returns which rows reported."""
        rows = self.rows
        last = rows[what].copy()
        with np.errstate(invalid="ignore"):
            fresh: Bools = np.isfinite(latest) & ~(latest <= last)
        if what == "beat":
            self._learn(fresh & np.isfinite(last), latest - last, deadline)
            append_rows(rows["beats"], latest, fresh)
        rows[what][fresh] = latest[fresh]
        rows[f"{what}_heard"][fresh] = self._listened - np.clip(now - latest[fresh], 0.0, heard)
        return fresh

    def _learn(self, fresh: Bools, gap: Floats, deadline: Floats) -> None:
        """Move the rhythm towards a new gap; an outage counts as no more than its deadline."""
        rows = self.rows
        rows["gaps"][fresh] += 1
        weight = np.maximum(self.config.forget, 1.0 / np.maximum(rows["gaps"], 1))[fresh]
        clipped = np.minimum(gap, deadline)[fresh]
        mean = np.where(np.isnan(rows["mean"][fresh]), clipped, rows["mean"][fresh])
        away = clipped - mean
        rows["variance"][fresh] = (1 - weight) * (rows["variance"][fresh] + weight * away**2)
        rows["mean"][fresh] = mean + weight * away

    def _judge(self, fresh: Bools, deadline: Floats) -> Array:
        rows, config = self.rows, self.config
        missing = np.isfinite(rows["beat"]) & (self._listened - rows["beat_heard"] > deadline)
        missing &= (self._listened >= self._accused_from) | (rows["state"] != _FINE)
        with np.errstate(invalid="ignore"):
            spoke_since = rows["other"] > rows["beat"] + deadline / 2
        speaking = spoke_since & (self._listened - rows["other_heard"] <= np.maximum(deadline, config.other_seconds))
        rows["back"] = np.where(missing, 0, rows["back"] + fresh)
        holds = (rows["state"] != _FINE) & (rows["back"] < config.clear_beats)
        state = np.where(missing, np.where(speaking, _SILENT, _LOST), np.where(holds, rows["state"], _FINE))
        return state.astype(np.int8)

    def _say(self, row: int, before: int, after: int, now: float, deadline: float) -> list[Finding]:
        entity = self.rows.entities[row]
        found: list[Finding] = []
        if before:
            text = f"Node {entity.node} is heard again." if not after else f"Node {entity.node}: see {_KIND[after]}."
            found.append(self._ended(_KIND[before], entity, now, text))
        if after:
            evidence = self._evidence(row, entity, after, now, deadline)
            severity = Severity.CRITICAL if after == _LOST else Severity.WARNING
            # Silence of one stream alone cannot tell the node from its probe; two silent streams nearly can.
            alone = after == _LOST and bool(np.isnan(self.rows["other"][row]))
            confidence = 0.8 if alone else 0.95
            found.append(self._finding(_KIND[after], entity, now, evidence, severity=severity, confidence=confidence))
        return found

    def _evidence(self, row: int, entity: Entity, state: int, now: float, deadline: float) -> Evidence:
        rows = self.rows
        beats = rows["beats"][:, row]
        beats = beats[np.isfinite(beats)]
        silence = self._listened - float(rows["beat_heard"][row])
        tail = "nothing else from it is heard" if state == _LOST else "but other streams of the node still report"
        mean = float(rows["mean"][row])
        rhythm = f"expected every {mean:.2g} s" if np.isfinite(mean) else "rhythm not yet learned"
        gaps = Series(
            name="beat_gap_seconds",
            unit="s",
            x=(*map(float, beats[1:]), now),
            y=(*map(float, np.diff(beats)), silence),
            threshold=deadline,
        )
        return Evidence(
            summary=f"No frame from node {entity.node} for {silence:.1f} s ({rhythm}); {tail}.",
            numbers={"silence_seconds": silence, "deadline_seconds": deadline, "beat_seconds": mean},
            series=(gaps,),
        )
