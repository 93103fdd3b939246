"""Dumps as PyTorch writes them, whole and damaged: exactly the ranks that hold up the job."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from typing import Any

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.hang.analysis import HangDiagnosis, diagnose
from mainstay.detectors.hang.collective_match import MatchState, compare
from mainstay.detectors.hang.flight_recorder import DumpError, Group, decode, dumps_of, parse
from tests.data import DATA, needs

DUMPS = DATA / "flight-recorder"
WORLD = list(range(8))
GROUPS = {
    "0": ("default_pg", WORLD),
    "1": ("TENSOR_MODEL_PARALLEL_GROUP", [0, 1, 2, 3]),
    "2": ("TENSOR_MODEL_PARALLEL_GROUP", [4, 5, 6, 7]),
    **{str(3 + r): ("DATA_PARALLEL_GROUP", [r, r + 4]) for r in range(4)},
}


def call(pg: int, name: str, desc: str, seq: int, op: str = "all_reduce", *, done: bool, **more: Any) -> dict[str, Any]:
    return {
        "pg_id": pg,
        "process_group": [name, desc],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [[1024]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled",
        "retired": done,
        "is_p2p": False,
        **more,
    }


def dump(rank: int, counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """A rank's dump; ``counts`` gives (entered, completed) by description."""
    mine = [(name, desc, ranks) for name, (desc, ranks) in GROUPS.items() if rank in ranks]
    entries = [
        call(pg, name, desc, seq, done=seq <= counts[desc][1])
        for pg, (name, desc, _) in enumerate(mine)
        for seq in range(counts[desc][1], counts[desc][0] + 1)
    ]
    return {
        "version": "2.9",
        "pg_config": {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, desc, ranks in mine},
        "pg_status": {
            str(pg): {
                "last_enqueued_collective": counts[desc][0],
                "last_started_collective": -1,
                "last_completed_collective": counts[desc][1],
            }
            for pg, (_, desc, _) in enumerate(mine)
        },
        "entries": entries,
    }


def hung(culprit: int = 2) -> dict[str, Any]:
    """``culprit`` stops before call 10 of its tp group; its peers wait there, the other replica in dp for its ranks."""
    replica = [r for r in WORLD if r // 4 == culprit // 4]
    raw = {}
    for rank in WORLD:
        tensor = (9, 9) if rank == culprit else (10, 9) if rank in replica else (10, 10)
        data = (4, 4) if rank in replica else (5, 4)
        named = {"TENSOR_MODEL_PARALLEL_GROUP": tensor, "DATA_PARALLEL_GROUP": data, "default_pg": (3, 3)}
        raw[str(rank)] = dump(rank, named)
    return raw


def blamed(found: HangDiagnosis) -> tuple[int, ...]:
    return tuple(sorted(one.rank for one in found.culprits))


def read(raw: dict[str, Any]) -> HangDiagnosis:
    return diagnose(dumps_of({"dumps": raw}))


@pytest.mark.parametrize("file", ["gpu_error_tp4_pp2_ep8.json.gz", "lock_gil_tp2_pp4_ep4.json.gz"])
@needs("flight-recorder")
def test_real_dumps_name_exactly_the_faulty_ranks(file: str) -> None:
    raw = json.loads(gzip.decompress((DUMPS / file).read_bytes()))
    found = diagnose(dumps_of(raw))
    assert list(blamed(found)) == raw["fault_ranks"]
    assert found.kind is FindingKind.NONCOMM_HANG
    assert found.sure


@pytest.mark.parametrize("culprit", WORLD)
def test_the_rank_that_did_not_come_is_named_and_its_victims_are_not(culprit: int) -> None:
    found = read(hung(culprit))
    assert blamed(found) == (culprit,)
    assert found.culprits[0].group == "TENSOR_MODEL_PARALLEL_GROUP"
    assert found.culprits[0].waiting == 3
    assert len(found.culprits[0].members) == 4
    assert culprit in found.culprits[0].members


def test_numbers_as_text_and_as_pickle_say_the_same() -> None:
    raw = hung()
    as_text = copy.deepcopy(raw)
    for one in as_text.values():
        for status in one["pg_status"].values():
            status.update({key: str(value) for key, value in status.items()})
        for entry in one["entries"]:
            entry.update(is_p2p="false", collective_seq_id=str(entry["collective_seq_id"]))
    pickled = {rank: decode(pickle.dumps(one, 2)) for rank, one in raw.items()}
    assert blamed(read(as_text)) == blamed(read(pickled)) == (2,)


def test_an_old_dump_without_counters_is_read_from_its_entries() -> None:
    raw = hung()
    for one in raw.values():
        del one["pg_status"]
        one["version"] = "2.4"
    assert blamed(read(raw)) == (2,)


def test_local_ids_and_names_may_differ_from_rank_to_rank() -> None:
    raw = hung()
    for rank, one in raw.items():  # another numbering on each rank: id and name mean nothing on other ranks
        shift = 10 * int(rank)
        one["pg_status"] = {str(int(pg) + shift): status for pg, status in one["pg_status"].items()}
        one["pg_config"] = {
            str(n): {"name": str(n), "desc": of["desc"], "ranks": of["ranks"]}
            for n, of in enumerate(one["pg_config"].values())
        }
        names = {of["desc"]: of["name"] for of in one["pg_config"].values()}
        for entry in one["entries"]:
            entry["pg_id"] += shift
            entry["process_group"] = [names[entry["process_group"][1]], entry["process_group"][1]]
    assert blamed(read(raw)) == (2,)


def test_a_short_ring_changes_nothing() -> None:
    raw = hung()
    for rank, one in raw.items():
        one["entries"] = one["entries"][-1:] if int(rank) % 2 else []
    assert blamed(read(raw)) == (2,)


def test_the_culprits_own_dump_may_be_missing() -> None:
    raw = hung()
    del raw["2"]
    found = read(raw)
    assert blamed(found) == (2,)
    assert found.doubts.missing == (2,)
    assert not found.sure
    assert "left no usable dump" in found.culprits[0].reason


def test_a_victims_missing_dump_blames_nobody_else() -> None:
    raw = hung()
    del raw["6"]
    found = read(raw)
    assert blamed(found) == (2,)
    assert found.doubts.missing == (6,)
    assert not found.sure, "the rank may block the job too"
    assert found.doubts.texts() == ("No dump from rank 6: it may block the job too, or instead.",)


def test_everybody_inside_the_same_call_is_a_communication_hang() -> None:
    counts = {"TENSOR_MODEL_PARALLEL_GROUP": (9, 9), "DATA_PARALLEL_GROUP": (4, 4), "default_pg": (4, 3)}
    found = read({str(rank): dump(rank, counts) for rank in WORLD})
    assert found.kind is FindingKind.COMM_HANG
    assert found.stuck == (("default_pg", tuple(WORLD)),)
    assert not found.culprits


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"profiling_name": "nccl:broadcast"}, MatchState.COLLECTIVE_TYPE_MISMATCH),
        ({"input_sizes": [[512]]}, MatchState.SIZE_OR_SYNTAX_MISMATCH),
        ({"input_dtypes": ["Float"]}, MatchState.COLLECTIVE_DTYPE_MISMATCH),
    ],
)
def test_members_that_mean_different_calls_are_a_mismatch(change: dict[str, Any], match: MatchState) -> None:
    counts = {"TENSOR_MODEL_PARALLEL_GROUP": (9, 9), "DATA_PARALLEL_GROUP": (4, 4), "default_pg": (4, 3)}
    raw = {str(rank): dump(rank, counts) for rank in WORLD}
    odd = next(entry for entry in raw["5"]["entries"] if entry["pg_id"] == 0 and not entry["retired"])
    odd.update(change)
    found = read(raw)
    assert found.kind is FindingKind.COLLECTIVE_MISMATCH
    assert blamed(found) == (5,)
    assert found.odd[0][1].match is match
    assert found.matches[match] == 1


def test_uneven_all_to_all_is_no_mismatch() -> None:
    counts = {"TENSOR_MODEL_PARALLEL_GROUP": (9, 9), "DATA_PARALLEL_GROUP": (4, 4), "default_pg": (4, 3)}
    raw = {str(rank): dump(rank, counts) for rank in WORLD}
    for rank, one in raw.items():
        for entry in one["entries"]:
            entry.update(profiling_name="nccl:all_to_all", input_sizes=[[int(rank) + 1, 8]])
    found = read(raw)
    assert found.matches == {"UNDECIDED": 1}
    assert found.kind is FindingKind.COMM_HANG


def test_a_job_at_rest_tells_nothing() -> None:
    counts = {"TENSOR_MODEL_PARALLEL_GROUP": (9, 9), "DATA_PARALLEL_GROUP": (4, 4), "default_pg": (3, 3)}
    found = read({str(rank): dump(rank, counts) for rank in WORLD})
    assert found.kind is None
    assert not found.culprits


def test_gloo_tells_no_members_and_is_read_all_the_same() -> None:
    """As torch 2.13 with gloo writes it: an empty pg_config, numbers as text, calls retired in state scheduled."""
    raw = {}
    for rank in range(2):
        entered = 4 - rank
        entries = [
            call(1, "1", "tp", seq, done=seq < 4) | {"state": "scheduled", "profiling_name": "gloo:all_reduce"}
            for seq in range(1, entered + 1)
        ]
        status = {"last_enqueued_collective": str(entered), "last_completed_collective": "3"}
        raw[str(rank)] = {
            "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
            "pg_status": {"0": dict.fromkeys(status, "3"), "1": status},
            "entries": entries,
        }
    assert blamed(read(raw)) == (1,)


@pytest.mark.parametrize("content", [[], {}, {"a": 1}, {"dumps": {}}, {"dumps": {"x": {"entries": []}}}, "text", 3])
def test_what_is_no_dump_is_refused(content: object) -> None:
    with pytest.raises(DumpError, match="no flight-recorder dump"):
        dumps_of(content)


def test_nonsense_inside_a_dump_is_left_out() -> None:
    odd = {"entries": [None, 3, {}, {"pg_id": None, "process_group": 7}], "pg_status": {"0": 5}, "pg_config": [1]}
    assert parse(odd, 0).rank == 0
    assert diagnose({0: parse(odd, 0)}).kind is None


@pytest.mark.parametrize("data", [b"", b"{", b"\x80\x02cposix\nsystem\n.", b"hello"])
def test_bytes_that_are_neither_are_refused(data: bytes) -> None:
    with pytest.raises(DumpError):
        decode(data)


@pytest.mark.parametrize(
    ("state", "retired", "done"),
    [
        ("completed", False, True), ("completed", None, True), ("started", False, False), ("scheduled", False, False),
        ("", False, False), ("aborted", False, False), ("scheduled", True, True), ("scheduled", "True", True),
        ("scheduled", "false", False), ("scheduled", 1, False),
    ],
)  # fmt: skip
def test_which_calls_are_over(state: str, retired: object, done: bool) -> None:
    (one,) = parse({"entries": [{"state": state, "retired": retired}]}, 0).calls
    assert (one.state, one.done) == (state, done)


def test_what_a_call_is_read_from() -> None:
    entry = {
        "pg_id": 3, "collective_seq_id": "7", "p2p_seq_id": 5, "is_p2p": "true", "profiling_name": "nccl:send 0->1",
        "time_created_ns": 1_500_000_000, "input_sizes": [[2, 3]], "output_sizes": [], "input_dtypes": ["Float"],
    }  # fmt: skip
    older = {"seq_id": 4, "time_created_us": "2500000", "profiling_name": "all_reduce"}
    first, second = parse({"entries": [older, entry]}, 0).calls
    assert (first.pg, first.seq, first.p2p_seq, first.p2p, first.name) == ("3", 7, 5, True, "send 0->1")
    assert (first.time, first.sizes, first.dtypes) == (1.5, ("[[2,3]]", ""), ('["Float"]', ""))
    assert (second.pg, second.seq, second.p2p_seq, second.p2p, second.name, second.time) == (
        "", 4, -1, False, "all_reduce", 2.5,
    )  # fmt: skip
    assert parse({"entries": [{}]}, 0).calls[0].time == 0.0


def test_groups_are_read_from_config_entries_and_counters() -> None:
    twins = {"name": "2", "desc": "tp", "ranks": [0, 1]}
    config = {"b": {"name": "10", "desc": "dp", "ranks": "[0, 2]"}, "a": twins, "c": twins | {"name": "3"}}
    status = {"7": {"last_enqueued_collective": "4"}, "10": {}, "9": {}}
    found = parse({"pg_config": config | {"": {"name": "", "desc": "", "ranks": "[]"}}, "pg_status": status}, 0)
    assert [(g.name, g.desc, g.ranks, g.ordinal) for g in found.listed] == [
        ("2", "tp", (0, 1), 0), ("3", "tp", (0, 1), 1), ("10", "dp", (0, 2), 0),
    ]  # fmt: skip
    assert found.groups == dict(zip(("7", "9", "10"), found.listed, strict=True)), "in order of creation"
    assert (found.status["7"].enqueued, found.status["7"].started, found.status["7"].completed) == (4, -1, -1)
    assert [g.label for g in found.listed] == ["tp", "tp", "dp"]
    told = parse({"entries": [{"pg_id": 1, "process_group": ["5"]}], "pg_status": status}, 0)
    assert (told.groups["1"].label, told.groups["1"].key) == ("group 5", ("5", ""))
    unnamed = parse({"entries": [{"pg_id": 1, "process_group": ["", "undefined"]}]}, 0)
    assert unnamed.groups["1"].label == "group ?"


def test_counters_of_an_old_dump_are_the_highest_numbers() -> None:
    def entry(seq: int, done: bool, **more: Any) -> dict[str, Any]:
        return {"pg_id": 0, "collective_seq_id": seq, "retired": done, "time_created_ns": seq, **more}

    def counters(*entries: dict[str, Any]) -> tuple[int, int, int]:
        status = parse({"entries": list(entries)}, 0).status["0"]
        return status.enqueued, status.started, status.completed

    assert counters(entry(4, True), entry(5, False), entry(6, False)) == (6, -1, 4)
    assert counters(entry(5, False), entry(6, False)) == (6, -1, 4), "what was before the ring is over"
    assert counters(entry(5, True), entry(6, True)) == (6, -1, 6)
    assert counters(entry(5, False), entry(6, True)) == (6, -1, 6)
    assert counters(entry(3, False, is_p2p=True, p2p_seq_id=9)) == (9, -1, 8)


@pytest.mark.parametrize(
    ("changes", "match", "others"),
    [
        ([{}, {}, {}], MatchState.FULLY_MATCHED, None),
        ([{}, {}, {"state": "completed"}], MatchState.COLLECTIVE_STATE_MISMATCH, None),
        ([{}, {}, {"retired": True}], MatchState.COLLECTIVE_STATE_MISMATCH, None),
        ([{"retired": True}, {"retired": True, "state": "scheduled"}], MatchState.COLLECTIVE_STATE_MISMATCH, None),
        ([{}, {"profiling_name": "x:b"}, {}], MatchState.COLLECTIVE_TYPE_MISMATCH, {1: "b"}),
        ([{"profiling_name": "x:b"}, {}, {}], MatchState.COLLECTIVE_TYPE_MISMATCH, {0: "b"}),
        ([{"profiling_name": ""}, {}, {}], MatchState.FULLY_MATCHED, None),
        ([{}, {"output_dtypes": ["B"]}, {}], MatchState.COLLECTIVE_DTYPE_MISMATCH, {1: '["A"] -> ["B"]'}),
        ([{}, {"input_sizes": [[3]]}, {}], MatchState.SIZE_OR_SYNTAX_MISMATCH, {1: "[[3]] -> [[2]]"}),
    ],
)
def test_members_that_are_laid_side_by_side(
    changes: list[dict[str, Any]], match: MatchState, others: dict[int, str] | None
) -> None:
    usual = {
        "profiling_name": "x:a", "state": "started", "input_dtypes": ["A"], "output_dtypes": ["A"],
        "input_sizes": [[2]], "output_sizes": [[2]],
    }  # fmt: skip
    calls = {rank: parse({"entries": [usual | change]}, rank).calls[0] for rank, change in enumerate(changes)}
    found, odd = compare(calls, 7)
    assert (found, None if odd is None else (odd.seq, odd.match, dict(odd.others))) == (
        match, None if others is None else (7, match, others),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("all_to_all", MatchState.UNDECIDED), ("gather", MatchState.UNDECIDED), ("scatter", MatchState.UNDECIDED),
        ("_allgather_base", MatchState.SIZE_OR_SYNTAX_MISMATCH), ("all_reduce", MatchState.SIZE_OR_SYNTAX_MISMATCH),
        ("reduce_scatter_tensor", MatchState.SIZE_OR_SYNTAX_MISMATCH),
    ],
)  # fmt: skip
def test_calls_whose_sizes_may_differ(name: str, match: MatchState) -> None:
    calls = {
        rank: parse({"entries": [{"profiling_name": f"nccl:{name}", "input_sizes": [[rank + 1]]}]}, rank).calls[0]
        for rank in range(3)
    }
    assert compare(calls, 1)[0] is match


@pytest.mark.parametrize(
    ("desc", "name", "label"),
    [
        ("zebra", "0", "zebra"),
        ("data", "0", "data"),
        ("undefined", "3", "group 3"),
        ("", "3", "group 3"),
        ("", "", "group ?"),
    ],
)
def test_a_group_is_called_by_its_description(desc: str, name: str, label: str) -> None:
    assert Group(name=name, desc=desc).label == label
