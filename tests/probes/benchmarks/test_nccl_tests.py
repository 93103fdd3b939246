"""nccl-tests: rows of old and new versions, and wrong values that never become a figure."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from mainstay.probes.benchmarks.nccl_tests import NcclTests
from mainstay.probes.benchmarks.nccl_tests_output import Row, read
from mainstay.probes.benchmarks.result import BenchmarkState
from tests.data import DATA, needs
from tests.probes.benchmarks.tools import GPUS, program, recorded_arguments

LOG = """# nThread 1 nGpus 2 minBytes 8 maxBytes 1073741824 step: 8(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   77 on node-1 device  0 [0x1a] NVIDIA Thing
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node-1:77:77 [0] NCCL INFO Launch mode Parallel
           8             2     float     sum      -1    20.50    0.00    0.00      0    19.00    0.00    0.00      0
     2097152        524288     float     sum      -1    40.00   52.43   52.43      0    39.00   53.77   53.77      0
    16777216       4194304     float     sum      -1   160.00  104.86  104.86      0   158.00  106.19  106.19      0
  1073741824     268435456     float     sum      -1   5000.0  214.75  214.75      0   4990.0  215.18  215.18    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 93.0
"""


def tiny() -> NcclTests:
    return NcclTests(NcclTests.Config())


def test_rows_are_read() -> None:
    rows = read(LOG)
    assert list(rows) == [8, 2 << 20, 16 << 20, 1 << 30]
    assert rows[8].seconds == pytest.approx(20.5e-6)
    assert rows[1 << 30] == Row(seconds=pytest.approx(5e-3), bus=pytest.approx(214.75e9))


@pytest.mark.parametrize(("text", "fault"), [
    (LOG.replace("0 OK", "3 FAILED"), "found 3 wrong values"),
    (LOG[: LOG.index("# Out")], "did not come to its end"),
    ("# Out of bounds values : 0 OK\n", "no row"),
])  # fmt: skip
def test_what_is_no_result_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read(text)


def test_it_runs_over_all_gpus_and_repeats(tmp_path: Path) -> None:
    config = NcclTests.Config(folder=program(tmp_path, "all_reduce_perf", LOG), repeats=3)
    result = NcclTests(config).run(GPUS, time.perf_counter)
    assert (result.state, result.error) == (BenchmarkState.OK, None)
    assert [len(metric.values) for metric in result.metrics] == [3, 3, 3, 3]
    assert recorded_arguments(tmp_path, "all_reduce_perf") == ["-b 8 -e 1G -f 8 -g 2 -c 1"] * 3


def test_one_gpu_has_nobody_to_talk_to(tmp_path: Path) -> None:
    config = NcclTests.Config(folder=program(tmp_path, "all_reduce_perf", LOG))
    able, reason = NcclTests(config).supported(msgspec.structs.replace(GPUS, count=1))
    assert (able, reason) == (False, "all_reduce_perf needs two GPUs or more")


LOGS = DATA / "superbench" / "tests_data"


@needs("superbench", "tests_data")
def test_a_real_log_is_read() -> None:
    rows = read((LOGS / "nccl_allreduce.log").read_text())
    assert rows[1 << 30].bus == pytest.approx(230.29e9)
    assert rows[8].seconds == pytest.approx(34.66e-6)
