"""Frames become rows of tables: every value at its entity, its signal and its time, nothing that was not measured."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from mainstay.detectors.recording import files, recorder
from mainstay.detectors.recording import tables as table_files
from mainstay.detectors.recording.recorder import RecordingSource, append_frame
from mainstay.detectors.recording.tables import Tables
from mainstay.probes.frame import Axis, Frame, FrameError, encode
from mainstay.probes.signals import Catalog, SignalSource, catalog
from tests.service.run_frames import PAIR, PROGRESS, RANK, make_frame

NAN = float("nan")
HOST = catalog(SignalSource.HOST)


def rows(frame: Frame, made: Catalog, directory: Path, name: str) -> list[dict[str, Any]]:
    """What the frame adds to the one table that it belongs to, without nulls."""
    with Tables(directory) as tables:
        append_frame(frame, made, tables)
    assert {table for table, count in tables.rows.items() if count} <= {name}
    found = pq.read_table(directory / name).to_pylist()
    assert len(found) == tables.rows[name]
    return [{key: value for key, value in row.items() if value is not None} for row in found]


def test_steps_have_the_second_in_which_they_ended(tmp_path: Path) -> None:
    values = {"step_time_seconds": [[2.0, NAN], [4.0, 5.0]],
              "step_end_nanoseconds": [[10 * 10**9, -(2**63)], [12_500_000_000, 17 * 10**9]]}  # fmt: skip
    frame = make_frame(RANK, Axis.STEP, 7, values, entities=("3", "5"), samples=2)
    assert rows(frame, RANK, tmp_path, files.STEPS) == [
        {"job": "demo-1", "rank": 3, "step": 7, "time": 10.0, "step_time_seconds": 2.0},
        {"job": "demo-1", "rank": 5, "step": 7, "time": 12.5, "step_time_seconds": 4.0},
        {"job": "demo-1", "rank": 5, "step": 8, "time": 17.0, "step_time_seconds": 5.0},
    ]


def test_a_step_whose_end_nobody_told_has_no_time(tmp_path: Path) -> None:
    made = Catalog(("step_time_seconds",))
    frame = make_frame(made, Axis.STEP, 7, {"step_time_seconds": 2.0}, entities=("3",), samples=1)
    assert rows(frame, made, tmp_path, files.STEPS) == [
        {"job": "demo-1", "rank": 3, "step": 7, "step_time_seconds": 2.0}
    ]


def test_pairs_have_both_ends(tmp_path: Path) -> None:
    values = {"transfer_seconds": [[0.5], [0.25]], "step_end_nanoseconds": 3 * 10**9}
    frame = make_frame(PAIR, Axis.STEP, 4, values, entities=("3>14", "14>3"), samples=1)
    assert rows(frame, PAIR, tmp_path, files.PAIRS) == [
        {"job": "demo-1", "source": 3, "target": 14, "step": 4, "time": 3.0, "transfer_seconds": 0.5},
        {"job": "demo-1", "source": 14, "target": 3, "step": 4, "time": 3.0, "transfer_seconds": 0.25},
    ]


def test_progress_is_a_row_a_rank_and_second(tmp_path: Path) -> None:
    values = {"progress_step": [[4, 5]], "in_collective_seconds": [[NAN, 0.5]]}
    frame = make_frame(PROGRESS, Axis.TIME, 100.0, values, entities=("3",), samples=2, dt=2.0)
    assert rows(frame, PROGRESS, tmp_path, files.PROGRESS) == [
        {"job": "demo-1", "rank": 3, "time": 100.0, "progress_step": 4.0},
        {"job": "demo-1", "rank": 3, "time": 102.0, "progress_step": 5.0, "in_collective_seconds": 0.5},
    ]


def test_devices_are_a_row_a_value(tmp_path: Path) -> None:
    values = {"cpu_utilization_ratio": [[0.5, NAN], [NAN, 0.25]], "context_switches_total": [[7, 8], [9, -(2**63)]]}
    frame = make_frame(HOST, Axis.TIME, 100.0, values, entities=("host", "nic:0"), samples=2, dt=0.5)
    found = rows(frame, HOST, tmp_path, files.SAMPLES)
    assert {row["node"] for row in found} == {"demo-1"}
    assert sorted((row["signal"], row["device"], row["time"], row["value"]) for row in found) == [
        ("context_switches_total", "host", 100.0, 7.0), ("context_switches_total", "host", 100.5, 8.0),
        ("context_switches_total", "nic:0", 100.0, 9.0), ("cpu_utilization_ratio", "host", 100.0, 0.5),
        ("cpu_utilization_ratio", "nic:0", 100.5, 0.25),
    ]  # fmt: skip


def test_a_frame_of_another_shape_is_refused(tmp_path: Path) -> None:
    frame = make_frame(RANK, Axis.STEP, 7, {}, entities=("3",), samples=1)
    with Tables(tmp_path) as tables, pytest.raises(FrameError, match="its shape needs"):
        append_frame(frame, PAIR, tables)


def test_rows_are_written_once_enough_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_ROWS", 3)
    with Tables(tmp_path) as tables:
        for count, held in ((2, 2), (1, 0), (2, 2)):
            tables.add_columns(files.STEPS, {"time": np.full(count, 1.5), "rank": [7] * count, "job": ["j"] * count})
            assert sum(len(table) for table in tables._held[files.STEPS]) == held
    assert tables.rows[files.STEPS] == 5
    assert pq.read_table(tmp_path / files.STEPS)["rank"].to_pylist() == [7] * 5


class Answers:
    """A transport with prepared answers; what was asked is kept."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    def json(self, _method: str, path: str) -> Any:
        self.asked.append(path)
        return self.answers.pop(0)

    def request(self, method: str, path: str, *, read_s: float) -> Any:
        assert read_s == 120.0
        return self.json(method, path)


def source(*answers: Any) -> tuple[RecordingSource, list[str]]:
    transport: Any = Answers(*answers)
    return RecordingSource(transport), transport.asked


def test_lists_are_read_page_by_page() -> None:
    made, asked = source({"items": [{"id": 1}], "next_cursor": "c"}, {"items": [{"id": 2}], "next_cursor": None})
    assert [one["id"] for one in made.pages("/events", since=4.0)] == [1, 2]
    assert asked == ["/events?since=4.0&limit=200", "/events?since=4.0&limit=200&cursor=c"]


def test_frames_are_read_until_there_are_no_more() -> None:
    frames = [make_frame(RANK, Axis.STEP, n, {}, entities=("3",), samples=1) for n in range(3)]
    parts = [struct.pack("<I", len(body)) + body for body in map(encode, frames)]
    answers = (
        SimpleNamespace(data=parts[0] + parts[1], headers={"X-Mainstay-Next": "9"}),
        SimpleNamespace(data=parts[2], headers={}),
    )
    made, asked = source(*answers)
    assert [frame.t0 for frame in made.frames(1.0, 2.0, "demo-1")] == [0.0, 1.0, 2.0]
    assert asked == [
        f"/telemetry/blocks?start=1.0&stop=2.0&subject=demo-1{more}" for more in ("", "&after=9")
    ]  # fmt: skip
    made, asked = source(SimpleNamespace(data=b"", headers={}))
    assert list(made.frames(1.0, 2.0, None)) == []
    assert asked == ["/telemetry/blocks?start=1.0&stop=2.0"]


def test_a_catalog_is_asked_for_once_unless_it_is_known() -> None:
    made, asked = source({"narrow": ["newer_signal"], "wide": []})
    both = catalog(SignalSource.HOST, SignalSource.GPU)
    assert [made.catalog(known.digest) for known in (RANK, PAIR, both)] == [RANK, PAIR, both]
    assert {made.catalog("0123") for _ in range(2)} == {Catalog(("newer_signal",))}
    assert asked == ["/telemetry/catalogs/0123"]


def test_a_recording_holds_the_frames_of_its_jobs_and_nodes(tmp_path: Path) -> None:
    node = {
        "name": "n0",
        "cohort": "c",
        "rack": "r1",
        "switches": [],
        "devices": [{"id": "g0", "model": "H100", "serial": "S"}, {"id": "g1", "model": None, "serial": None}],
    }
    frames = [
        make_frame(
            RANK,
            Axis.STEP,
            n,
            {"step_time_seconds": 2.0, "step_end_nanoseconds": 10**9},
            entities=("3",),
            samples=1,
            subject=subject,
        )
        for n, subject in enumerate(("n0", "other"))
    ]
    body = b"".join(struct.pack("<I", len(each)) + each for each in map(encode, frames))
    lists = [{"items": items, "next_cursor": None} for items in ([], [node, {**node, "name": "n1", "rack": ""}], [])]
    made, asked = source(*lists[:2], SimpleNamespace(data=body, headers={}), lists[2])
    directory = tmp_path / "new" / "folder"
    assert recorder.record(made, directory, 1.0, 9.0, None)[files.STEPS] == 1
    assert [path.split("?")[0] for path in asked] == ["/jobs", "/nodes", "/telemetry/blocks", "/events"]
    assert pq.read_table(directory / files.STEPS)["job"].to_pylist() == ["n0"]
    info = files.read_fleet(directory / files.FLEET)
    assert (info.source, info.start, info.stop) == ("mainstay record", 1.0, 9.0)
    assert [(each.name, each.rack) for each in info.nodes] == [("n0", "r1"), ("n1", None)]
    assert [(each.id, each.model, each.serial) for each in info.devices[:2]] == [("g0", "H100", "S"), ("g1", "", None)]


@pytest.mark.parametrize(
    ("began", "ended", "overlaps"),
    [(0.0, None, True), (19.9, None, True), (20.0, None, False), (0.0, 10.0, True), (0.0, 9.9, False)],
)
def test_which_jobs_ran_then(began: float, ended: float | None, overlaps: bool) -> None:
    assert recorder._overlaps({"started_at": began, "finished_at": ended}, 10.0, 20.0) is overlaps
