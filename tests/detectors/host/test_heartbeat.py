"""Which node stopped reporting, when, and whether it was the node or only its daemon."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.host.heartbeat import _KIND, HeartbeatDetector
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


def beats_of_one(beats_at: list[float], *, seconds: float = 60.0, others_at: tuple[float, ...] = ()) -> list[Finding]:
    """One node whose frames arrive at these seconds; the detector looks each quarter of a second."""
    t = START + np.arange(0.0, seconds, TICK)
    x = np.full((len(t), 2, 1), np.nan)
    for signal, arrivals in enumerate((beats_at, others_at)):
        for at in arrivals:
            x[t >= START + at, signal, 0] = START + at
    detector = HeartbeatDetector()
    return detector.update(
        Samples(entities=(Entity(node="n0"),), groups=("",), signals=HeartbeatDetector.signals, t=t, x=x)
    )


def seconds_of(found: list[Finding]) -> list[tuple[FindingKind, bool, float]]:
    return [(f.kind, f.active, f.time - START) for f in found]


LOST, PROBE = FindingKind.NODE_LOST, FindingKind.PROBE_UNRESPONSIVE


@pytest.mark.parametrize(
    ("beats_at", "expected"),
    [
        # A perfect rhythm of a second has a deadline of three: the first look beyond it is a quarter later.
        ([*range(31)], [(LOST, True, 33.25)]),
        ([*range(31), 40, 41, 42], [(LOST, True, 33.25), (LOST, False, 41.0)]),
        ([*range(31), 40], [(LOST, True, 33.25)]),  # one frame ends nothing
        ([*np.arange(0.0, 30.25, 0.25)], [(LOST, True, 31.75)]),  # never sooner than 1.5 s
        ([16, 17, 18], [(LOST, True, 28.25)]),  # two gaps are no rhythm: ten seconds
        ([16, 17, 18, 19], [(LOST, True, 22.25)]),
        ([0, 1, 2, 3, 4], [(LOST, True, 16.0)]),  # no node is accused before that
        ([], []),
    ],
)
def test_when_exactly_a_node_is_lost(beats_at: list[float], expected: list[tuple[FindingKind, bool, float]]) -> None:
    assert seconds_of(beats_of_one(beats_at, seconds=46.0)) == expected


def test_the_other_stream_must_have_reported_since_and_of_late() -> None:
    speaks = tuple(range(0, 40, 2))
    assert seconds_of(beats_of_one([*range(31)], others_at=speaks))[0] == (PROBE, True, 33.25)
    # It is over fifteen seconds after the last report of the other stream, at 38.
    assert seconds_of(beats_of_one([*range(31)], others_at=speaks))[1:] == [(PROBE, False, 53.25), (LOST, True, 53.25)]
    assert seconds_of(beats_of_one([*range(31)], others_at=(31.5,)))[0][:2] == (LOST, True), "within half the deadline"
    assert seconds_of(beats_of_one([*range(31)], others_at=(31.75,)))[0][:2] == (PROBE, True)


def test_what_is_said_of_a_lost_node() -> None:
    (finding,) = beats_of_one([*range(31)], seconds=34.0)
    assert finding.evidence.summary == (
        "No frame from node n0 for 3.2 s (expected every 1 s); nothing else from it is heard."
    )
    assert finding.evidence.numbers == {"silence_seconds": 3.25, "deadline_seconds": 3.0, "beat_seconds": 1.0}
    (gaps,) = finding.evidence.series
    assert gaps.x == (*(START + second for second in range(16, 31)), START + 33.25), "the last sixteen beats"
    assert gaps.y == (*[1.0] * 15, 3.25)
    assert finding.confidence == 0.8, "one silent stream cannot tell the node from its probe"
    (unknown,) = beats_of_one([16, 17], seconds=30.0)
    assert "(expected every 1 s)" in unknown.evidence.summary
    (never,) = beats_of_one([16], seconds=30.0)
    assert "(rhythm not yet learned)" in never.evidence.summary
    both = beats_of_one([*range(31)], others_at=tuple(range(31)), seconds=34.0)
    assert [(f.kind, f.confidence) for f in both] == [(LOST, 0.95)]


@pytest.mark.parametrize(
    ("mean", "variance", "gaps", "deadline"),
    [
        (1.0, 0.0, 2, 10.0),
        (1.0, 0.0, 3, 3.0),
        (0.2, 0.0, 3, 1.5),
        (1.0, 0.25, 3, 1.0 + 5.6 * 0.5),
        (1.0, 0.36**2, 3, 3.016),
        (1.0, 0.35**2, 3, 3.0),
        (np.nan, 0.0, 0, 10.0),
    ],
)
def test_the_deadline_follows_from_the_rhythm(mean: float, variance: float, gaps: int, deadline: float) -> None:
    detector = HeartbeatDetector()
    detector.rows.align((Entity(node="n0"),))
    for name, value in (("mean", mean), ("variance", variance), ("gaps", gaps)):
        detector.rows[name] = np.array([value])
    assert detector.deadline()[0] == pytest.approx(deadline)


def test_the_rhythm_is_mean_and_variance_of_the_first_gaps_and_then_follows_slowly() -> None:
    detector = HeartbeatDetector()
    rows = detector.rows
    rows.align((Entity(node="n0"),))

    def learn(gap: float) -> tuple[float, float]:
        detector._learn(np.array([True]), np.array([gap]), np.array([10.0]))
        return float(rows["mean"][0]), float(rows["variance"][0])

    assert learn(1.0) == (1.0, 0.0)
    assert learn(2.0) == pytest.approx((1.5, 0.25))
    assert learn(3.0) == pytest.approx((2.0, 2 / 3))
    rows["gaps"], rows["variance"] = np.array([50]), np.array([0.0])
    assert learn(3.0) == pytest.approx((2.1, 0.9 * 0.1 * 1.0))
    rows["mean"] = np.array([2.0])
    assert learn(500.0)[0] == pytest.approx(2.0 + 0.1 * 8.0), "an outage counts as its deadline"


def test_only_time_in_which_it_listened_counts() -> None:
    detector = HeartbeatDetector()
    steps = [detector._listen(now) for now in (100.0, 101.0, 104.0, 104.5, 114.5)]
    assert (steps, detector._listened, detector._accused_from) == ([0.0, 1.0, 2.0, 0.5, 2.0], 5.5, 16.0)
    assert detector._listen(124.75) == 2.0, "a gap of more than ten seconds: senders may be in back-off"
    assert detector._accused_from == 7.5 + 16.0
    assert detector._listen(120.0) == 0.0, "a clock that is set back"


def test_what_is_said_of_a_probe_that_is_silent() -> None:
    found = beats_of_one([*range(31)], others_at=tuple(range(0, 40, 2)), seconds=54.0)
    assert [f.evidence.summary for f in found] == [
        "No frame from node n0 for 3.2 s (expected every 1 s); but other streams of the node still report.",
        "Node n0: see node_lost.",
        "No frame from node n0 for 23.2 s (expected every 1 s); nothing else from it is heard.",
    ]
    assert [f.confidence for f in found if f.active] == [0.95, 0.95]
    back = beats_of_one([*range(31), 40, 41], seconds=42.0)
    assert back[-1].evidence.summary == "Node n0 is heard again."


@pytest.mark.parametrize(
    ("latest", "heard_at"),
    [
        (100.5, 10.0),  # its clock is ahead: it was heard now
        (99.25, 9.25),
        (97.0, 8.0),  # no sooner than the last look, two seconds ago
    ],
)
def test_when_a_frame_was_heard_on_the_clock_of_listening(latest: float, heard_at: float) -> None:
    detector = HeartbeatDetector()
    detector.rows.align((Entity(node="n0"),))
    detector._listened = 10.0
    assert detector._hear("other", np.array([latest]), 100.0, 2.0, np.array([3.0])).tolist() == [True]
    assert (detector.rows["other"][0], detector.rows["other_heard"][0]) == (latest, heard_at)
    assert detector._hear("other", np.array([latest]), 101.0, 1.0, np.array([3.0])).tolist() == [False], "no news"


@pytest.mark.parametrize(
    ("other", "other_heard", "state"),
    [
        (110.0, 85.0, PROBE),  # fifteen seconds ago
        (110.0, 84.9, LOST),
        (101.5, 95.0, LOST),  # no later than half the deadline after the last frame
        (101.6, 95.0, PROBE),
        (np.nan, np.nan, LOST),
    ],
)
def test_which_other_reports_count(other: float, other_heard: float, state: FindingKind) -> None:
    detector = HeartbeatDetector()
    detector.rows.align((Entity(node="n0"),))
    detector._listened = 100.0
    for name, value in (("beat", 100.0), ("beat_heard", 90.0), ("other", other), ("other_heard", other_heard)):
        detector.rows[name] = np.array([value])
    judged = detector._judge(np.array([False]), np.array([3.0]))
    assert [_KIND[int(each)] for each in judged] == [state]
    assert detector._judge(np.array([False]), np.array([10.0])).tolist() == [0], "within its deadline"
