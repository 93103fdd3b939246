"""The rules behind the verdict, one by one: who is silent, frozen, inside; which counters can be believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.lib_hangs import Shape
from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, FindingKind
from mainstay.detectors.hang.detector import HangDetector, JobActivity
from mainstay.detectors.hang.groups import GroupLabels, _repaired
from mainstay.detectors.hang.messages import verdict
from mainstay.detectors.hang.wait_graph import INNERMOST_FIRST, HangCulprit, HangLocalization, StallKind
from mainstay.detectors.job.mesh import JobMesh, regular
from mainstay.probes.core_types import GROUP_KINDS, StepPhase

NAN, INF = np.nan, np.inf


def hung_job(ranks: int = 1, mesh: JobMesh | None = None) -> tuple[HangDetector, Samples]:
    """A job whose last collective ended at 100 s."""
    samples = Samples(
        entities=tuple(Entity(job="demo", rank=rank, node="n0") for rank in range(ranks)),
        groups=("",) * ranks,
        signals=(),
        t=np.array([100.0]),
        x=np.empty((1, 0, ranks)),
        mesh=mesh,
    )
    detector = HangDetector()
    detector.rows.align(samples.entities)
    detector._moved = 100.0
    return detector, samples


@pytest.mark.parametrize(
    ("heard", "t", "step_seconds", "silent", "frozen"),
    [
        (100.0, 103.0, 0.0, True, False),
        (100.0, 102.9, 0.0, False, False),
        (95.0, 103.0, 0.0, True, False),
        (94.9, 103.0, 0.0, False, False),  # its reporter was lost before the standstill
        (94.9, 103.0, 3.0, True, False),  # less than two steps before
        (94.0, 103.0, 3.0, True, False),
        (93.9, 103.0, 3.0, False, False),
        (20.0, 103.0, 0.0, False, False),
        (-INF, 103.0, 0.0, False, False),  # never heard
        (100.1, 103.2, 0.0, False, False),  # it only lost some samples
        (100.5, 108.5, 0.0, False, True),
        (100.5, 108.4, 0.0, False, False),
        (100.0, 108.5, 0.0, True, False),
    ],
)
def test_who_is_silent_and_who_is_frozen(
    heard: float, t: float, step_seconds: float, silent: bool, frozen: bool
) -> None:
    detector, _ = hung_job()
    detector.rows["heard"] = np.array([heard])
    if step_seconds:
        detector._quiet.learn_steps(step_seconds)
    assert (detector._silent(t)[0], detector._frozen(t)[0]) == (silent, frozen)


@pytest.mark.parametrize(
    ("inside", "at", "quiet", "ranks"),
    [
        (NAN, NAN, 10.0, None),  # no rank keeps that clock
        (0.0, 110.0, 10.0, []),
        (4.0, 110.0, 8.0, [0]),
        (4.0, 110.0, 8.1, []),  # less than half the standstill: another call, or a stuck clock
        (3.0, 109.0, 8.0, [0]),  # it has gone on since it was heard
    ],
)
def test_who_is_inside_a_call(inside: float, at: float, quiet: float, ranks: list[int] | None) -> None:
    detector, samples = hung_job()
    detector.rows["inside"], detector.rows["inside_at"] = np.array([inside]), np.array([at])
    found = detector._inside(samples, 110.0, quiet)
    assert (None if found is None else found.tolist()) == ranks


@pytest.mark.parametrize(
    ("inside", "quiet"),
    [
        ([NAN, NAN], 4.0),
        ([0.0, 0.0], 4.0),
        ([4.25, 0.0], 4.25),
        ([4.25, 4.75], 4.5),
        ([9.0, 9.0], 5.0),  # at most one sample more than was seen
        ([1.0, 1.0], 4.0),
    ],
)
def test_seconds_since_the_last_completion(inside: list[float], quiet: float) -> None:
    detector, _ = hung_job(2)
    detector.rows["inside"], detector.rows["inside_at"] = np.array(inside), np.full(2, 104.0)
    assert detector._quiet_seconds(104.0) == quiet


@pytest.mark.parametrize(
    ("enqueued", "completed", "inside", "waits"),
    [
        (NAN, NAN, NAN, True),  # no report: only the clock is left
        (NAN, NAN, 0.0, False),
        (NAN, NAN, 0.5, True),
        (5.0, 5.0, NAN, False),
        (6.0, 5.0, NAN, True),
        (6.0, 5.0, 0.0, True),
        (5.0, 5.0, 0.5, True),
    ],
)
def test_whether_anybody_is_inside_a_call(enqueued: float, completed: float, inside: float, waits: bool) -> None:
    detector, _ = hung_job()
    detector.rows["enqueued"][2], detector.rows["completed"][2] = enqueued, completed
    detector.rows["inside"] = np.array([inside])
    assert detector._somebody_waits() is waits


@pytest.mark.parametrize(
    ("quiet", "phase", "hung", "activity"),
    [
        (1.0, StepPhase.TRAIN, 0, JobActivity.MOVING),
        (1.1, StepPhase.TRAIN, 0, JobActivity.WAITING),
        (1.1, StepPhase.CHECKPOINT, 0, JobActivity.MASKED),
        (1.0, StepPhase.CHECKPOINT, 0, JobActivity.MOVING),
        (0.0, StepPhase.TRAIN, 1, JobActivity.HUNG),
    ],
)
def test_how_a_job_stands(quiet: float, phase: StepPhase, hung: int, activity: JobActivity) -> None:
    detector, _ = hung_job()
    detector._phase, detector._hung_for = phase, hung
    assert detector._activity(quiet) is activity


@pytest.mark.parametrize(
    ("enqueued", "completed", "inside", "expected"),
    [
        (5, 5, 0.0, (5, 5)),
        (6, 5, 3.0, (6, 5)),
        (7, 5, 0.0, (7, 7)),  # the count of completions is stuck
        (7, 5, 3.0, (7, 6)),
        (5, 7, 0.0, (7, 7)),  # the count of entries is stuck
        (5, 7, 3.0, (8, 7)),
        (5, 7, NAN, (7, 7)),
        (5, 6, 0.0, (6, 6)),
        (NAN, 7, 0.0, (NAN, 7)),
    ],
)
def test_a_stuck_counter_is_told_by_the_other(
    enqueued: float, completed: float, inside: float, expected: tuple[float, float]
) -> None:
    """Of ranks that block in their calls; ten others are sound."""
    begun, ended = (np.array([[value, *[5.0] * 10]], float) for value in (enqueued, completed))
    repaired = _repaired(begun, ended, np.array([inside, *[0.0] * 10]))
    assert [float(counts[0, 0]) for counts in repaired] == pytest.approx(expected, nan_ok=True)
    assert (repaired[0][0, 1:] == 5.0).all()
    assert (begun[0, 0], ended[0, 0]) == pytest.approx((enqueued, completed), nan_ok=True), "the input stays"


def test_counters_that_run_ahead_everywhere_are_their_way() -> None:
    begun, ended = np.array([[7.0, *[5.0] * 9]]), np.full((1, 10), 5.0)  # one of nine is more than a tenth
    assert _repaired(begun, ended, np.zeros(10))[1][0, 0] == 5.0


def test_a_call_that_is_open_elsewhere_is_not_this_one() -> None:
    begun = np.array([[7.0, *[5.0] * 10], [3.0, *[2.0] * 10]])
    ended = np.array([[5.0, *[5.0] * 10], [2.0, *[2.0] * 10]])
    repaired = _repaired(begun, ended, np.array([4.0, *[0.0] * 10]))
    assert repaired[1][0, 0] == 7.0


def counted(kinds: dict[str, list[tuple[float, float]]], mesh: JobMesh | None) -> tuple[HangDetector, Samples]:
    """(entered, completed) of each rank by kind of group."""
    detector, samples = hung_job(len(next(iter(kinds.values()))), mesh)
    for kind, counts in kinds.items():
        k = GROUP_KINDS.index(kind)
        detector.rows["enqueued"][k], detector.rows["completed"][k] = np.array(counts, float).T
    return detector, samples


def test_groups_follow_the_mesh_and_ranks_beyond_it_stand_alone() -> None:
    mesh = Shape(dp=2, tp=2).mesh()
    detector, samples = counted({"tp": [(5, 4), (4, 4), (6, 6), (6, 6), (9, 9)], "world": [(1, 1)] * 5}, mesh)
    progress = detector._groups_of.progress(samples, detector.rows, 0)
    assert sorted(progress.kinds) == ["tp", "tp", "tp", "world"]
    of_tp = np.array([progress.kinds[number] == "tp" for number in progress.group])
    members = [
        progress.rank[of_tp & (progress.group == number)].tolist() for number in np.unique(progress.group[of_tp])
    ]
    assert members == [[0, 1], [2, 3], [4]]
    assert progress.enqueued[of_tp].tolist() == [5, 4, 6, 6, 9]
    assert progress.completed[of_tp].tolist() == [4, 4, 6, 6, 9]
    assert {int(depth) for depth in progress.depth[progress.group[of_tp]]} == {INNERMOST_FIRST.index("tp")}
    assert not progress.pairwise.any()
    assert progress.role is not None
    assert progress.role[of_tp].tolist()[:4] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("kind", "known", "compared"),
    [("world", False, True), ("tp", False, False), ("tp", True, True), ("pp", True, False)],
)
def test_counts_are_compared_where_it_is_known_who_belongs_together(kind: str, known: bool, compared: bool) -> None:
    mesh = Shape(tp=2, pp=2).mesh() if known else None
    detector, samples = counted({kind: [(5, 4)] * 4}, mesh)
    progress = detector._groups_of.progress(samples, detector.rows, 0)
    assert progress.pairwise.tolist() == [not compared] * len(progress.kinds)


@pytest.mark.parametrize(("changed", "believed"), [(10, False), (11, True)])
def test_a_rank_that_its_group_passed(changed: int, believed: bool) -> None:
    """Others completed call 6 without it: its sensor is stuck, or, where it moves, it counts from zero again."""
    detector, samples = counted({"world": [(4, 4), (7, 6), (7, 6)]}, None)
    detector.rows["changed"] = np.array([changed, 20, 20])
    progress = detector._groups_of.progress(samples, detector.rows, 10)
    assert bool(np.isfinite(progress.enqueued[0])) is believed
    assert progress.pairwise.tolist() == [believed]
    detector.rows["completed"][GROUP_KINDS.index("world")] = 4.0
    progress = detector._groups_of.progress(samples, detector.rows, 20)
    assert np.isfinite(progress.enqueued).all(), "only behind: that is what a culprit looks like"


def test_without_counters_it_is_known_who_is_inside_a_call() -> None:
    detector, samples = hung_job(3)
    detector.rows["inside"] = np.array([2.0, 0.0, NAN])
    progress = detector._groups_of.progress(samples, detector.rows, 0)
    assert (progress.kinds, progress.pairwise.tolist(), progress.group.tolist()) == (("world",), [True], [0, 0, 0])
    assert (progress.enqueued.tolist(), progress.completed.tolist()) == ([1, 0, 0], [0, 0, 0])
    assert progress.depth.tolist() == [INNERMOST_FIRST.index("world")]


def test_labels_are_kept_until_the_mesh_or_the_ranks_change() -> None:
    mesh = Shape(tp=2).mesh()
    labels, (_, samples) = GroupLabels(), hung_job(2, mesh)
    labels._follow(samples)
    first = labels.labels
    labels._follow(replace(samples, entities=tuple(samples.entities)))
    assert labels.labels is first
    labels._follow(replace(samples, mesh=Shape(tp=2).mesh()))
    assert labels.labels is not first
    labels._follow(hung_job(3, mesh)[1])
    assert labels.labels.shape == (len(GROUP_KINDS), 3)


@pytest.mark.parametrize(
    ("culprits", "most", "sure", "kind", "confidence"),
    [
        (1, 3, True, None, 0.95),
        (2, 3, True, None, 0.95),
        (3, 3, True, None, 0.7),  # most of a job at fault is likelier a fault of its reports
        (1, 3, False, None, 0.6),
        (4, 3, True, FindingKind.NONCOMM_HANG, 0.6),
        (0, 3, True, FindingKind.NONCOMM_HANG, 0.5),
    ],
)
def test_how_sure_it_is_of_whom(
    culprits: int, most: int, sure: bool, kind: FindingKind | None, confidence: float
) -> None:
    detector, samples = counted({"world": [(5, 4)] * 4}, None)
    progress = detector._groups_of.progress(samples, detector.rows, 0)
    blamed = tuple(
        HangCulprit(
            rank=rank, stall=StallKind.BEHIND, group=0, behind_entered=1.0, behind_completed=NAN, waiting=1, sure=sure
        )
        for rank in range(culprits)
    )
    place = HangLocalization(stall=StallKind.BEHIND, culprits=blamed)
    found = verdict(
        place,
        progress,
        samples,
        quiet=6.0,
        limit=4.0,
        phase=StepPhase.TRAIN,
        kept=np.zeros(len(samples.entities), np.bool_),
        most=most,
    )
    assert (found.kind, found.confidence, sorted(found.rows)) == (kind, confidence, [*range(culprits)] * (kind is None))
    if found.rows:
        text, numbers = found.rows[0]
        assert text == (
            "Rank 0 on n0 holds up the job, 1 collective behind its world group; 1 rank waits for it in world; "
            "nothing was completed for 6.0 s (limit 4.0 s)."
        )
        assert numbers == {
            "waiting_ranks": 1, "behind_entered": 1, "quiet_seconds": 6, "limit_seconds": 4, "phase": StepPhase.TRAIN,
        }  # fmt: skip


def test_a_kind_of_group_that_the_mesh_does_not_have_is_one_group_of_all() -> None:
    detector, samples = counted({"cp": [(5, 4)] * 4}, regular("demo", dp=2, tp=2))
    progress = detector._groups_of.progress(samples, detector.rows, 0)
    assert (progress.kinds, progress.group.tolist(), progress.pairwise.tolist()) == (("cp",), [0] * 4, [True])


def test_ranks_half_a_second_inside_a_call_are_inside_and_one_without_a_number_is_none() -> None:
    detector, samples = hung_job(2)
    unknown = replace(samples, entities=(samples.entities[0], Entity(job="demo", node="n0")))
    detector.rows["inside"] = np.array([0.5, 0.0])
    progress = detector._groups_of.progress(unknown, detector.rows, 0)
    assert (progress.rank.tolist(), progress.enqueued.tolist()) == ([0, -1], [1.0, 0.0])
