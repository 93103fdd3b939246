"""The dense passes say what the formulas say, sample by sample and stream by stream."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.statistics.outlier_rules import OutlierConfig
from mainstay.detectors.statistics.outlier_streams import STRIDE, OutlierStreams
from mainstay.detectors.statistics.peers import Peers

LIMITS = OutlierConfig(on=6.0, off=3.0, of_last=5, allowance=1.0, alarm=12.0, clip=4.0, memory=256, stuck=60, moving=8)
N = 24


@dataclass
class Twin:
    """One stream, in plain Python."""

    age: int = 0
    usual: float = 0.0
    spread: float = 0.0
    per: float = 0.0
    risen: float = 0.0
    loud: int = 0

    def see(self, x: float, middle: float, scale: float, *, side: float, floor: float, turn: bool) -> None:
        away = x - middle
        z = side * away / scale
        if not math.isfinite(z):
            return
        self.loud = (self.loud << 1 | (z >= LIMITS.on)) % 2**LIMITS.of_last
        own = away - self.usual
        step = min(max(own * self.per, -LIMITS.clip), LIMITS.clip) - LIMITS.allowance
        self.risen = min(max(self.risen + step, 0.0), 2 * LIMITS.alarm)
        if turn and z < LIMITS.off:
            rate = max(1 / (self.age + 1), STRIDE / LIMITS.memory)
            self.usual += rate * own
            self.spread = (1 - rate) * (self.spread + rate * own * own)
            self.age = min(self.age + 1, LIMITS.memory // STRIDE)
        if turn:
            self.per = side / math.sqrt(max(self.spread, floor**2))


@pytest.mark.parametrize(("side", "few"), [(1.0, 4), (-1.0, 0)])  # without the few, no stream is young in the end
def test_the_arrays_do_what_the_formulas_say(side: float, few: int) -> None:
    rng = np.random.default_rng(4)
    ticks = 600
    x = rng.normal(50, 2, (ticks, N)).astype(np.float32)
    x[300:, 3] += 15 * side
    x[400:440, 4] += 30 * side
    x[rng.random(x.shape) < 0.05] = np.nan
    x[100, 5] = np.inf
    peers = Peers(least=8, sample=64)
    entities = tuple(Entity(node=f"n{i:02}") for i in range(N))
    groups = ("a",) * (N - few) + ("few",) * few
    peers.follow(Samples(entities=entities, groups=groups, signals=("s",), t=np.zeros(1), x=np.zeros((1, 1, N))))
    streams = OutlierStreams(LIMITS, 1)
    rows = streams.declare(EntityState())
    rows.align(entities)
    streams.resize(N, moved=True)
    twins = [Twin() for _ in range(N)]
    for k in range(ticks):
        middle, scale, _ = peers.middle(x[k])
        with np.errstate(all="ignore"):
            streams.compare(x[k], middle, (side / scale).astype(np.float32), peers)
            streams.mark(rows, 0)
            streams.rise(rows, 0, keep=streams.is_due(0, k))
            if streams.is_due(0, k):
                streams.learn(rows, 0, side=side, floor=0.5)
        for i, twin in enumerate(twins[: N - few]):
            twin.see(float(x[k, i]), float(middle[0]), float(scale[0]), side=side, floor=0.5, turn=streams.is_due(0, k))
    known = slice(0, N - few)
    for name in ("age", "usual", "spread", "risen", "loud"):
        expected = [getattr(t, name) for t in twins[: N - few]]
        np.testing.assert_allclose(rows[name][0, known], expected, rtol=2e-3, atol=2e-3, err_msg=name)
    assert rows["risen"][0, 3] == 2 * LIMITS.alarm
    assert (rows["age"][0, known] > 60).all()
    assert not rows["age"][0, N - few :].any(), "four are no cohort: nothing is learned of them"


def test_only_a_sensor_that_stands_still_while_its_peers_move_is_stuck() -> None:
    rng = np.random.default_rng(1)
    entities = tuple(Entity(node=f"n{i:02}") for i in range(N))
    groups = ("moving",) * 12 + ("calm",) * 12
    peers = Peers(least=8, sample=64)
    peers.follow(Samples(entities=entities, groups=groups, signals=("s",), t=np.zeros(1), x=np.zeros((1, 1, N))))
    streams = OutlierStreams(LIMITS, 1)
    rows = streams.declare(EntityState())
    rows.align(entities)
    streams.resize(N, moved=True)
    before = np.full(N, np.nan, np.float32)
    for k in range(80):
        x = np.ones(N, np.float32)
        x[:12] = rng.normal(size=12)
        x[2] = 5.0
        if streams.is_due(0, k):
            streams.inspect_line(rows, 0, x, before)
        before = x
        assert streams.stuck(rows, 0, peers).tolist() == ([2] if k >= 60 else [])
    streams.resize(N, moved=False)
    assert streams.stuck(rows, 0, peers).tolist() == [2]
    groups = ("a",) * 20 + ("few",) * (N - 20)
    peers.follow(Samples(entities=entities, groups=groups, signals=("s",), t=np.zeros(1), x=np.zeros((1, 1, N))))
    streams.resize(N, moved=True)
    assert streams.stuck(rows, 0, peers).tolist() == [2, *range(12, 20)], "calm ones now stand among peers that move"
