"""SuperBench results as native runs: devices, directions, return codes; criteria learned from them and applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.conversion import NO_DIRECTION, read_runs, unread_metrics
from mainstay.detectors.superbench.names import direction
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.result import BenchmarkState, Better
from mainstay.probes.core_types import Verdict
from tests.commands import run_here as mainstay
from tests.data import DATA, needs


def node(number: int, **over: float | None) -> dict[str, Any]:
    noise = np.random.default_rng(number).normal(1.0, 0.003, 5)
    row: dict[str, Any] = {"node": f"n{number}", "mem-bw/return_code": 0, "monitor/gpu_temperature:0": 60}
    row |= {f"mem-bw/h2d_bw:{gpu}": 26.0 * noise[gpu] for gpu in range(4)}
    return row | {"kernel-launch/event_time:0": 0.0056 * noise[4], "matmul/nosharding": 1.0} | over


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("allreduce_8_busbw", Better.HIGHER),
        ("H2D_Mem_BW", Better.HIGHER),
        ("fp64_tc_flops", Better.HIGHER),
        ("pytorch-bert-base/throughput_train_float32", Better.HIGHER),
        ("pytorch-bert-base/steptime_train_float32_99", Better.LOWER),
        ("allreduce_8_time", Better.LOWER),
        ("wall_overhead", Better.LOWER),
        ("nosharding", None),
    ],
)
def test_the_name_tells_which_way_a_metric_improves(metric: str, better: Better | None) -> None:
    assert direction(metric) is better


def test_a_node_is_a_host_and_a_rank_a_device(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path / "results.jsonl", [node(1)]))
    found = {(one.benchmark, one.device): one for one in run.benchmarks}
    assert run.host == "n1"
    assert sorted(found) == [("kernel-launch", "rank:0"), *(("mem-bw", f"rank:{gpu}") for gpu in range(4))]
    (metric,) = found["mem-bw", "rank:2"].metrics
    assert (metric.name, metric.better, metric.values) == ("h2d_bw", Better.HIGHER, (node(1)["mem-bw/h2d_bw:2"],))
    assert run.left_out == {"matmul/nosharding": NO_DIRECTION}
    assert [(one.benchmark, one.metric) for one in unread_metrics([run, run])] == [("matmul", "nosharding")]


def test_a_failed_benchmark_and_an_absent_number_measure_nothing(tmp_path: Path) -> None:
    rows = [node(1, **{"mem-bw/return_code": 3}), node(2, **{"mem-bw/h2d_bw:1": None}), node(3)]
    failed, absent, _ = read_runs(write(tmp_path / "results.jsonl", rows))
    broken = [one for one in failed.benchmarks if one.benchmark == "mem-bw"]
    assert {(one.state, one.error) for one in broken} == {(BenchmarkState.ERROR, "return code 3")}
    values = {one.device: one.metrics[0].values for one in absent.benchmarks if one.benchmark == "mem-bw"}
    assert not values["rank:1"]
    assert values["rank:0"]


def test_metrics_of_unlike_devices_are_not_missing_on_each_other(tmp_path: Path) -> None:
    row = {"node": "a", "x/one_bw:0": 1.0, "x/one_bw:1": 1.0, "x/all_bw": 2.0}
    (run,) = read_runs(write(tmp_path / "results.jsonl", [row]))
    assert [(one.benchmark, one.device, len(one.metrics)) for one in run.benchmarks] == [
        ("x from rank:0", "rank:0", 1),
        ("x from rank:0", "rank:1", 1),
        ("x from host", "host", 1),
    ]


def test_one_object_of_one_node_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "n7").mkdir()
    row = {name: value for name, value in node(7).items() if name != "node"}
    (tmp_path / "n7" / "results.json").write_text(json.dumps(row, indent=2))
    assert [run.host for run in read_runs(tmp_path / "n7" / "results.json")] == ["n7"]


def test_criteria_of_superbench_results_find_a_slow_card(tmp_path: Path) -> None:
    fitted = write(tmp_path / "trusted.jsonl", [node(i) for i in range(12)])
    criteria = tmp_path / "criteria.json"
    done = mainstay("criteria", "fit", fitted, "--output", criteria)
    assert done.returncode == 0, done.stderr
    learned = msgspec.json.decode(criteria.read_bytes(), type=Criteria)
    assert {(one.benchmark, one.metric, one.better) for one in learned.criteria} == {
        ("mem-bw", "h2d_bw", Better.HIGHER),
        ("kernel-launch", "event_time", Better.LOWER),
    }
    assert [one.reason for one in learned.refused] == [NO_DIRECTION]
    new = [node(20), node(21, **{"mem-bw/h2d_bw:3": 18.0}), node(22, **{"mem-bw/h2d_bw:0": None})]
    done = mainstay("criteria", "check", write(tmp_path / "new.jsonl", new), "--criteria", criteria, "--json")
    assert done.returncode == 1, done.stderr
    assert [one["verdict"] for one in json.loads(done.stdout)] == [Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "Expected `object`"),
        ('{"a": 1}', "missing required field `suite`"),
        ('{"node": "a", "x/y_bw": 1}\n{"node": "a", "x/y_bw": 1}', "line 2: node 'a' stands already in line 1"),
        ('{"node": "a", "x/y_bw": 1}\nnothing', "line 2: no JSON object"),
    ],
)
def test_what_is_neither_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=words):
        read_runs(tmp_path / "bad.json")


@needs("superbench", "golden", "mini8.jsonl")
def test_the_shared_results_of_eight_nodes_are_judged_by_criteria_of_their_own(tmp_path: Path) -> None:
    file, criteria = DATA / "superbench" / "golden" / "mini8.jsonl", tmp_path / "criteria.json"
    assert mainstay("criteria", "fit", file, "--output", criteria).returncode == 0
    done = mainstay("criteria", "check", file, "--criteria", criteria, "--json")
    told = {one["host"]: one["verdict"] for one in json.loads(done.stdout)}
    assert {host for host, verdict in told.items() if verdict == Verdict.FAIL} == {"mini-1", "mini-4", "mini-6"}
    assert told["mini-2"] == Verdict.UNKNOWN, "a metric is absent"
