"""``mainstay analyze-hang``: files in, one screen or JSON out, and an exit code that a script can use."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.detectors.finding import join_names
from mainstay.detectors.hang import cli
from mainstay.detectors.hang.analysis import BlockingRank, HangDiagnosis
from mainstay.detectors.hang.cli import analyze_hang
from mainstay.detectors.hang.dump_checks import LISTED
from mainstay.detectors.hang.flight_recorder import DumpError
from tests.detectors.hang.test_flight_recorder import WORLD, dump, hung


def write(directory: Path, raw: dict[str, Any]) -> Path:
    """One file a rank, in each of the forms that they come in."""
    for rank, one in raw.items():
        form = int(rank) % 4
        if form == 0:
            (directory / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(one, 2))
        elif form == 1:
            (directory / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(one))
        elif form == 2:
            (directory / f"trace{rank}.json.gz").write_bytes(gzip.compress(json.dumps(one).encode()))
        else:
            (directory / f"job7_{rank}.pkl").write_bytes(pickle.dumps(one))
    return directory


def test_the_culprit_is_on_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze_hang(write(tmp_path, hung())) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Rank 2 holds up the job."
    assert "8 dumps read" in out


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze_hang(write(tmp_path, hung(5)), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "noncomm_hang"
    assert [c["rank"] for c in told["culprits"]] == [5]
    assert told["ranks_read"] == 8
    assert told["ranks_missing"] == []


def test_one_file_may_hold_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all8.json"
    file.write_text(json.dumps({"dumps": hung(7)}))
    assert analyze_hang(file) == 0
    assert capsys.readouterr().out.startswith("Rank 7 holds up the job.")


def test_what_is_no_dump_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, hung())
    (tmp_path / "README.txt").write_text("dumps of last night")
    assert analyze_hang(tmp_path) == 0
    assert "Left out README.txt" in capsys.readouterr().out


def test_a_job_at_rest_exits_with_four(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"TENSOR_MODEL_PARALLEL_GROUP": (9, 9), "DATA_PARALLEL_GROUP": (4, 4), "default_pg": (3, 3)}
    assert analyze_hang(write(tmp_path, {str(rank): dump(rank, counts) for rank in WORLD})) == 4
    assert "nothing can be said" in capsys.readouterr().out


def test_bad_input_is_one_line_and_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze_hang(tmp_path / "nowhere") == 2
    assert analyze_hang(tmp_path) == 2
    (tmp_path / "trace_0").write_bytes(b"\x80\x02cposix\nsystem\nq\x00.")
    assert analyze_hang(tmp_path) == 2
    (tmp_path / "trace_0").write_text('{"entries": []}')
    (tmp_path / "other_0").write_text('{"entries": []}')
    assert analyze_hang(tmp_path) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "does not exist" in lines[0]
    assert "it is empty" in lines[1]
    assert "posix system" in lines[2]
    assert "rank 0 has two dumps" in lines[3]


def test_broken_gzip_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace_0.json.gz").write_bytes(gzip.compress(b'{"entries": []}')[:-9])
    assert analyze_hang(tmp_path) == 2
    assert "broken gzip" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False)])
def test_a_dump_has_a_largest_size_also_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, fits: bool
) -> None:
    monkeypatch.setattr(cli, "_LARGEST", 1000)
    plain, packed = tmp_path / "a", tmp_path / "a.gz"
    plain.write_bytes(b"x" * size)
    packed.write_bytes(gzip.compress(b"x" * size))
    for file, words in ((plain, "larger than 0 MiB$"), (packed, "larger than 0 MiB when unpacked")):
        if fits:
            assert cli._bytes(file) == b"x" * size
        else:
            with pytest.raises(DumpError, match=words):
                cli._bytes(file)


def test_a_long_list_of_ranks_is_cut() -> None:
    assert join_names(range(16), LISTED).endswith(", 14, 15")
    assert join_names(range(20), LISTED).endswith(", 14, 15 and 4 more")


def test_the_members_of_a_culprits_group_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyze_hang(write(tmp_path, hung()))
    assert "\n                                      0, 1, 2, 3 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("left_out", "words"),
    [((3,), "No dump from rank 3: it may"), ((3, 5), "No dump from ranks 3, 5: they may"), ((), "")],
)
def test_ranks_without_a_dump_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: tuple[int, ...], words: str
) -> None:
    write(tmp_path, {rank: one for rank, one in hung().items() if int(rank) not in left_out})
    (tmp_path / ".hidden_9").write_text("no dump")
    (tmp_path / "folder_9").mkdir()
    analyze_hang(tmp_path)
    out = capsys.readouterr().out
    assert ("No dump from" in out, words in out) == (bool(left_out), True)
    assert "Left out" not in out, "hidden files and folders are not read"


def test_ranks_that_disagree_are_told_with_their_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = hung()
    for entry in raw["1"]["entries"]:
        entry["profiling_name"] = "nccl:broadcast"
    assert analyze_hang(write(tmp_path, raw)) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "What: ranks called different things (collective_mismatch)" in lines
    assert "Why: rank 1 calls broadcast where others call all_reduce" in lines


def test_a_culprit_has_its_row_of_the_table() -> None:
    place = BlockingRank(rank=2, group="tp", members=(0, 2), reason="r", behind_entered=3.0, waiting=4, last_call="x")
    unknown = msgspec.structs.replace(place, behind_entered=float("nan"), members=(), last_call="")
    table = cli._culprits(HangDiagnosis(culprits=(place, unknown)))
    cells = [list(column.cells) for column in table.columns]
    assert cells == [
        ["[bold red]2[/]"] * 2, ["3", "-"], ["4", "4"], ["tp\n[dim]0, 2[/]", "tp"], ["x", "-"],
    ]  # fmt: skip
