"""nvbandwidth: matrices with holes, and what was waived."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from mainstay.probes.benchmarks.nvbandwidth import NvBandwidth, read
from mainstay.probes.benchmarks.result import BenchmarkState
from tests.data import DATA, needs
from tests.probes.benchmarks.tools import GPUS, program, recorded_arguments

LOG = """nvbandwidth Version: v0.6
Driver Version: 550.1

Device 0: NVIDIA Thing (00000000:1a:00)
Device 1: NVIDIA Thing (00000000:1b:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.10     27.50

SUM host_to_device_memcpy_ce 82.60

Running device_to_host_memcpy_ce.
memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0     54.00     53.00

SUM device_to_host_memcpy_ce 107.00

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    370.00
 1    360.00       N/A

SUM device_to_device_memcpy_read_ce 730.00

NOTE: The reported results may not reflect the full capabilities of the platform.
"""


def tiny() -> NvBandwidth:
    return NvBandwidth(NvBandwidth.Config())


def test_matrices_are_read() -> None:
    found = read(LOG)
    assert found["host_to_device_memcpy_ce"] == {(0, 0): 55.1, (0, 1): 27.5}
    assert found["device_to_device_memcpy_read_ce"] == {(0, 1): 370.0, (1, 0): 360.0}


@pytest.mark.parametrize(("text", "fault"), [
    ("", "no matrix"),
    (LOG[:200], "no matrix"),
    (LOG + "ERROR: Invalid value when checking the pattern at 0x7f\n", "Invalid value when checking"),
])  # fmt: skip
def test_what_is_no_result_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read(text)


def test_every_gpu_has_its_own_figures(tmp_path: Path) -> None:
    result = NvBandwidth(NvBandwidth.Config(folder=program(tmp_path, "nvbandwidth", LOG))).run(GPUS, time.perf_counter)
    assert (result.state, result.error) == (BenchmarkState.OK, None)
    assert {m.name: m.values for m in result.metrics} == {
        "h2d_gpu0": (55.1e9,), "h2d_gpu1": (27.5e9,), "d2h_gpu0": (54e9,), "d2h_gpu1": (53e9,),
        "d2d_gpu0": (370e9,), "d2d_gpu1": (360e9,),
    }  # fmt: skip
    cases = "host_to_device_memcpy_ce device_to_host_memcpy_ce device_to_device_memcpy_read_ce"
    assert recorded_arguments(tmp_path, "nvbandwidth") == [f"-t {cases}"]


def test_a_gpu_that_the_program_did_not_see_has_a_reason(tmp_path: Path) -> None:
    config = NvBandwidth.Config(folder=program(tmp_path, "nvbandwidth", LOG))
    result = NvBandwidth(config).run(msgspec.structs.replace(GPUS, count=3), time.perf_counter)
    assert {m.name: m.values for m in result.metrics}["h2d_gpu2"] == ()
    assert "h2d_gpu2: not measured" in (result.error or "")


LOGS = DATA / "superbench" / "tests_data"


@needs("superbench", "tests_data")
def test_a_real_log_is_read() -> None:
    found = read((LOGS / "nvbandwidth_results.log").read_text())
    assert found["device_to_host_memcpy_ce"] == {(0, 0): 295.15, (0, 1): 312.11}
    assert found["host_device_latency_sm"] == {(0, 0): 772.58}
