"""The dense part of the peer test: what happens to every sample of every stream at every tick.

A stream is one signal of one entity; state is [signal, entity], so that a signal's values lie side by side. One signal
is gone through at a time, in work buffers that stay in the processor's second-level cache (80,000 entities = 320 kB a
buffer): a pass costs tens of microseconds instead of a trip to memory. Masks act as bits (a missing float AND 0 is 0.0)
because assignment under a random mask costs five times an addition.

Per sample: difference to the cohort's median; robust z; the last verdicts as bits; and a one-sided CUSUM (Page 1954) of
how far that difference is from the stream's own custom. The custom, an EWMA mean and variance, is learned from every
fourth sample, and so is whether a sensor moves: signals take turns. It does not learn from what stands apart (z >=
``off``) or is flagged, so a fault does not become the custom. float32 throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.statistics.outlier_rules import OutlierConfig
from mainstay.detectors.statistics.peers import Peers, Rows32

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


STRIDE = 4
"""A stream's past is learned from every fourth sample: means over minutes lose nothing, a tick costs a third less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTick:
    """What one signal showed at one tick."""

    z: Rows32
    """[E] signed robust z, positive = bad; NaN where it is unknown. A work buffer: valid until the next line."""
    valid: Mask
    over: Places
    """Rows with z >= ``on``."""
    onset: Places
    """Rows with z >= ``off`` that were not at the sample before."""


class OutlierStreams:
    """State of [signal, entity] streams in ``rows``, advanced one signal at a time."""

    def __init__(self, limits: OutlierConfig, signals: int) -> None:
        self.limits = limits
        self.signals = signals
        self._span = min(limits.memory // STRIDE, 255)  # looks over which the past is averaged
        self._stuck: dict[int, Places] = {}
        """By line, since the line was last inspected."""
        self._size = -1

    def declare(self, rows: EntityState) -> EntityState:
        lead = (self.signals,)
        rows.field("loud", 0, np.uint8, lead=lead)  # the last samples' verdicts as bits
        rows.field("odd", fill=False, dtype=np.bool_, lead=lead)
        rows.field("state", fill=False, dtype=np.bool_, lead=lead)
        rows.field("still", 0, np.uint8, lead=lead)  # looks in a row at which it did not move
        rows.field("age", 0, np.uint8, lead=lead)  # samples learned from, up to ``_span``
        for name in ("usual", "spread", "per_spread", "risen"):  # per_spread = side / deviation; 0 = unknown
            rows.field(name, 0.0, np.float32, lead=lead)
        return rows

    def resize(self, entities: int, *, moved: bool) -> None:
        """Make room for so many entities; ``moved``: rows or cohorts are others than before."""
        if moved:
            self._stuck.clear()
        if entities != self._size:
            self._size = entities
            self._own, self._z, self._work, self._rate = (np.empty(entities, np.float32) for _ in range(4))
            self._valid, self._odd, self._flag = (np.empty(entities, np.bool_) for _ in range(3))
            self._bits = np.empty(entities, np.int32)

    def compare(self, x: Rows32, middle: Rows32, per_scale: Rows32, peers: Peers) -> Rows32:
        """Difference to the cohort's middle and robust z of one signal, in the work buffers; returns z."""
        away, z = peers.spread(middle, out=self._own), peers.spread(per_scale, out=self._z)
        np.subtract(x, away, out=away)
        z *= away
        return z

    def is_due(self, line: int, tick: int) -> bool:
        """Whether it is this signal's turn to learn."""
        return (line + tick) % STRIDE == 0

    def inspect_line(self, rows: EntityState, line: int, x: Rows32, before: Rows32) -> None:
        """Count for how many looks in a row each sensor has said the same as a sample before."""
        count, flag = rows["still"][line], self._flag
        np.equal(x, before, out=flag)
        flag &= count < 255
        np.add(count, flag.view(np.uint8), out=count)
        np.less(x, before, out=flag)
        np.logical_or(flag, x > before, out=flag)  # neither is true of a missing one, which is not a move
        np.logical_not(flag, out=flag)
        np.multiply(count, flag.view(np.uint8), out=count)
        self._stuck.pop(line, None)

    def stuck(self, rows: EntityState, line: int, peers: Peers) -> Places:
        """Rows whose sensor is stuck: it has said the same for long, while most of its cohort has moved lately.

        If half of a cohort moved within ``moving`` = 8 samples, its streams move with a chance of 0.29 a look; one in
        170 then stands still for ``stuck`` = 60 samples by chance (0.71 ** 15), and is back at its next move.
        """
        if line not in self._stuck:
            count = rows["still"][line]
            suspects = np.flatnonzero(count >= self.limits.stuck // STRIDE)
            if len(suspects):
                moving = peers.share(count, self.limits.moving // STRIDE) >= 0.5
                suspects = suspects[moving[peers.index[suspects]]]
            self._stuck[line] = suspects
        return self._stuck[line]

    def mark(self, rows: EntityState, line: int) -> SignalTick:
        """Note which are odd now, after the caller has had its say about ``z``."""
        z, valid, odd = self._z, self._valid, self._odd
        np.isfinite(z, out=valid)
        np.greater_equal(z, np.float32(self.limits.off), out=odd)
        np.logical_and(odd, valid, out=odd)
        now = np.flatnonzero(odd)
        former = rows["odd"][line]
        onset = now[~former[now]]
        former[...] = odd
        loud = rows["loud"][line]
        loud *= valid.view(np.uint8) + np.uint8(1)  # a shift; a missing sample moves nothing
        np.bitwise_and(loud, np.uint8(2**self.limits.of_last - 1), out=loud)
        over = now[z[now] >= self.limits.on]
        loud[over] |= np.uint8(1)
        return SignalTick(z=z, valid=valid, over=over, onset=onset)

    def rise(self, rows: EntityState, line: int, *, keep: bool) -> None:
        """CUSUM of how far each stream is from its own custom, in its own deviations, on the side that matters.

        ``keep``: ``learn`` follows. In place wherever possible: that takes half the time of a third array. ``clip``
        takes a third of ``minimum`` or ``maximum`` with a number.
        """
        own, limits = self._own, self.limits
        risen, per_spread = rows["risen"][line], rows["per_spread"][line]
        np.negative(self._valid.view(np.int8), out=self._bits, casting="unsafe")
        own -= rows["usual"][line]
        work = np.multiply(own, per_spread, out=self._work if keep else own)
        np.clip(work, np.float32(-limits.clip), np.float32(limits.clip), out=work)
        work -= np.float32(limits.allowance)
        self._only_valid(work)
        risen += work
        np.clip(risen, np.float32(0), np.float32(2 * limits.alarm), out=risen)  # capped: what is over is soon forgotten

    def learn(self, rows: EntityState, line: int, *, side: float, floor: float) -> None:
        """Learn from this sample, after ``rise``, where that is safe."""
        own, work = self._own, self._work
        usual, spread, per_spread = rows["usual"][line], rows["spread"][line], rows["per_spread"][line]
        self._only_valid(own)
        rate = self._learning_rate(rows, line)
        np.multiply(rate, own, out=work)
        usual += work
        work *= own
        spread += work
        np.subtract(np.float32(1), rate, out=rate)
        spread *= rate
        np.clip(spread, np.float32(floor) ** 2, np.float32(np.inf), out=work)
        np.sqrt(work, out=work)
        np.divide(np.float32(side), work, out=per_spread)

    def _learning_rate(self, rows: EntityState, line: int) -> Rows32:
        """1/n while young, then 1/memory; 0 where the sample is missing, odd, or its stream flagged."""
        rate, flag, age = self._rate, self._flag, rows["age"][line]
        np.greater(self._valid, self._odd, out=flag)
        np.greater(flag, rows["state"][line], out=flag)
        if age.size and age.min() == self._span:
            np.copyto(rate, flag)
            rate *= 1 / self._span
            return rate
        np.add(age, np.float32(1), out=rate)
        np.clip(rate, 1, self._span, out=rate)
        np.divide(flag, rate, out=rate)
        flag &= age < self._span
        np.add(age, flag.view(np.uint8), out=age)
        return rate

    def _only_valid(self, values: Rows32) -> None:
        bits = values.view(np.int32)
        np.bitwise_and(bits, self._bits, out=bits)
