"""The messages about a hang: the sentences, their numbers, and how sure they are."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Cause, Entity, FindingKind, join_names
from mainstay.detectors.hang.messages import HangVerdict, verdict
from mainstay.detectors.hang.wait_graph import GroupProgress, HangCulprit, HangLocalization, StallKind
from mainstay.probes.core_types import StepPhase

NAN = float("nan")
TIME = "nothing was completed for 6.2 s (limit 4.0 s)"


def verdict_on(
    place: HangLocalization,
    *,
    nodes: tuple[str | None, ...] = ("n0",) * 4,
    phase: StepPhase = StepPhase.TRAIN,
    most: int = 4,
) -> HangVerdict:
    """Of a job of which all ranks are in group 0 (tp) and group 1 (world)."""
    size = len(nodes)
    samples = Samples(
        entities=tuple(Entity(job="j", rank=rank, node=node) for rank, node in enumerate(nodes)),
        groups=("",) * size,
        signals=(),
        t=np.array([0.0]),
        x=np.empty((1, 0, size)),
    )
    progress = GroupProgress(
        rank=np.tile(np.arange(size), 2),
        group=np.repeat([0, 1], size),
        enqueued=np.ones(2 * size),
        completed=np.zeros(2 * size),
        kinds=("tp", "world"),
        pairwise=np.zeros(2, np.bool_),
        depth=np.arange(2),
    )
    return verdict(
        place,
        progress,
        samples,
        quiet=6.2,
        limit=4.0,
        phase=phase,
        kept=np.zeros(len(samples.entities), np.bool_),
        most=most,
    )


def culprit(
    rank: int = 1,
    *,
    stall: StallKind = StallKind.BEHIND,
    group: int | None = 0,
    behind: float = 1.0,
    waiting: int = 1,
    sure: bool = True,
) -> HangCulprit:
    return HangCulprit(
        rank=rank, stall=stall, group=group, behind_entered=behind, behind_completed=0.0, waiting=waiting, sure=sure
    )


SILENT = StallKind.SILENT


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (culprit(), "holds up the job, 1 collective behind its tp group; 1 rank waits for it in tp"),
        (
            culprit(behind=2.0, waiting=3),
            "holds up the job, 2 collectives behind its tp group; 3 ranks wait for it in tp",
        ),
        (
            culprit(group=1, behind=0.0),
            "holds up the job, 0 collectives behind its world group; 1 rank waits for it in world",
        ),
        (culprit(waiting=0), "holds up the job: it is in no collective while others are"),
        (culprit(behind=NAN), "holds up the job: it is in no collective while others are; 1 rank waits for it in tp"),
        (culprit(group=None, behind=NAN), "holds up the job: it is in no collective while others are"),
        (culprit(stall=SILENT), "stopped reporting while others report; 1 rank waits for it in tp"),
        (
            culprit(stall=SILENT, sure=False),
            "does not report, and no other rank explains the hang; 1 rank waits for it in tp",
        ),
    ],
)
def test_what_is_said_of_a_rank(one: HangCulprit, words: str) -> None:
    found = verdict_on(HangLocalization(stall=StallKind.BEHIND, culprits=(one,)))
    text, numbers = found.rows[1]
    assert text == f"Rank 1 on n0 {words}; {TIME}."
    assert numbers["waiting_ranks"] == one.waiting
    assert ("behind_entered" in numbers) is (one.behind_entered == one.behind_entered)
    assert (found.kind, found.confidence) == (None, 0.95 if one.sure else 0.6)


def test_what_is_said_without_a_node_and_in_another_phase() -> None:
    place = HangLocalization(stall=StallKind.BEHIND, culprits=(culprit(waiting=0),))
    text, numbers = verdict_on(place, nodes=(None,) * 4, phase=StepPhase.CHECKPOINT).rows[1]
    assert text == (
        "Rank 1 holds up the job: it is in no collective while others are; "
        "nothing was completed in phase checkpoint for 6.2 s (limit 4.0 s)."
    )
    assert (numbers["phase"], numbers["quiet_seconds"], numbers["limit_seconds"]) == (StepPhase.CHECKPOINT, 6.2, 4.0)


@pytest.mark.parametrize(("count", "most", "blamed"), [(4, 4, True), (5, 4, False), (1, 1, True)])
def test_beyond_so_many_culprits_the_job_is_named(count: int, most: int, blamed: bool) -> None:
    culprits = tuple(culprit(rank, stall=SILENT if rank in {1, 3} else StallKind.BEHIND) for rank in range(count))
    found = verdict_on(HangLocalization(stall=StallKind.BEHIND, culprits=culprits), nodes=("n",) * 12, most=most)
    assert bool(found.rows) is blamed
    if not blamed:
        assert found.summary == f"5 ranks hold up the job (0, 1, 2, 3, 4, …), 2 of them silent; {TIME}."
        assert (found.kind, found.confidence) == (FindingKind.NONCOMM_HANG, 0.6)
        assert (found.numbers["culprits"], found.numbers["silent"]) == (5.0, 2.0)


def test_eight_of_many_culprits_are_named() -> None:
    culprits = tuple(culprit(rank) for rank in range(12))
    found = verdict_on(HangLocalization(stall=StallKind.BEHIND, culprits=culprits), nodes=("n",) * 12)
    assert found.summary.startswith("12 ranks hold up the job (0, 1, 2, 3, 4, 5, 6, 7, …), 0 of them silent; ")


@pytest.mark.parametrize(
    ("nodes", "groups", "places", "suspect", "cause", "confidence"),
    [
        ((None, None), (0,), "", "the links within it", None, 0.7),
        (("b", "b"), (0,), " on b", "the links within it", Cause.GPU_LINK, 0.7),
        (("b", "a"), (0,), " on a, b", "a link or NIC between them", Cause.NETWORK, 0.7),
        (("b", "a"), (0, 1), " on a, b", "a link or NIC between them", Cause.NETWORK, 0.5),
    ],
)  # fmt: skip
def test_a_group_that_entered_a_call_and_does_not_leave_it(  # noqa: PLR0917
    nodes: tuple[str | None, ...],
    groups: tuple[int, ...],
    places: str,
    suspect: str,
    cause: Cause | None,
    confidence: float,
) -> None:
    found = verdict_on(HangLocalization(stall=StallKind.TRANSPORT, groups=groups), nodes=nodes)
    assert found.summary == (
        f"All 2 ranks of a tp group (0, 1){places} are inside the same call and none leaves it: look at {suspect}; "
        f"{TIME}."
    )
    assert (found.kind, found.cause, found.confidence) == (FindingKind.COMM_HANG, cause, confidence)
    counted = (found.numbers["members"], found.numbers["nodes"], found.numbers["groups"])
    assert counted == (2.0, len({*nodes} - {None}), len(groups))


@pytest.mark.parametrize(
    ("stall", "kind", "cause", "confidence", "words"),
    [
        (StallKind.CIRCLE, FindingKind.COMM_HANG, Cause.SOFTWARE, 0.6, "Ranks wait for one another in a circle"),
        (StallKind.UNCLEAR, FindingKind.NONCOMM_HANG, None, 0.5, "The job stands still and no rank stands out; "),
        (StallKind.BEHIND, FindingKind.NONCOMM_HANG, None, 0.5, "The job stands still and no rank stands out; "),
        (StallKind.SILENT, FindingKind.NONCOMM_HANG, None, 0.5, "The job stands still and no rank stands out; "),
    ],
)
def test_where_nobody_is_named(
    stall: StallKind, kind: FindingKind, cause: Cause | None, confidence: float, words: str
) -> None:
    found = verdict_on(HangLocalization(stall=stall))
    assert (found.kind, found.cause, found.confidence, found.rows) == (kind, cause, confidence, {})
    assert found.summary.startswith(words)
    assert found.summary.endswith(f"; {TIME}.")


@pytest.mark.parametrize(
    ("count", "text"), [(1, "0"), (8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7 and 1 more")]
)
def test_eight_names_are_shown(count: int, text: str) -> None:
    assert join_names(range(count), 8) == text
