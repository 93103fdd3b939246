"""Which node stopped reporting, when, and whether it was the node or only its daemon."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.heartbeat import HeartbeatDetector
from mainstay.probes.core_types import Severity

START = 1_700_000_000.0
TICK = 0.25


def beats(seed: int, *, every: float, seconds: float, nodes: int, jitter: float = 0.02) -> Samples:
    """Ticks of a judge that hears ``nodes`` nodes in their own rhythm."""
    rng = np.random.default_rng(seed)
    t = START + np.arange(0.0, seconds, TICK)
    x = np.full((len(t), 2, nodes), np.nan)
    for n in range(nodes):
        arrivals = START + rng.random() * every + np.arange(0, seconds, every)
        arrivals += rng.normal(0, jitter, len(arrivals))
        heard = np.searchsorted(np.sort(arrivals), t, side="right") - 1
        x[:, 0, n] = np.where(heard >= 0, np.sort(arrivals)[np.maximum(heard, 0)], np.nan)
    entities = tuple(Entity(node=f"node-{n}") for n in range(nodes))
    return Samples(entities=entities, groups=("",) * nodes, signals=HeartbeatDetector.signals, t=t, x=x)


def silence(data: Samples, node: int, start: float, stop: float = np.inf, *, signal: int = 0) -> Samples:
    """Nothing arrives of one stream in [start, stop) seconds."""
    quiet = (data.t >= START + start) & (data.t < START + stop)
    first = int(np.argmax(quiet))
    data.x[quiet, signal, node] = data.x[first - 1, signal, node]
    return data


def example(seed: int) -> Samples:
    return silence(beats(seed, every=1.0, seconds=60.0, nodes=4), node=2, start=30.0)


def findings_of(data: Samples) -> list[Finding]:
    return HeartbeatDetector().update(data)


@pytest.mark.parametrize(("every", "limit"), [(0.5, 2.0), (1.0, 3.6), (2.0, 7.0)])
@pytest.mark.parametrize("seed", range(5))
def test_a_silent_node_is_lost_after_three_missed_beats(seed: int, every: float, limit: float) -> None:
    data = silence(beats(seed, every=every, seconds=60.0, nodes=4), node=2, start=40.0)
    (finding,) = findings_of(data)
    assert (finding.kind, finding.entity.node, finding.severity) == (FindingKind.NODE_LOST, "node-2", Severity.CRITICAL)
    last = float(data.x[-1, 0, 2])
    assert 3 * every - TICK - 0.2 <= finding.time - last <= limit
    assert "No frame from node node-2" in finding.evidence.summary
    (gaps,) = finding.evidence.series
    assert gaps.y[-1] > (gaps.threshold or np.inf), "the chart shows the silence above its limit"


def test_a_healthy_fleet_is_quiet_whatever_its_rhythm() -> None:
    for every in (0.5, 1.0, 2.0, 5.0):
        assert findings_of(beats(1, every=every, seconds=600.0, nodes=8, jitter=every * 0.08)) == []


def test_a_probe_is_silent_while_other_streams_of_the_node_speak() -> None:
    data = beats(0, every=1.0, seconds=60.0, nodes=2)
    data.x[:, 1, :] = data.x[:, 0, :]
    found = findings_of(silence(data, node=1, start=30.0))
    kinds = [(f.kind, f.active, f.severity) for f in found]
    assert (FindingKind.PROBE_UNRESPONSIVE, True, Severity.WARNING) in kinds
    assert kinds[-1] == (FindingKind.PROBE_UNRESPONSIVE, True, Severity.WARNING), (
        "nothing but the probe remains accused"
    )


def test_when_the_other_streams_stop_too_the_node_is_lost() -> None:
    data = beats(0, every=1.0, seconds=90.0, nodes=2)
    data.x[:, 1, :] = data.x[:, 0, :]
    found = findings_of(silence(silence(data, node=1, start=30.0), node=1, start=45.0, signal=1))
    last = {f.kind: f.active for f in found}
    assert last == {FindingKind.NODE_LOST: True, FindingKind.PROBE_UNRESPONSIVE: False}


def test_a_node_that_falls_silent_wholly_is_lost_at_once() -> None:
    data = beats(0, every=1.0, seconds=60.0, nodes=2)
    data.x[:, 1, :] = data.x[:, 0, :]
    found = findings_of(silence(silence(data, node=1, start=30.0), node=1, start=30.0, signal=1))
    assert [(f.kind, f.confidence) for f in found] == [(FindingKind.NODE_LOST, 0.95)]


def test_it_clears_when_the_node_is_back() -> None:
    data = beats(0, every=1.0, seconds=80.0, nodes=3)
    found = findings_of(silence(data, node=0, start=30.0, stop=50.0))
    assert [f.active for f in found] == [True, False]
    assert START + 50 <= found[1].time <= START + 52.5, "two beats, no more"


def test_a_node_never_heard_is_unknown_not_lost() -> None:
    data = beats(0, every=1.0, seconds=60.0, nodes=2)
    data.x[:, :, 1] = np.nan
    assert findings_of(data) == []


@pytest.mark.parametrize("seconds", [8, 15])
def test_a_restarted_service_listens_before_it_judges(seconds: int) -> None:
    data = beats(0, every=1.0, seconds=60.0, nodes=2)
    data.x[: 4 * seconds, 0, :] = START - 500.0  # old last beats from the database; then the nodes reconnect
    assert findings_of(data) == []


def test_a_paused_judge_does_not_accuse_the_fleet() -> None:
    data = beats(0, every=1.0, seconds=120.0, nodes=4)
    heard = np.r_[0:200, 400:480]  # 50 s in which the process was stopped
    gap = data.part(0, 480)
    paused = Samples(
        entities=gap.entities, groups=gap.groups, signals=gap.signals, t=gap.t[heard], x=gap.x[heard].copy()
    )
    paused.x[200, 0, :] = paused.x[199, 0, :]  # and the first tick after it still knows nothing new
    assert findings_of(paused) == []


def test_nodes_that_wait_before_they_come_back_to_a_frozen_service_are_not_accused() -> None:
    data = beats(0, every=1.0, seconds=120.0, nodes=4)
    heard = np.r_[0:200, 400:480]
    frozen = Samples(
        entities=data.entities, groups=data.groups, signals=data.signals, t=data.t[heard], x=data.x[heard].copy()
    )
    frozen.x[200:260, 0, 1:] = frozen.x[199, 0, 1:]  # three of them for 15 s more, as long as a back-off lasts
    frozen.x[200:, 0, 3] = frozen.x[199, 0, 3]  # and one for good
    (finding,) = findings_of(frozen)
    assert (finding.kind, finding.entity.node) == (FindingKind.NODE_LOST, "node-3")


def test_a_slower_rhythm_is_learned_in_the_end() -> None:
    slow = beats(0, every=6.0, seconds=1200.0, nodes=1)
    fast = beats(0, every=1.0, seconds=60.0, nodes=1)
    shifted = Samples(
        entities=slow.entities, groups=slow.groups, signals=slow.signals, t=slow.t + 60.0, x=slow.x + 60.0
    )
    detector = HeartbeatDetector()
    detector.update(fast)
    found = detector.update(shifted)
    assert len(found) <= 20
    assert all(f.time < START + 300 for f in found), "no alarm once the new rhythm is known"
