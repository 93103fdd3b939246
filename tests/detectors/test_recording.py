"""A recording is written, read and replayed: what comes back is what went in, and bad files are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.cli_errors import parse_since
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.gpu.device_state import DeviceStateDetector
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.recording import files
from mainstay.detectors.recording.cli import replay as command
from mainstay.detectors.recording.in_memory import InMemoryRecording, write
from mainstay.detectors.recording.model import DeviceInfo, FleetInfo, JobInfo, NodeInfo, Recording
from mainstay.detectors.recording.reader import RecordingDirectory, RecordingError
from mainstay.detectors.recording.recorder import record
from mainstay.detectors.recording.replay import replay
from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.signals import SignalSource

START = 1_800_000_000.0
SECONDS = 700  # more than a window of the reader
STEPS = 60


def fleet() -> FleetInfo:
    mesh = regular("gpt", dp=4, pp=2, ranks_per_node=4)
    ranks = tuple(
        {
            "rank": int(r),
            "dp": int(mesh.index[0, r]),
            "pp": int(mesh.index[1, r]),
            "node": mesh.nodes[r],
            "device": None,
        }
        for r in mesh.ranks
    )
    return FleetInfo(
        source="test",
        start=START,
        stop=START + SECONDS,
        nodes=tuple(NodeInfo(name=name, cohort="h100", switches=("leaf-0",)) for name in ("node-0", "node-1")),
        devices=tuple(DeviceInfo(node=n, id="host", model="EPYC") for n in ("node-0", "node-1")),
        jobs=(JobInfo(id="gpt", ranks=ranks),),
    )


def recording(slow: float = 1.0) -> InMemoryRecording:
    """Two hosts for a few minutes, a job of eight ranks of which rank 5 becomes slow, a rank that exits."""
    rng = np.random.default_rng(3)
    info = fleet()
    mesh = info.mesh("gpt")
    t = START + np.arange(SECONDS, dtype=np.float64)
    hosts = np.empty((SECONDS, 2, 2), np.float32)
    hosts[:, 0] = 0.5 + 0.01 * rng.standard_normal((SECONDS, 2))
    hosts[:, 1] = 1000.0
    hosts[300:340, 1, 1] = np.nan
    compute = 1.0 + 0.004 * rng.standard_normal((STEPS, 8))
    compute[30:, 5] *= slow
    steps = np.stack([compute.max(axis=1, keepdims=True) + 0.2 + np.zeros((STEPS, 8)), compute], axis=1)
    entities = tuple(Entity(job="gpt", rank=r, node=mesh.nodes[r]) for r in range(8))
    return InMemoryRecording(
        fleet=info,
        by_source={
            SignalSource.HOST: Samples(
                entities=(Entity(node="node-0", device="host"), Entity(node="node-1", device="host")),
                groups=("h100/EPYC",) * 2,
                signals=("cpu_utilization_ratio", "context_switches_total"),
                t=t,
                x=hosts,
            )
        },
        by_step={
            "gpt": Samples(
                entities=entities,
                groups=tuple(f"pp{s}" for s in mesh.on("pp")),
                signals=("step_time_seconds", "compute_time_seconds"),
                t=START + 1.2 * np.arange(1, STEPS + 1),
                x=steps,
                steps=np.arange(STEPS),
                mesh=mesh,
            )
        },
        happened=(
            Event(
                id="0198e0a0-0000-7000-8000-000000000001",
                time=START + 90.0,
                kind=EventKind.PROCESS_EXIT,
                job="gpt",
                rank=2,
                node="node-0",
                data={"exit_code": 1, "error": "ValueError: no"},
            ),
        ),
    )


def whole(given: Recording, source: SignalSource) -> tuple[Any, Any]:
    chunks = list(given.devices(source))
    return np.concatenate([c.t for c in chunks]), np.concatenate([c.x for c in chunks])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(recording(slow=1.2), tmp_path / "recording")
    return tmp_path / "recording"


def test_what_is_read_is_what_was_written(directory: Path) -> None:
    read, made = RecordingDirectory(directory), recording(slow=1.2)
    assert read.fleet == made.fleet
    assert read.events() == made.events()
    [steps], [before] = list(read.steps("gpt")), list(made.steps("gpt"))
    assert steps.entities == before.entities
    assert steps.groups == before.groups
    both = [steps.signals.index(name) for name in before.signals]
    np.testing.assert_allclose(steps.x[:, both], before.x)
    np.testing.assert_allclose(steps.t, before.t)
    assert np.isnan(np.delete(steps.x, both, axis=1)).all()


def test_progress_and_pairs_come_back_from_every_window(tmp_path: Path) -> None:
    info = fleet()
    mesh = info.mesh("gpt")
    ranks = tuple(Entity(job="gpt", rank=r, node=mesh.nodes[r]) for r in range(8))
    rng = np.random.default_rng(1)
    t = START + np.arange(SECONDS, dtype=np.float64)
    progress = Samples(
        entities=ranks, groups=("",) * 8, signals=("in_collective_seconds", "progress_step"), t=t,
        x=rng.random((SECONDS, 2, 8)).astype(np.float32), mesh=mesh,
    )  # fmt: skip
    ways = tuple(Entity(job="gpt", rank=a, peer=b) for a, b in ((0, 1), (1, 0), (3, 2)))
    many = 600  # steps, more than a window of the reader
    pairs = Samples(
        entities=ways, groups=("pair",) * 3, signals=("transfer_seconds", "transfer_bytes"),
        t=START + np.arange(many) / 2, x=rng.random((many, 2, 3)).astype(np.float32), steps=np.arange(many), mesh=mesh,
    )  # fmt: skip
    write(InMemoryRecording(fleet=info, by_progress={"gpt": progress}, by_pair={"gpt": pairs}), tmp_path)
    read = RecordingDirectory(tmp_path)
    for made, chunks in ((progress, list(read.progress("gpt"))), (pairs, list(read.pairs("gpt")))):
        assert len(chunks) == 2
        np.testing.assert_array_equal(np.concatenate([chunk.t for chunk in chunks]), made.t)
        assert [(e.rank, e.peer) for e in chunks[0].entities] == [(e.rank, e.peer) for e in made.entities]
        columns = [chunks[0].signals.index(name) for name in made.signals]
        found = np.concatenate([chunk.x[:, columns] for chunk in chunks])
        np.testing.assert_allclose(found, made.x, rtol=1e-6)


def test_counters_travel_as_totals_and_come_back_as_rates(directory: Path) -> None:
    table = pq.read_table(directory / files.SAMPLES)
    mine = (pa.compute.field("signal") == "context_switches_total") & (pa.compute.field("node") == "node-1")
    totals = table.filter(mine)["value"].to_numpy()
    assert totals.max() == pytest.approx(1000.0 * (SECONDS - 40), rel=0.01)
    t, x = whole(RecordingDirectory(directory), SignalSource.HOST)
    np.testing.assert_array_equal(t, START + np.arange(SECONDS))
    signals = next(RecordingDirectory(directory).devices(SignalSource.HOST)).signals
    rates = x[:, signals.index("context_switches_total")]
    np.testing.assert_allclose(rates[1:, 0], 1000.0)
    assert np.isnan(rates[300:340, 1]).all()
    assert rates[340, 1] == pytest.approx(1000.0 / 41, rel=0.01)  # no count while no sample arrived


def test_replay_says_the_same_from_memory_and_from_disk(directory: Path) -> None:
    said = replay(recording(slow=1.2))
    kinds = [(f.kind, f.entity.rank) for f in said if f.active]
    assert (FindingKind.STRAGGLER, 5) in kinds
    assert (FindingKind.PROCESS_EXIT, 2) in kinds
    again = replay(RecordingDirectory(directory))
    assert [(f.key, f.active, f.evidence.summary) for f in again] == [
        (f.key, f.active, f.evidence.summary) for f in said
    ]


def hot(seconds: int = 600) -> InMemoryRecording:
    """Two GPUs of one node that boots after half of the time; the second one says from then on that it needs a reset.

    GPUs and hosts come in chunks of different lengths.
    """
    t = START + np.arange(seconds, dtype=np.float64)
    action = np.zeros((seconds, 1, 2), np.float32)
    action[seconds // 2 :, 0, 1] = 1.0
    uptime = np.where(t < START + seconds // 2, t - START + 5000.0, t - START - seconds // 2).astype(np.float32)
    gpus = Samples(
        entities=(Entity(node="node-0", device="gpu-0"), Entity(node="node-0", device="gpu-1")),
        groups=("h100",) * 2, signals=("gpu_recovery_action",), t=t, x=action,
    )  # fmt: skip
    hosts = Samples(
        entities=(Entity(node="node-1", device="host"), Entity(node="node-0", device="host")),
        groups=("h100",) * 2, signals=("uptime_seconds",), t=t,
        x=np.stack([np.full(seconds, np.nan, np.float32), uptime], axis=1)[:, None, :],
    )  # fmt: skip

    class Chunks(InMemoryRecording):
        def devices(self, source: SignalSource) -> Iterator[Samples]:
            whole, step = (gpus, 70) if source is SignalSource.GPU else (hosts, 45)
            if source in {SignalSource.GPU, SignalSource.HOST}:
                yield from (whole.part(at, min(at + step, seconds)) for at in range(0, seconds, step))

    return Chunks(fleet=fleet())


def test_devices_are_replayed_beside_the_uptime_of_their_host() -> None:
    made = hot()
    whole = next(iter(made.devices(SignalSource.GPU)))
    detector = DeviceStateDetector()
    hosts = np.concatenate([chunk.x[:, 0, 1] for chunk in made.devices(SignalSource.HOST)])
    expected = []
    at = 0
    for chunk in made.devices(SignalSource.GPU):
        beside = np.repeat(hosts[at : at + len(chunk.t), None, None], 2, axis=2)
        at += len(chunk.t)
        x = np.concatenate([chunk.x, beside], axis=1)
        expected += detector.update(replace(chunk, signals=(*whole.signals, "uptime_seconds"), x=x))
    assert {f.entity.device for f in expected if f.active} == {"gpu-1"}
    assert replay(made, ["device_state"]) == expected


def test_only_the_detectors_that_were_asked(directory: Path) -> None:
    assert {f.detector for f in replay(RecordingDirectory(directory), ["process_exit"])} == {"process_exit"}
    with pytest.raises(ValueError, match="no detector is called 'exits'"):
        replay(RecordingDirectory(directory), ["exits"])


def test_a_healthy_recording_is_quiet(tmp_path: Path) -> None:
    quiet = recording()
    quiet.happened = ()
    write(quiet, tmp_path)
    assert [f for f in replay(RecordingDirectory(tmp_path)) if f.active] == []


def test_the_command_writes_one_finding_a_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = directory / "findings.jsonl"
    assert command(directory, output=out) == 0
    found = [msgspec.json.decode(line, type=Finding) for line in out.read_bytes().splitlines()]
    assert [f.time for f in found] == sorted(f.time for f in found)
    shown = capsys.readouterr().out
    assert "straggler" in shown
    assert "Rank 5" in shown
    assert command(directory, as_json=True, detectors=("process_exit",)) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["kind"] == "process_exit"


def spoil(directory: Path, name: str, change: Any) -> None:
    pq.write_table(change(pq.read_table(directory / name)), directory / name)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda d: (d / "fleet.json").unlink(), "has no fleet.json"),
        (lambda d: (d / "fleet.json").write_text("{"), "fleet.json"),
        (lambda d: (d / "fleet.json").write_text('{"jobs": [{"id": 7}]}'), "Expected `str`"),
        (lambda d: (d / "steps.parquet").write_text("steps"), "steps.parquet: not a Parquet file"),
        (lambda d: spoil(d, "steps.parquet", lambda t: t.drop_columns(["rank"])), "'rank' is missing"),
        (lambda d: spoil(d, "events.parquet", lambda t: _with(t, "kind", ["explosion"])), "row 0"),
        (lambda d: spoil(d, "events.parquet", lambda t: _with(t, "data", ["{"])), "row 0"),
    ],
)
def test_what_cannot_be_used_is_named(
    directory: Path, spoiled: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(directory)
    assert command(directory) == 2
    assert message in capsys.readouterr().err


def _with(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    return table.set_column(table.schema.get_field_index(column), column, [values])


def test_a_column_that_is_no_signal_is_told(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(directory, "steps.parquet", lambda t: t.append_column("forward_secs", [[1.0] * len(t)]))
    assert command(directory) == 0
    assert "steps.parquet: forward_secs" in capsys.readouterr().err


def test_a_step_that_was_done_again_counts_as_it_came_first(directory: Path) -> None:
    def repeat(table: pa.Table) -> pa.Table:
        late = table.slice(0, 8)
        late = _with(late, "time", [START + 500.0] * 8)
        return pa.concat_tables([_with(late, "compute_time_seconds", [9.0] * 8), table])

    spoil(directory, "steps.parquet", repeat)
    [steps] = RecordingDirectory(directory).steps("gpt")
    assert len(steps.steps if steps.steps is not None else ()) == STEPS
    assert steps.x[0, steps.signals.index("compute_time_seconds")].max() < 2.0


class Service:
    """What the service answers about two jobs on three nodes; it holds no frames."""

    def pages(self, path: str, since: float = 0.0) -> list[dict[str, Any]]:
        place = {"device": "gpu-0", "dp": 0, "pp": 0, "tp": 0}
        jobs = [
            {"id": "a", "started_at": 10.0, "finished_at": 50.0,
             "topology": {"ranks": [{"rank": 0, "node": "n0", **place}]}},
            {"id": "b", "started_at": 40.0, "finished_at": None,
             "topology": {"ranks": [{"rank": 0, "node": "n1", **place}]}},
        ]  # fmt: skip
        nodes = [
            {"name": f"n{k}", "cohort": "h100", "rack": "r" if k else "", "switches": ["leaf-0"],
             "devices": [{"id": "gpu-0", "model": "H100", "serial": None}]}
            for k in range(3)
        ]  # fmt: skip
        events = [
            {"id": str(n), "time": time, "kind": "xid", "node": node, "device": None, "job": job, "rank": None,
             "data": {"code": 79}}
            for n, (time, node, job) in enumerate([(45.0, "n1", None), (20.0, None, "a"), (70.0, "n0", None)])
            if time >= since
        ]  # fmt: skip
        return {"/jobs": jobs, "/nodes": nodes, "/events": events}[path]

    def frames(self, _start: float, _stop: float, _subject: str | None) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("job", "jobs", "nodes", "times"),
    [(None, ["a", "b"], ["n0", "n1", "n2"], [20.0, 45.0]), ("a", ["a"], ["n0"], [20.0]), ("b", ["b"], ["n1"], [45.0])],
)
def test_a_recording_holds_the_job_its_nodes_and_their_events(
    tmp_path: Path, job: str | None, jobs: list[str], nodes: list[str], times: list[float]
) -> None:
    service: Any = Service()
    assert record(service, tmp_path, 0.0, 60.0, job)[files.EVENTS] == len(times)
    read = RecordingDirectory(tmp_path)
    assert [one.id for one in read.fleet.jobs] == jobs
    assert [node.name for node in read.fleet.nodes] == nodes
    assert [(event.time, event.data) for event in read.events()] == [(time, {"code": 79}) for time in times]
    with pytest.raises(FileExistsError):
        record(service, tmp_path, 0.0, 60.0, job)


def test_what_the_service_does_not_know_is_not_recorded(tmp_path: Path) -> None:
    service: Any = Service()
    with pytest.raises(ValueError, match="knows no job 'c'"):
        record(service, tmp_path, 0.0, 60.0, "c")
    with pytest.raises(ValueError, match="knows no job 'a'"):
        record(service, tmp_path, 51.0, 60.0, "a")
    assert record(service, tmp_path, 80.0, 90.0, None)[files.EVENTS] == 0


def test_devices_are_compared_with_their_kind() -> None:
    info = FleetInfo(nodes=(NodeInfo(name="a", cohort="h100"),), devices=(DeviceInfo(node="b", id="g", model="A100"),))
    assert info.group("a", "g") == "h100/"
    assert info.group("b", "g") == "/A100"
    assert info.group("c", "g") == "alone:c/g"


@pytest.mark.parametrize(
    ("since", "seconds"), [("90s", 90.0), ("10m", 600.0), ("2h", 7200.0), ("1.5d", 129_600.0), ("9000", 1000.0)]
)
def test_how_long_ago_a_recording_begins(since: str, seconds: float) -> None:
    assert parse_since(since, 10_000.0) == 10_000.0 - seconds
    with pytest.raises(ValueError, match="--since 'soon' must be Unix seconds"):
        parse_since("soon", 10_000.0)


def test_it_does_not_write_over_another_recording(directory: Path) -> None:
    with pytest.raises(FileExistsError):
        write(recording(), directory)


def test_a_directory_without_tables_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_bytes(msgspec.json.encode(fleet()))
    assert replay(RecordingDirectory(tmp_path)) == []
    with pytest.raises(RecordingError, match="not a recording"):
        RecordingDirectory(tmp_path / "nowhere")
