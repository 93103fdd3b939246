"""Tables of a recording as feeds: what each row is taken for, and what is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.recording import files, reader
from mainstay.detectors.recording.model import DeviceInfo, FleetInfo, JobInfo, NodeInfo
from mainstay.detectors.recording.rates import RecordedRates
from mainstay.detectors.recording.reader import RecordingDirectory, RecordingError, source_of
from mainstay.probes.signals import SignalSource

NAN = float("nan")
T = 1000.0


def make_recording(directory: Path, name: str, *rows: dict[str, Any], schema: Any = None) -> RecordingDirectory:
    """A recording of one table, of a job ``j`` of ranks 0 and 1 on two nodes."""
    places = tuple({"rank": r, "node": f"n{r}", "dp": r, "pp": r} for r in (1, 0))
    info = FleetInfo(nodes=(NodeInfo(name="n0", switches=("leaf",)),), jobs=(JobInfo(id="j", ranks=places),))
    (directory / files.FLEET).write_bytes(msgspec.json.encode(info))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema or files.SCHEMAS[name]), directory / name)
    return RecordingDirectory(directory)


def sample(time: float, value: float, signal: str = "cpu_utilization_ratio", **over: Any) -> dict[str, Any]:
    return {"time": time, "node": "n0", "device": "host", "signal": signal, "value": value, **over}


def column(samples: Samples, name: str) -> list[list[float]]:
    """[time][entity]"""
    return samples.x[:, samples.signals.index(name)].tolist()


def test_the_last_value_of_a_second_counts_and_what_is_not_finite_is_missing(tmp_path: Path) -> None:
    rows = [sample(T + 0.9, 3.0), sample(T + 0.2, 2.0), sample(T + 2.0, float("inf")), sample(T + 3.999, 5.0)]
    [samples] = make_recording(tmp_path, files.SAMPLES, *rows).devices(SignalSource.HOST)
    assert samples.t.tolist() == [T, T + 1, T + 2, T + 3]
    np.testing.assert_equal(column(samples, "cpu_utilization_ratio"), [[3.0], [NAN], [NAN], [5.0]])


def test_a_value_without_a_node_or_device_is_nobodys(tmp_path: Path) -> None:
    places = [("n0", "nic:a"), ("n0", "nic:b"), ("n1", "nic:a"), ("n1", "nic:b")]
    nobody = [(None, "nic:a"), (None, "nic:b"), ("n0", None), ("n1", None), (None, None)]
    rows = [
        sample(T + second, value * 10**second, "nic_receive_bytes_total", node=node, device=device)
        for second in (0, 1)
        for value, (node, device) in enumerate(places + nobody * second, 1)
    ]
    read = make_recording(tmp_path, files.SAMPLES, *rows, sample(T, 4.0, signal="unknown"))
    [samples] = read.devices(SignalSource.NIC)
    assert [(e.node, e.device) for e in samples.entities] == places
    assert column(samples, "nic_receive_bytes_total")[1] == [9.0, 18.0, 27.0, 36.0]
    assert list(read.devices(SignalSource.GPU)) == []


def test_windows_follow_one_another_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_SECONDS", 3)
    rows = [sample(T + k, float(k), node=node) for node in ("n1", "n0") for k in range(7)]
    chunks = list(make_recording(tmp_path, files.SAMPLES, *rows).devices(SignalSource.HOST))
    assert [chunk.t.tolist() for chunk in chunks] == [[T, T + 1, T + 2], [T + 3, T + 4, T + 5], [T + 6]]
    assert [v for c in chunks for v in column(c, "cpu_utilization_ratio")] == [[float(k)] * 2 for k in range(7)]
    assert len(list(make_recording(tmp_path, files.SAMPLES, *rows[:6]).devices(SignalSource.HOST))) == 2
    assert [e.node for e in chunks[0].entities] == ["n0", "n1"]
    assert chunks[0].groups == ("alone:n0/host", "alone:n1/host")


def test_a_rate_needs_two_totals_that_do_not_fall() -> None:
    rates = RecordedRates(1, 2)
    totals = np.array([[5.0, NAN], [9.0, 1.0], [NAN, 1.0], [NAN, 0.0], [21.0, 4.0]])[:, None]
    first = rates.feed(np.arange(10.0, 13.0), totals[:3])
    np.testing.assert_equal(first[:, 0].tolist(), [[NAN, NAN], [4.0, NAN], [NAN, 0.0]])
    later = rates.feed(np.arange(13.0, 15.0), totals[3:])
    np.testing.assert_equal(later[:, 0].tolist(), [[NAN, NAN], [4.0, 4.0]])


@pytest.mark.parametrize("times", [[T, float("inf")], [None]])
def test_times_must_be_numbers(tmp_path: Path, times: list[Any]) -> None:
    read = make_recording(tmp_path, files.SAMPLES, *({**sample(T, 1.0), "time": time} for time in times))
    with pytest.raises(RecordingError, match=r"samples\.parquet: time must be a finite number in every row"):
        list(read.devices(SignalSource.HOST))


def step(rank: int, number: int, time: float, seconds: float, job: str = "j") -> dict[str, Any]:
    return {"job": job, "rank": rank, "step": number, "time": time, "step_time_seconds": seconds}


def test_steps_are_rows_by_number_and_ranks_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_STEPS", 2)
    rows = [
        step(1, 4, T + 9, 1.4), step(0, 4, T + 8, 0.4), step(0, 5, T + 12, 0.5), step(1, 6, T + 5, 1.6),
        step(7, 6, T + 99, 7.6), step(0, 4, T + 20, 9.9), step(0, 4, T + 21, 9.9, job="other"),
    ]  # fmt: skip
    one, two = make_recording(tmp_path, files.STEPS, *rows).steps("j")
    assert (one.steps.tolist(), two.steps.tolist()) == ([4, 5], [6])
    assert one.t.tolist() == [T + 9, T + 12], "the last rank's end"
    assert two.t.tolist() == [T + 5], "rank 7 is not of the job"
    np.testing.assert_allclose(column(one, "step_time_seconds"), [[0.4, 1.4], [0.5, NAN]])
    np.testing.assert_allclose(column(two, "step_time_seconds"), [[NAN, 1.6]])
    assert [(e.job, e.rank, e.node) for e in one.entities] == [("j", 0, "n0"), ("j", 1, "n1")]
    assert one.groups == ("pp0", "pp1")


def test_the_time_of_steps_never_falls(tmp_path: Path) -> None:
    rows = [step(0, 4, T + 9, 1.0), step(0, 5, T + 2, 1.0), step(0, 6, T + 10, 1.0)]
    [steps] = make_recording(tmp_path, files.STEPS, *rows).steps("j")
    assert steps.t.tolist() == [T + 9, T + 9, T + 10]


def test_a_table_of_another_job_or_none_has_no_feeds(tmp_path: Path) -> None:
    read = make_recording(tmp_path, files.STEPS, step(0, 4, T, 1.0, job="other"))
    assert [list(feed("j")) for feed in (read.steps, read.progress, read.pairs)] == [[], [], []]
    assert read.events() == ()
    with pytest.raises(KeyError):
        list(read.steps("unknown"))


def test_progress_and_pairs_keep_who_they_are_of(tmp_path: Path) -> None:
    progress = [{"job": "j", "rank": r, "time": T + t, "progress_step": s}
                for r, t, s in ((1, 0.5, 3.0), (0, 2.1, 5.0), (0, 2.0, 4.0), (9, 1.0, 8.0))]  # fmt: skip
    [samples] = make_recording(tmp_path, files.PROGRESS, *progress).progress("j")
    np.testing.assert_equal(column(samples, "progress_step"), [[NAN, 3.0], [NAN, NAN], [5.0, NAN]])
    [samples] = make_recording(tmp_path, files.PROGRESS, progress[0]).progress("j")
    assert samples.t.tolist() == [T]
    pairs = [{"job": "j", "source": a, "target": b, "step": 2, "time": T + a, "transfer_seconds": a + b / 10}
             for a, b in ((3, 1), (1, 3), (1, 2))]  # fmt: skip
    [samples] = make_recording(tmp_path, files.PAIRS, *pairs).pairs("j")
    assert [(e.rank, e.peer) for e in samples.entities] == [(1, 2), (1, 3), (3, 1)]
    np.testing.assert_allclose(column(samples, "transfer_seconds"), [[1.2, 1.3, 3.1]])
    assert samples.t.tolist() == [T + 3]


def test_events_come_in_order_of_time_and_a_bad_one_is_named_by_its_row(tmp_path: Path) -> None:
    numbers = itertools.count()
    rows = [{"id": f"e{next(numbers)}", "time": time, "kind": "xid", "node": "n0"} for time in (T + 2, T, T + 1)]
    more = files.EVENT_SCHEMA.append(pa.field("rack", pa.string()))
    read = make_recording(tmp_path, files.EVENTS, *({**row, "rack": "r1"} for row in rows), schema=more)
    assert read.ignored == ["events.parquet: rack"]
    assert [(event.id, event.data) for event in read.events()] == [("e1", {}), ("e2", {}), ("e0", {})]
    read = make_recording(tmp_path, files.EVENTS, *rows, {**rows[0], "kind": "no"}, schema=files.EVENT_SCHEMA)
    with pytest.raises(RecordingError, match=r"events\.parquet: row 3: "):
        read.events()


def test_columns_that_are_needed_are_named_in_their_order(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"steps\.parquet: the column 'rank' is missing"):
        make_recording(
            tmp_path, files.STEPS, {"job": "j", "time": T}, schema=pa.schema({"job": pa.string(), "time": pa.float64()})
        )


def test_a_fleet_knows_each_node_device_and_job_by_its_name(tmp_path: Path) -> None:
    info = FleetInfo(
        nodes=(NodeInfo(name="b", cohort="second"), NodeInfo(name="a", cohort="first", switches=("leaf",))),
        devices=(DeviceInfo(node="b", id="g1", model="B"), DeviceInfo(node="a", id="g0", model="A")),
        jobs=(JobInfo(id="y", ranks=({"rank": 5, "node": "a"},)), JobInfo(id="x", ranks=({"rank": 1, "device": "g"},))),
    )
    assert [info.group(*of) for of in (("a", "g0"), ("b", "g1"), ("a", "g1"))] == ["first/A", "second/B", "first/"]
    assert (info.mesh("x").ranks.tolist(), info.mesh("x").nodes, info.mesh("x").devices) == ([1], ("",), ("g",))
    assert (info.mesh("y").switches, info.mesh("x").switches) == ((("leaf",),), ())
    assert make_recording(tmp_path, files.STEPS).fleet.mesh("j").switches == (("leaf",), ())
    assert FleetInfo(jobs=info.jobs).mesh("y").switches == (), "known of no node"


@pytest.mark.parametrize(
    ("device", "source"),
    [
        ("host", SignalSource.HOST),
        ("nic:mlx5_0", SignalSource.NIC),
        ("nicer", SignalSource.GPU),
        ("0", SignalSource.GPU),
    ],
)
def test_the_name_of_a_device_says_what_it_is(device: str, source: SignalSource) -> None:
    assert source_of(device) is source
