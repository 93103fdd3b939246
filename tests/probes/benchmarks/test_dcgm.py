"""dcgmi: every version's document is read, and nothing but a pass is a pass."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mainstay.probes.benchmarks.dcgm import Dcgm, DcgmDeep, DcgmOutcome, read, summed
from mainstay.probes.benchmarks.result import BenchmarkState
from tests.probes.benchmarks.tools import GPUS, program, recorded_arguments

Json = dict[str, Any]


def tiny() -> Dcgm:
    return Dcgm(Dcgm.Config())


def third(memory: Json | None = None) -> str:
    """What DCGM 3 prints: deployment checks for all GPUs, the rest by GPU, with nulls between."""
    fine = {"gpu_ids": "0,1", "status": "PASS"}
    each = [{"gpu_id": "0", "status": "PASS"}, memory or {"gpu_id": "1", "status": "PASS"}]
    categories = [
        {"category": "Deployment", "tests": [{"name": "Denylist", "results": [fine]}, None,
                                             {"name": "Persistence Mode", "results": [fine]}]},
        {"category": "Integration", "tests": [{"name": "PCIe", "results": each[:1]}]},
        {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": each}]},
    ]  # fmt: skip
    return "Successfully ran diagnostic for group.\n" + json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": categories}}
    )


def fourth(**status: str) -> str:
    tests = [
        {"name": name, "results": [{"entity_group": "GPU", "entity_id": 1, "status": word, "warnings": [
            {"warning": f"{name} is amiss", "error_id": 7}]}]}
        for name, word in status.items()
    ]  # fmt: skip
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def test_the_third_version_is_read() -> None:
    assert [(o.test, o.status, o.entity) for o in read(third())] == [
        ("software", "pass", "GPU 0,1"), ("software", "pass", "GPU 0,1"), ("pcie", "pass", "GPU 0"),
        ("memory", "pass", "GPU 0"), ("memory", "pass", "GPU 1"),
    ]  # fmt: skip


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: d["DCGM Diagnostic"], lambda d: {
    "tests": d["DCGM Diagnostic"]["test_categories"][0]["tests"]}], ids=["named", "bare", "flat"])  # fmt: skip
def test_the_fourth_version_is_read(wrap: Any) -> None:
    (found,) = read(json.dumps(wrap(json.loads(fourth(memory="Fail")))))
    assert found == DcgmOutcome(test="memory", status="fail", entity="GPU 1", words="memory is amiss")


def test_one_failed_gpu_fails_its_test_and_the_whole() -> None:
    failed = {"gpu_id": "1", "status": "FAIL", "warnings": "a page is bad"}
    readings = summed(read(third(failed)), Dcgm.tests)
    assert readings.values == {"software": [1.0], "pcie": [1.0], "memory": [0.0], "all": [0.0]}
    assert readings.problems == {"memory": "GPU 1 memory fail a page is bad"}


def test_a_failure_of_a_test_without_a_metric_counts_in_the_whole() -> None:
    readings = summed(read(fourth(memory="Pass", pulse_test="Warn")), Dcgm.tests)  # words-check: allow
    assert (readings.values["memory"], readings.values["all"]) == ([1.0], [0.5])
    assert readings.problems["all"] == "GPU 1 pulse_test warn pulse_test is amiss"  # words-check: allow


@pytest.mark.parametrize("status", ["Skip", "Not Run", "some new word"])
def test_what_was_not_run_has_no_value(status: str) -> None:
    readings = summed(read(fourth(memory=status, pcie="Pass")), Dcgm.tests)
    assert "memory" not in readings.values
    assert "software" not in readings.values
    assert readings.problems["software"] == "dcgmi did not run it"
    assert readings.problems["memory"].startswith(f"GPU 1 memory {status.lower()}")


@pytest.mark.parametrize(("text", "fault"), [
    ("", "no JSON: nothing"),
    ("Error: unable to connect\n{half", "no JSON: {half"),
    ("[" * 100_000, "no JSON"),
    ('{"DCGM Diagnostic": {"runtime_error": "the host engine is busy"}}', "the host engine is busy"),
    ('{"DCGM Diagnostic": {"version": "4.2"}}', "ran no test"),
    ('{"test_categories": [{"tests": 7}, null]}', "ran no test"),
])  # fmt: skip
def test_what_is_no_result_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("{", r"\{")):
        read(text)


def test_the_program_is_asked_for_the_level_and_a_failing_status_is_an_answer(tmp_path: Path) -> None:
    folder = program(tmp_path, "dcgmi", third({"gpu_id": "1", "status": "Fail"}), status=226)
    result = Dcgm(Dcgm.Config(folder=folder)).run(GPUS, time.perf_counter)
    assert result.state is BenchmarkState.OK
    assert {m.name: m.values for m in result.metrics}["all"] == (0.0,)
    assert "GPU 1 memory fail" in (result.error or "")
    DcgmDeep(DcgmDeep.Config(folder=folder)).run(GPUS, time.perf_counter)
    assert recorded_arguments(tmp_path, "dcgmi")[0] == "diag -r 2 -j"
    assert recorded_arguments(tmp_path, "dcgmi")[1].startswith("diag -r 3 -p diagnostic.test_duration=")


def test_a_program_that_only_complains_is_an_error(tmp_path: Path) -> None:
    folder = program(tmp_path, "dcgmi", "", status=255, complaint="unable to connect to localhost\n")
    with pytest.raises(RuntimeError, match="status 255: unable to connect to localhost"):
        Dcgm(Dcgm.Config(folder=folder)).run(GPUS, time.perf_counter)
