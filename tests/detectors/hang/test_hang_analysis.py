"""What dumps tell, piece by piece: groups, counters, calls side by side, and the sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.hang.analysis import (
    HangDiagnosis,
    _agreed,
    _align,
    _depth,
    _Groups,
    _last_call,
    _nobody,
    _ranks_text,
    diagnose,
)
from mainstay.detectors.hang.flight_recorder import Dump, Group, parse
from mainstay.detectors.hang.wait_graph import HangLocalization, StallKind

NAN = float("nan")


def entry(seq: int, *, done: bool = False, group: tuple[str, str] = ("0", "tp"), **more: Any) -> dict[str, Any]:
    return {
        "pg_id": 0, "process_group": list(group), "collective_seq_id": seq, "retired": done, "time_created_ns": seq,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], **more,
    }  # fmt: skip


def dumps_with(*of_rank: list[dict[str, Any]], ranks: str = "", desc: str = "tp") -> dict[int, Dump]:
    """One group of all these ranks, each with its calls."""
    config = {"0": {"name": "0", "desc": desc, "ranks": ranks or str([*range(len(of_rank))])}}
    return {rank: parse({"entries": calls, "pg_config": config}, rank) for rank, calls in enumerate(of_rank)}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "Ranks "),
        (1, "Rank 0"),
        (2, "Ranks 0, 1"),
        (16, f"Ranks {', '.join(map(str, range(16)))}"),
        (17, f"Ranks {', '.join(map(str, range(16)))} and 1 more"),
        (30, f"Ranks {', '.join(map(str, range(16)))} and 14 more"),
    ],
)
def test_sixteen_ranks_are_named(count: int, text: str) -> None:
    assert _ranks_text([*range(count)]) == text


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([], ""),
        ([entry(3), entry(5), entry(4)], "all_reduce #5"),
        ([entry(3), entry(4, is_p2p=True, p2p_seq_id=9, profiling_name="nccl:send 0->1")], "send 0->1 #9"),
    ],
)
def test_a_ranks_last_call_is_the_newest_in_its_dump(calls: list[dict[str, Any]], text: str) -> None:
    assert _last_call(parse({"entries": calls}, 0)) == text
    assert not _last_call(None)


@pytest.mark.parametrize(
    ("desc", "size", "depth"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", 4, 4),
        ("expert_parallel", 8, 100_008),
        ("CONTEXT_PARALLEL_GROUP", 2, 200_002),
        ("PIPELINE_MODEL_PARALLEL_GROUP", 2, 300_002),
        ("DATA_PARALLEL_GROUP", 2, 400_002),
        ("default_pg", 8, 500_008),
        ("MY_TENSOR", 8, 500_008),
        ("default_pg", 100_001, 599_999),
    ],
)
def test_groups_nest_by_their_description_and_then_by_size(desc: str, size: int, depth: int) -> None:
    assert _depth(Group(name="1", desc=desc, ranks=tuple(range(size)))) == depth


def test_a_local_number_that_ranks_use_for_different_groups_says_nothing() -> None:
    a, b = Group(name="1", desc="a"), Group(name="2", desc="b")
    dumps = {
        rank: Dump(rank=rank, version="", groups=groups, status={}, calls=())
        for rank, groups in enumerate(({"0": a, "1": a}, {"0": a, "1": b, "2": b}))
    }
    assert _agreed(dumps) == {"0": a, "2": b}


@pytest.mark.parametrize(
    ("desc", "ranks", "p2p", "pairwise"),
    [
        ("tp", "[0, 1, 2]", False, False),
        ("PIPELINE_GROUP", "[0, 1, 2]", False, True),
        ("my_pipeline", "[0, 1, 2]", False, True),
        ("PIPELINE_GROUP", "[0, 1]", False, False),  # of two the counts can be compared
        ("PIPELINE_GROUP", "[0]", False, True),
        ("tp", "[0, 1, 2]", True, True),
        ("tp", "[0, 1]", True, False),
    ],
)
def test_counts_of_transfers_between_more_than_two_are_not_compared(
    desc: str, ranks: str, p2p: bool, pairwise: bool
) -> None:
    dumps = dumps_with([entry(1, group=("0", desc), is_p2p=p2p, p2p_seq_id=1)], ranks=ranks, desc=desc)
    assert _Groups(dumps).progress(()).pairwise.tolist() == [pairwise]


def test_counters_and_the_oldest_open_call_of_each_member() -> None:
    dumps = dumps_with([entry(4, done=True), entry(5), entry(7)], [entry(-1)], [entry(2, done=True)], ranks="[0,1,2,3]")
    progress = _Groups(dumps).progress((3,))
    assert progress.rank.tolist() == [0, 1, 2, 3]
    assert progress.group.tolist() == [0] * 4
    assert progress.enqueued.tolist() == pytest.approx([7, 0, 2, NAN], nan_ok=True)
    assert progress.completed.tolist() == pytest.approx([4, 0, 2, NAN], nan_ok=True), "an unknown count is none"
    assert progress.since is not None
    assert (progress.since * 1e9).tolist() == pytest.approx([5, -1, NAN, NAN], nan_ok=True)
    assert (progress.kinds, progress.depth.tolist()) == (("tp",), [500_004])


def test_a_call_of_which_the_time_is_known_comes_before_the_group_in_which_all_wait() -> None:
    """Two groups in which all are inside a call: the older is named first."""
    groups = {"0": ("tp", 20), "1": ("dp", 10)}
    config = {name: {"name": name, "desc": desc, "ranks": "[0, 1]"} for name, (desc, _) in groups.items()}
    calls = [entry(1, group=(name, desc), pg_id=name, time_created_ns=at) for name, (desc, at) in groups.items()]
    dumps = {rank: parse({"entries": calls, "pg_config": config}, rank) for rank in range(2)}
    found = diagnose(dumps)
    assert found.stuck == (("dp", (0, 1)), ("tp", (0, 1)))
    assert (found.kind, found.sure) == (FindingKind.COMM_HANG, False)
    assert found.summary == "Ranks 0, 1 of dp all entered the same call and none left it."


def test_calls_are_laid_side_by_side_by_group_and_number_where_one_is_open() -> None:
    transfer = entry(5, is_p2p=True, p2p_seq_id=1, time_created_ns=1)
    odd = entry(5, profiling_name="nccl:broadcast")
    dumps = dumps_with(
        [entry(4, done=True), transfer, entry(5), entry(6)], [entry(4, done=True), odd], [entry(4, done=True), entry(5)]
    )
    mismatches, matches = _align(dumps, _Groups(dumps))
    assert matches == {"COLLECTIVE_TYPE_MISMATCH": 1, "FULLY_MATCHED": 1}, "call 4 is over, transfers have no peers"
    ((label, one),) = mismatches
    assert (label, one.seq, one.said, dict(one.others)) == ("tp", 5, "all_reduce", {1: "broadcast"})
    found = diagnose(dumps)
    assert found.summary == "Rank 1 disagrees with the others at call 5 of tp: the program is wrong."
    (culprit,) = found.culprits
    assert culprit.reason == (
        "rank 1 calls broadcast where others call all_reduce (call 5 of tp: COLLECTIVE_TYPE_MISMATCH)"
    )
    assert (culprit.last_call, culprit.members, culprit.waiting) == ("broadcast", (), 0)


def test_several_ranks_disagree() -> None:
    odd = [entry(5, profiling_name="nccl:broadcast")]
    found = diagnose(dumps_with([entry(5)], odd, odd, [entry(5)], [entry(5)]))
    assert found.summary == "Ranks 1, 2 disagree with the others at call 5 of tp: the program is wrong."


def test_who_did_not_enter_and_who_left_no_dump() -> None:
    there = [entry(4, done=True), entry(5)]
    behind = diagnose(dumps_with(there, [entry(4, done=True)], there))
    (culprit,) = behind.culprits
    assert (behind.summary, behind.sure) == ("Rank 1 holds up the job.", True)
    assert (culprit.rank, culprit.group, culprit.members, culprit.waiting) == (1, "tp", (0, 1, 2), 2)
    assert (culprit.behind_entered, culprit.behind_completed, culprit.last_call) == (1.0, 0.0, "all_reduce #4")
    assert culprit.reason == "has not entered what others wait in"
    lost = diagnose(dumps_with(there, there, ranks="[0, 1, 2, 3]"))
    assert (lost.doubts.missing, lost.sure) == ((2, 3), False)
    assert lost.summary == "Ranks 2, 3 hold up the job (likely, not proven)."
    assert {c.reason for c in lost.culprits} == {"left no usable dump, and others wait for it"}


def test_a_circle_is_a_program_that_is_wrong() -> None:
    progress = _Groups(dumps_with([entry(1)])).progress(())
    circle = _nobody(HangLocalization(stall=StallKind.CIRCLE), progress, HangDiagnosis())
    assert (circle.kind, circle.sure) == (FindingKind.COLLECTIVE_MISMATCH, False)
    assert "in a circle" in circle.summary
    one = _nobody(HangLocalization(stall=StallKind.TRANSPORT, groups=(0,)), progress, HangDiagnosis())
    assert (one.kind, one.sure, one.stuck) == (FindingKind.COMM_HANG, True, (("tp", (0,)),))
    assert _nobody(HangLocalization(stall=StallKind.UNCLEAR), progress, HangDiagnosis()).kind is None


@pytest.mark.parametrize(("seq", "completed"), [(6, 5), (7, 6), (1, 0)])
def test_what_was_before_the_first_call_of_a_ring_is_over(seq: int, completed: int) -> None:
    assert parse({"entries": [entry(seq)]}, 0).status["0"].completed == completed


def test_an_empty_group_of_a_dump_hides_none_after_it() -> None:
    config = {"": {"name": "", "desc": "", "ranks": "[]"}, "x": {"name": "x", "desc": "tp", "ranks": "[0]"}}
    assert [group.name for group in parse({"pg_config": config}, 0).listed] == ["x"]
    assert np.isfinite(_Groups(dumps_with([entry(1)])).progress(()).completed).all()
