"""Pairs that measure more than TCP: real collectives of two processes, and perftest by programs in its place."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from mainstay.probes.benchmarks import perftest
from mainstay.probes.benchmarks.pair import Side
from mainstay.probes.benchmarks.pair_protocol import (
    ALL_REDUCE_PAIR,
    TOOL_SIZES,
    bandwidth_name,
    bandwidths,
)
from mainstay.probes.benchmarks.perftest import read
from mainstay.probes.benchmarks.result import BenchmarkState
from mainstay.probes.pair_tasks import PairTaskRunner
from tests.probes.test_pair_tasks import Collected, both, order, sides

pytestmark = pytest.mark.processes
PERFTEST_PAIR, _, ALL_TO_ALL_PAIR = TOOL_SIZES
SMALL, LARGE = 64 << 10, 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [ALL_REDUCE_PAIR, ALL_TO_ALL_PAIR])
def test_two_processes_run_a_collective_over_loopback(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    listen, connect = sides(120.0, benchmark=benchmark, sizes=(SMALL, LARGE))
    done = Collected()
    for name, one in {"n0": listen, "n1": connect}.items():
        PairTaskRunner(name, done).submit(one)
    for report in done.wait(2).values():
        assert (report.result.state, report.result.benchmark) == (BenchmarkState.OK, benchmark), report.result.error
        values = {metric.name: metric.values for metric in report.result.metrics}
        assert all(len(one) >= 3 for one in values.values())
        factor = 1.0 if benchmark == ALL_REDUCE_PAIR else 0.5  # nccl-tests: 2 (n - 1) / n and (n - 1) / n of 2 ranks
        seconds, rates = values[f"latency_{LARGE}"], values[f"bandwidth_{LARGE}"]
        assert [factor * LARGE / one for one in seconds] == pytest.approx(rates)


RULE = "-" * 87
# The lines that perftest 26 prints (src/perftest_parameters.h and ctx_print_test_info), of both sides alike.
BANDWIDTH = f"""{RULE}
                    RDMA_Write Bidirectional BW Test
 Dual-port       : OFF\t\tDevice         : DEVICE
 Number of qps   : 1\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
{RULE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8388608    1000             391.20             RATE               0.005826
{RULE}
"""
LATENCY = f"""{RULE}
                    RDMA_Read Latency Test
 Dual-port       : OFF\t\tDevice         : DEVICE
{RULE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
99% percentile[usec]   99.9% percentile[usec]
 2       5000          1.85           7.66         1.90  \t       1.91     \t0.06\t\t2.06 \t\t3.10
{RULE}
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, failure: str = "") -> None:
    """Programs that print as perftest does: mlx5_1 is the slower port; the serving side has no latency."""
    body = f"""#!{sys.executable}
import sys
device, served = sys.argv[sys.argv.index("-d") + 1], sys.argv[-1] != "127.0.0.1"
if {failure!r} and not served:
    sys.exit({failure!r})
if "ib_write_bw" in sys.argv[0]:
    print({BANDWIDTH!r}.replace("DEVICE", device).replace("RATE", "180.00" if device == "mlx5_1" else "390.00"))
elif not served:
    print({LATENCY!r})
"""
    for name in ("ib_write_bw", "ib_read_lat"):
        (folder / name).write_text(body)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(perftest, "rdma_devices", lambda: {"mlx5_0": True, "mlx5_1": True, "mlx5_2": False})
    monkeypatch.setattr(perftest, "_PAUSE_SECONDS", 0.0)


def test_what_perftest_prints_is_read() -> None:
    assert read(BANDWIDTH.replace("RATE", "390.00"), "average") == {8 << 20: pytest.approx(390e9 / 8)}
    assert read(LATENCY, "t_typical") == {2: pytest.approx(1.9e-6)}


def test_the_slowest_port_of_both_nodes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    listen, connect = sides(benchmark=PERFTEST_PAIR, sizes=(2, 8 << 20))
    served, connected = both(Side(listen, "n0").run, Side(connect, "n1").run)
    assert (served.state, connected.state) == (BenchmarkState.OK, BenchmarkState.OK), (served.error, connected.error)
    assert bandwidths(served) == {8 << 20: pytest.approx(180e9 / 8)}
    assert bandwidths(connected) == {2: pytest.approx(2 / 1.9e-6), 8 << 20: pytest.approx(180e9 / 8)}


@pytest.mark.parametrize(
    ("failure", "state"),
    [
        (" Completion with error at client", BenchmarkState.TIMEOUT),  # the path
        (" Unable to find the Infiniband/RoCE device", BenchmarkState.ERROR),  # this node: no evidence
        ("Couldn't connect to 127.0.0.1:1", BenchmarkState.ERROR),
    ],
)
def test_only_a_transfer_that_broke_off_is_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, state: BenchmarkState
) -> None:
    installed(tmp_path, monkeypatch, failure)
    listen, connect = sides(benchmark=PERFTEST_PAIR, sizes=(2, 8 << 20))
    _, connected = both(Side(listen, "n0").run, Side(connect, "n1").run)
    assert connected.state is state, connected.error
    assert not bandwidths(connected)


@pytest.mark.parametrize("benchmark", [PERFTEST_PAIR, "another_pair"])
def test_what_cannot_run_here_is_unsupported(benchmark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    one = msgspec.structs.replace(order(benchmark=benchmark), deadline_at=1e12)
    result = Side(one, "n0").run()
    assert (result.state, result.benchmark) == (BenchmarkState.UNSUPPORTED, benchmark)
    assert "is not installed" in (result.error or "") or "does not know" in (result.error or "")
    assert not any(metric.values for metric in result.metrics)
    assert bandwidth_name(512) in {metric.name for metric in result.metrics}
