"""The parts of the delay test one by one: what is taken in, learned, agreed on, told and taken back."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, FindingKind
from mainstay.detectors.job.mesh import JobMesh, regular
from mainstay.detectors.network.fabric import ComponentKind, FaultHypothesis
from mainstay.detectors.network.transfer_delay_config import DelaysConfig
from mainstay.detectors.network.transfer_delay_limits import DelayThresholds
from mainstay.detectors.network.transfer_delay_noise import _exponent, calibrate
from mainstay.detectors.network.transfer_delay_pools import LinkPools
from mainstay.detectors.network.transfer_delays import TransferDelayDetector

NAN = float("nan")
MESH = regular("job", dp=8, ranks_per_node=2, leaf_nodes=2)


def reports(
    seconds: list[float] | np.ndarray,
    *,
    size: float | list[float] = 8e6,
    pairs: tuple[tuple[int, int], ...] = ((0, 2),),
    mesh: JobMesh | None = None,
) -> Samples:
    """[step] or [step, pair] seconds of these pairs."""
    took = np.broadcast_to(np.array(seconds, float).reshape(len(seconds), -1), (len(seconds), len(pairs)))
    x = np.stack((took, np.broadcast_to(np.array(size, float).reshape(-1, 1), took.shape)), axis=1)
    return Samples(
        entities=tuple(Entity(job="job", rank=a, peer=b) for a, b in pairs),
        groups=("",) * len(pairs),
        signals=TransferDelayDetector.signals,
        t=5.0 * np.arange(len(x), dtype=np.float64),
        x=x,
        steps=np.arange(len(x)),
        mesh=mesh,
    )


def following(samples: Samples) -> TransferDelayDetector:
    detector = TransferDelayDetector()
    assert detector._follow(samples) == []
    return detector


def test_a_pair_is_learned_from_twenty_transfers_after_five() -> None:
    seconds = [100.0] * 5 + [1.0 + k / 100 for k in range(20)] + [2.0]
    samples = reports(seconds)
    detector = following(samples)
    taken = [float(detector._take(samples, k)[0]) for k in range(26)]
    usual = (np.log(1.09) + np.log(1.10)) / 2
    assert np.isnan(taken[:25]).all()
    assert detector.rows["base"][0] == pytest.approx(usual)
    assert taken[25] == pytest.approx(np.log(2.0) - usual)
    assert detector.rows["bytes"][0] == pytest.approx(np.log(8e6))
    assert detector.rows["seen"][0] == 26
    assert detector.rows["drawn"][-3:, 0] == pytest.approx([1.18, 1.19, 2.0])
    assert not detector.rows["by_bytes"][0]


@pytest.mark.parametrize(
    ("seconds", "same"),
    [
        ([1.0, 1.0, 1.0], 2),
        ([1.0, 1.0, 2.0], 0),
        ([1.0, NAN, 1.0], 1),
        ([1.0, 0.0, 1.0, 1.0], 2),
        ([1.0, 1.0, -1.0], 1),
    ],
)
def test_how_often_a_sensor_said_the_same(seconds: list[float], same: int) -> None:
    samples = reports(seconds)
    detector = following(samples)
    for k in range(len(seconds)):
        detector._take(samples, k)
    assert detector.rows["same"][0] == same


@pytest.mark.parametrize(("same", "stuck"), [(18, False), (19, True)])
def test_twenty_equal_values_are_a_stuck_sensor(same: int, stuck: bool) -> None:
    detector = following(reports([1.0]))
    detector.rows["same"][0] = same
    assert detector._stuck().tolist() == [stuck]


@pytest.mark.parametrize(("factor", "odd"), [(1.49, False), (1.51, True), (1 / 1.49, False), (1 / 1.51, True)])
def test_messages_of_another_size_are_not_compared_and_learned_again_if_they_last(factor: float, odd: bool) -> None:
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(0, 0.05, 60))
    samples = reports(seconds, size=[8e6] * 30 + [8e6 * factor] * 30)
    detector = following(samples)
    taken = [float(detector._take(samples, k)[0]) for k in range(60)]
    assert np.isfinite(taken[25:30]).all()
    assert bool(np.isfinite(taken[30:49]).all()) is not odd
    counts = detector.rows["odd"][0], bool(np.isfinite(detector.rows["base"][0]))
    assert counts == ((0, False) if odd else (0, True)), "after twenty it is forgotten"


def test_one_odd_message_more_or_less_is_counted_in_a_row() -> None:
    seconds = np.exp(np.random.default_rng(0).normal(0, 0.05, 32))
    samples = reports(seconds, size=[8e6] * 26 + [8e7] * 3 + [8e6] + [8e7] * 2)
    detector = following(samples)
    odd = []
    for k in range(32):
        detector._take(samples, k)
        odd.append(int(detector.rows["odd"][0]))
    assert odd[25:] == [0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize(("noise", "by_bytes"), [(0.5, True), (0.0, False)])
def test_a_pair_is_measured_by_its_bytes_where_that_is_quieter(noise: float, by_bytes: bool) -> None:
    size = 8e6 * np.exp(np.random.default_rng(1).normal(0, noise, 26))
    jitter = np.exp(np.random.default_rng(2).normal(0, 0.01, 26))
    samples = reports(size / 1e9 * jitter, size=size.tolist())
    detector = following(samples)
    taken = [float(detector._take(samples, k)[0]) for k in range(26)]
    assert bool(detector.rows["by_bytes"][0]) is by_bytes
    expected = -np.log(1e9) + np.median(np.log(jitter[5:25])) + (0.0 if by_bytes else np.log(8e6))
    assert detector.rows["base"][0] == pytest.approx(expected)
    assert taken[25] == pytest.approx(np.log(jitter[25]) - np.median(np.log(jitter[5:25])))


PAIRS = tuple((a, b) for a in range(8) for b in range(8) if a != b)


@pytest.mark.parametrize(
    ("near", "agreed"),
    [
        ([(0, 3)], []),
        ([(0, 3), (0, 4)], [(0, 3), (0, 4)]),  # one sender
        ([(0, 3), (1, 3)], [(0, 3), (1, 3)]),  # one receiver
        ([(0, 3), (3, 0)], []),
        ([(0, 3), (1, 4)], []),
        ([(0, 3), (0, 4), (2, 5)], [(0, 3), (0, 4)]),
    ],
)
def test_suspects_of_one_sender_or_receiver_agree(near: list[tuple[int, int]], agreed: list[tuple[int, int]]) -> None:
    detector = following(reports([1.0], pairs=PAIRS, mesh=MESH))
    for pair in PAIRS:
        detector.rows["score"][PAIRS.index(pair)] = 7.0 if pair in near else 6.9
    assert [PAIRS[row] for row in np.flatnonzero(detector._agreed())] == agreed


def hypothesis_of(cell: int, part: ComponentKind = ComponentKind.LINK) -> FaultHypothesis:
    name = PAIRS[cell] if part is ComponentKind.LINK else (PAIRS[cell][0],)
    return FaultHypothesis(part=part, name=name, cells=np.array([cell]), effect=float(np.log(2)), score=30.0)


def changes_of(detector: TransferDelayDetector, *stories: str) -> list[tuple[str, bool]]:
    known = {"link": hypothesis_of(2), "other": hypothesis_of(9), "sender": hypothesis_of(2, ComponentKind.SENDER)}
    found = detector._tell({name: known[name] for name in stories}, 5.0)
    return [(f"{f.entity.rank}-{f.entity.peer}", f.active) for f in found]


def test_a_change_of_mind_has_to_last_two_steps() -> None:
    detector = following(reports([1.0], pairs=PAIRS, mesh=MESH))
    assert changes_of(detector, "link") == [("0-3", True)], "the first needs no second step"
    assert detector._said["link"].ranks == {0, 3}
    assert changes_of(detector, "link") == []
    assert changes_of(detector, "link", "other") == []
    assert changes_of(detector, "link", "other") == [("1-3", True)]
    assert changes_of(detector, "other") == []
    assert changes_of(detector, "link", "other") == [], "absent once is not over"
    assert changes_of(detector, "other") == []
    assert changes_of(detector, "other", "sender") == [("0-3", False)]
    assert changes_of(detector, "other") == [], "the third was asked for once, and then not"
    assert changes_of(detector, "other", "sender") == []
    assert changes_of(detector, "other", "sender") == [("0-None", True)]
    assert changes_of(detector) == []
    assert changes_of(detector) == [("1-3", False), ("0-None", False)]


@pytest.mark.parametrize(
    ("here", "links", "gone"),
    [
        ({0, 3}, {(0, 3)}, []),
        ({0, 3}, {(3, 0)}, ["link"]),
        ({3, 5}, {(0, 3)}, ["sender"]),
        ({0, 5}, {(0, 3)}, []),
        ({4}, set(), ["link", "sender", "switch"]),
        ({3}, {(0, 3)}, ["sender"]),
    ],
)
def test_what_left_the_fleet_is_taken_back(
    here: set[int], links: set[tuple[int | None, int | None]], gone: list[str]
) -> None:
    """A link goes with its pair, a sender with its rank, and a switch when no rank at its ends is left."""
    detector = following(reports([1.0], pairs=PAIRS, mesh=MESH))
    above = FaultHypothesis(
        part=ComponentKind.SWITCH, name="leaf-0", cells=np.array([2]), effect=0.7, score=30.0, rivals=(), also=()
    )
    detector._tell({"link": hypothesis_of(2), "sender": hypothesis_of(2, ComponentKind.SENDER), "switch": above}, 5.0)
    found = detector._withdraw(here, links, 6.0)
    assert [f.active for f in found] == [False] * len(gone)
    assert sorted({"link", "sender", "switch"} - detector._said.keys()) == gone
    assert all(f.evidence.summary == "It left the fleet and is no longer watched." for f in found)


@pytest.mark.parametrize(
    ("pool", "mesh", "words"),
    [(1, MESH, "within the nodes"), (0, MESH, "between the nodes"), (0, None, "between the ranks")],
)
def test_when_all_are_slow_it_is_said_once(pool: int, mesh: JobMesh | None, words: str) -> None:
    detector = following(reports([1.0], pairs=PAIRS, mesh=mesh))
    detector._pools.on[pool] = True
    (finding,) = detector._say_pool(pool, float(np.log(1.6)), 5.0)
    assert finding.evidence.summary == (
        f"All transfers {words} take 1.6 times as long as before: the fabric or the job, no rank."
    )
    assert (finding.kind, finding.entity, finding.confidence) == (FindingKind.CONGESTION, Entity(job="job"), 0.8)
    assert finding.evidence.numbers == pytest.approx({"ratio": 1.6})
    assert detector._said["all"].ranks == set(range(8))
    assert detector._say_pool(1 - pool, 0.5, 6.0) == []
    detector._pools.on[pool] = False
    (over,) = detector._say_pool(pool, 0.0, 7.0)
    assert (over.active, over.time) == (False, 7.0)
    assert detector._say_pool(pool, 0.0, 8.0) == []


@pytest.mark.parametrize(
    ("before", "r", "known", "expected"),
    [
        # Noise of 5 %, a drift of 1 and a weight of 1: the score moves by r / 0.05 - 1
        (2.0, 0.15, True, (4.0, 8)),
        (2.0, 9.0, True, (5.0, 8)),  # four at most
        (0.5, 0.0, True, (0.0, 0)),
        (14.0, 9.0, True, (15.0, 8)),
        (2.0, 0.15, False, (2.0, 7)),
        (2.0, NAN, True, (2.0, 7)),
    ],
)
def test_one_step_moves_the_score(before: float, r: float, known: bool, expected: tuple[float, int]) -> None:
    detector = following(reports([1.0]))
    limits = detector._limits
    limits.sigma[:], limits.drift[:], limits.weight[:] = 0.05, 1.0, 1.0 if known else NAN
    detector.rows["score"][:], detector.rows["slow"][:], detector.rows["base"][:] = before, 7, 0.0
    detector._score(np.array([r + 0.02]), np.array([0.02]))
    assert (detector.rows["score"][0], detector.rows["slow"][0]) == pytest.approx(expected)
    assert detector.rows["peers"][-1, 0] == pytest.approx(np.exp(0.02))


@pytest.mark.parametrize(
    ("score", "hot", "r", "moved"),
    [
        (5.9, False, 0.05, 0.005 * 0.05),
        (5.9, False, 0.5, 0.005 * 0.1),  # no burst moves it
        (5.9, False, -0.5, -0.005 * 0.1),
        (6.0, False, 0.05, 0.0),  # half of the score to begin
        (0.0, True, 0.05, 0.0),
    ],
)
def test_a_quiet_pairs_usual_time_follows_slowly(score: float, hot: bool, r: float, moved: float) -> None:
    detector = following(reports([1.0]))
    detector.rows["score"][:], detector.rows["hot"][:], detector.rows["base"][:] = score, hot, 3.0
    detector._score(np.array([r]), np.array([0.0]))
    assert detector.rows["base"][0] - 3.0 == pytest.approx(moved)


@pytest.mark.parametrize(
    ("count", "slow", "found"),
    [
        (8, 1.51, True),
        (8, 1.49, False),  # half as long again
        (7, 9.0, False),  # eight pairs of a kind
    ],
)
def test_a_pair_slow_from_the_start_stands_out_among_eight(count: int, slow: float, found: bool) -> None:
    detector = following(reports([1.0], pairs=PAIRS, mesh=MESH))
    members = np.arange(count)
    detector.rows["base"][members], detector.rows["bytes"][:] = 0.0, np.log(8e6)
    detector.rows["base"][3] = np.log(slow)
    detector._compare(members)
    expected = np.full(count, NAN if count < 8 else 0.0)
    expected[3] = np.log(slow) if found else expected[3]
    assert detector.rows["excess"][members].tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_pairs_are_compared_with_those_whose_messages_are_alike() -> None:
    detector = following(reports([1.0], pairs=PAIRS, mesh=MESH))
    members = np.arange(24)
    detector.rows["base"][members] = np.repeat([0.0, 1.0, 5.0], 8)
    detector.rows["bytes"][members] = np.log(8e6) + np.log(2) * np.repeat([0, 1, 2], 8)
    detector.rows["base"][[0, 23]] = 0.7, 5.9
    detector._compare(members)
    assert np.flatnonzero(detector.rows["excess"][members] > 0.0).tolist() == [0, 23]
    assert detector.rows["excess"][[0, 23]].tolist() == pytest.approx([0.7, 0.9])


@pytest.mark.parametrize(
    ("increments", "worst", "unseen", "theta"),
    [
        ([1.0, -1.0, -1.0], 9.0, 0.0, np.log(2)),  # (x + 2 / x) / 3 = 1
        ([-1.0, -1.0], 1.0, 1 / 3, np.log(2)),
        (
            [2.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0],
            0.0,
            0.0,
            np.log((29**0.5 - 1) / 2),
        ),  # (x - 1)(x^2 + x - 7) = 0
        ([1.0, -0.5], 9.0, 0.0, 1e-3),  # its mean is not negative
        ([-1.0], 0.0, 0.0, 10.0),
    ],
)
def test_how_rare_a_score_is_by_chance(increments: list[float], worst: float, unseen: float, theta: float) -> None:
    assert _exponent(np.array(increments), worst, unseen) == pytest.approx(theta, abs=2e-6)


KEYS = {"shift": float(np.log(2)), "least": float(np.log(1.2)), "clip": 4.0}


@pytest.mark.parametrize(
    ("floor", "scale"),
    [
        (0.03, 1.0),  # the drift is 0.0912 / 0.03 = 3.04 of the 4 that a step may say
        (0.02, 1.3),  # at 4.56 of 4 nothing would be said
    ],
)
def test_where_noise_is_the_floor_the_narrowest_scale_that_says_something_is_taken(floor: float, scale: float) -> None:
    found = calibrate(np.zeros(3000), rare=10.0, floor=floor, **KEYS)
    k = KEYS["least"] / 2 / (floor * scale)
    assert (found.bulk, found.sigma, found.k) == pytest.approx((floor, floor * scale, k))
    assert (found.h, found.steps) == pytest.approx((2.2 * (4.0 - k), 2.2)), "two steps are never enough"


def test_noise_above_the_shift_is_never_judged() -> None:
    found = calibrate(np.array([1.0, -1.0] * 500), rare=1e6, floor=0.03, **KEYS)
    assert (found.bulk, found.sigma, found.k) == pytest.approx((1.4826, 1.4826 * 4.5, 1.0))
    assert (found.h, found.steps) == (np.inf, np.inf)


def test_the_limit_is_the_logarithm_of_the_rarity_over_the_exponent() -> None:
    """The noise is 0.1 either way: E[exp(theta (z - k))] is 1, with three of a thousand at the clip."""
    quiet = np.array([0.1, -0.1] * 500)
    found = calibrate(quiet, rare=1e6, floor=0.03, **KEYS)
    theta, unseen = np.log(1e6) / found.h, 0.003
    mean = (1 - unseen) * np.exp(theta * (quiet / found.sigma - found.k)).mean() + unseen * np.exp(theta * 3.0)
    assert mean == pytest.approx(1.0, abs=1e-4)
    assert (found.bulk, found.k) == pytest.approx((0.14826, 1.0))
    assert found.steps == pytest.approx(found.h / (min(4.0, KEYS["shift"] / found.sigma) - 1.0))


def test_half_of_the_least_slowdown_is_drift_of_a_pool() -> None:
    """At 3 % of noise each slow step counts 4 less 0.1 / 2 / 0.03: the sixth makes twelve."""
    pools = LinkPools(0.1, 8)
    steps = [step for step, shift in enumerate([0.0] * 20 + [1.0] * 8) if pools.judge(np.array([NAN, shift]))]
    assert steps == [25]


def test_the_shift_of_a_pool_knows_its_own_noise_only() -> None:
    y, pool = np.array([*range(8), 50.0, 60.0], float), np.array([1] * 8 + [0, 0])
    shift = LinkPools(0.1, 8).shift(y, pool, np.where(pool == 1, 0.1, 5.0))
    assert shift.tolist() == pytest.approx([50.0, 2.0 + 0.6745 * 0.1])


def test_a_level_is_measured_in_the_pairs_own_noise_and_only_where_its_kind_is_judged() -> None:
    rng = np.random.default_rng(0)
    memory = rng.normal(0.0, 0.05, (32, 60))
    memory[:, 7] *= 6.0
    memory[:, 30:] = rng.normal(0.0, 2.0, (32, 30))  # too loud a kind
    limits = DelayThresholds(60, DelaysConfig())
    limits.measure(memory, np.repeat([0, 1], 30), np.ones(60, np.bool_))
    slow = np.zeros(60, np.int64)
    slow[[4, 7, 40]] = 5
    now = memory.copy()
    now[-5:, [4, 7, 40]] = np.log(2.0)
    assert np.flatnonzero(limits.lasting(now, slow)).tolist() == [4]
    now[-5:, [4, 7]] = np.log(2.0), np.log(2.0) * 6
    assert np.flatnonzero(limits.lasting(now, slow)).tolist() == [4, 7]
