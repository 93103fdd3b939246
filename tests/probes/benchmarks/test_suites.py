"""Suites are data: tiers of the same measurements, described without running anything."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from bench.validation import LIMIT_SECONDS
from mainstay.detectors.validation.criteria import judge_suite
from mainstay.detectors.validation.report import headline
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.base import Device, Kind
from mainstay.probes.benchmarks.disk import Disk
from mainstay.probes.benchmarks.result import SuiteResult
from mainstay.probes.benchmarks.runner import _left_out, cohort_of, run_suite
from mainstay.probes.benchmarks.suites import BENCHMARKS, SUITES, TYPICAL, Suite, describe
from mainstay.probes.identity import default_cohort
from mainstay.probes.samplers.base import DeviceIdentity


def test_the_tiers_grow() -> None:
    assert list(SUITES) == ["quick", "standard", "deep"]
    for smaller, larger in pairwise(SUITES.values()):
        assert smaller.tier < larger.tier
        assert smaller.budget_seconds < larger.budget_seconds
        assert smaller.timeout_seconds < larger.timeout_seconds


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_longer_suite_has_all_of_the_shorter(kind: Kind) -> None:
    names = [[benchmark.name for benchmark in suite.benchmarks(kind)] for suite in SUITES.values()]
    assert all(set(smaller) <= set(larger) for smaller, larger in pairwise(names))
    assert set(names[-1]) == set(BENCHMARKS)


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_the_stated_times_are_within_the_limit_of_eight_gpus(suite: Suite) -> None:
    assert suite.expected_seconds(TYPICAL["cuda"]) <= LIMIT_SECONDS[suite.name]


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_no_benchmark_is_stated_to_need_half_its_time_out(suite: Suite) -> None:
    for kind, device in TYPICAL.items():
        for benchmark in suite.benchmarks(kind):
            assert benchmark.expected_seconds(device) <= suite.timeout_seconds / 2, benchmark.name


def test_a_part_of_a_suite_keeps_its_order_and_names_strangers() -> None:
    assert [b.name for b in SUITES["quick"].benchmarks("cpu", only=("copy", "gemm"))] == ["gemm", "copy"]
    with pytest.raises(ValueError, match="no benchmark gpu-burn: it has deterministic, gemm"):
        SUITES["quick"].benchmarks("cpu", only=("gemm", "gpu-burn"))


def test_the_disk_is_tested_where_asked() -> None:
    (disk,) = (one for one in SUITES["quick"].benchmarks("cpu", directory="/data") if isinstance(one, Disk))
    assert disk.config.directory == "/data"


OPTIONAL = {"dcgm", "dcgm_deep", "nccl_tests", "nvbandwidth", "perftest"}


def test_only_what_needs_a_foreign_program_is_optional() -> None:
    assert {name for name, made in BENCHMARKS.items() if made.optional} == OPTIONAL
    assert {b.name for b in describe()[-1].benchmarks if b.optional} == OPTIONAL


def test_what_cannot_run_here_is_left_out_with_its_reason_unless_it_is_named() -> None:
    here, deep = Device(kind="cpu", model="any"), SUITES["deep"].benchmarks("cpu")
    assert _left_out(deep, None, ()) == {}
    found = _left_out(deep, here, ())
    assert set(found) <= OPTIONAL
    assert found["dcgm"] == "dcgmi tests NVIDIA GPUs, and here are none"
    assert "dcgm" not in _left_out(deep, here, ("gemm", "dcgm"))


def test_the_headline_says_what_was_left_out() -> None:
    result = SuiteResult(
        suite="deep", started_at=0.0, finished_at=9.0, host="worker-7", device="any x2", cohort="any", software="",
        benchmarks=(), left_out={"dcgm": "dcgmi is not installed"},
    )  # fmt: skip
    judged = judge_suite(result, Criteria(criteria=()))
    assert headline(judged).plain.endswith("Left out: dcgm (dcgmi is not installed).")
    assert "Left out" not in headline(msgspec.structs.replace(judged, left_out={})).plain


@pytest.mark.slow
def test_what_is_named_is_not_left_out() -> None:
    result = run_suite(SUITES["standard"], device="cpu", only=("launch",))
    assert result.left_out == {}
    assert [b.state for b in run_suite(SUITES["standard"], device="cpu", only=("dcgm",)).benchmarks] == ["unsupported"]


def test_a_description_covers_both_kinds_or_one() -> None:
    everything, processor = describe()[0], describe("cpu")[0]
    names = {(b.name, m.name) for b in everything.benchmarks for m in b.metrics}
    assert {("gemm", "tf32_n8192"), ("gemm", "fp32_n1024"), ("allreduce", "nccl_latency_4KiB")} <= names
    assert {(b.name, m.name) for b in processor.benchmarks for m in b.metrics} < names
    assert [suite.name for suite in describe()] == list(SUITES)


@pytest.mark.parametrize("model", ["AMD EPYC", "NVIDIA H100 80GB HBM3", "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"])
def test_a_cohort_has_the_name_that_the_node_daemon_gives_it(model: str) -> None:
    """Criteria learned on the command line must find the nodes that they are for."""
    gpus = tuple(DeviceIdentity(id=f"g{i}", index=i, kind="gpu", model=model) for i in range(8))
    assert cohort_of(Device(kind="cuda", model=model, count=8)) == default_cohort(gpus)
