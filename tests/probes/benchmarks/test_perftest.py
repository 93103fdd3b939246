"""perftest: bandwidth and latency tables, units as printed, and a machine's ports one by one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mainstay.probes.benchmarks import perftest
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.external_tool import rdma_devices
from mainstay.probes.benchmarks.perftest import Perftest, read
from mainstay.probes.benchmarks.result import BenchmarkState
from tests.data import DATA, needs
from tests.probes.benchmarks.tools import program, recorded_arguments

RULE = "-" * 80
BANDWIDTH = f"""{RULE}
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 Link type       : IB
{RULE}
 local address: LID 0x01 QPN 0x0101 PSN 0x010101
{RULE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 8388608    1000             197.00             196.00                0.002921
{RULE}
"""
LATENCY = f"""                    RDMA_Write Latency Test
{RULE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    99% percentile[usec]
 2       5000          0.91           4.20         0.95               0.96         1.10
{RULE}
"""


def tiny() -> Perftest:
    return Perftest(Perftest.Config())


def test_bandwidth_is_read_in_bytes() -> None:
    assert read(BANDWIDTH, "average") == {8 << 20: pytest.approx(196e9 / 8)}
    old = BANDWIDTH.replace("Gb/sec", "MB/sec").replace("196.00", "24056.72")
    assert read(old, "average") == {8 << 20: pytest.approx(24056.72 * (1 << 20))}


def test_latency_is_read_in_seconds() -> None:
    assert read(LATENCY, "t_typical") == {2: pytest.approx(0.95e-6)}
    assert read(LATENCY, "t_avg") == {2: pytest.approx(0.96e-6)}


@pytest.mark.parametrize("text", ["", RULE, BANDWIDTH.replace("Gb/sec", "furlongs"), LATENCY])
def test_what_is_no_result_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no column 'average'"):
        read(text, "average")


def test_ports_are_read_from_the_kernel(tmp_path: Path) -> None:
    for name, states in {"mlx5_1": ["1: DOWN"], "mlx5_0": ["1: DOWN", "4: ACTIVE"]}.items():
        for number, state in enumerate(states, 1):
            (tmp_path / name / "ports" / str(number)).mkdir(parents=True)
            (tmp_path / name / "ports" / str(number) / "state").write_text(f"{state}\n")
    assert rdma_devices(tmp_path) == {"mlx5_0": True, "mlx5_1": False}
    assert rdma_devices(tmp_path / "none") == {}


def both(folder: Path) -> Perftest:
    program(folder, "ib_write_bw", BANDWIDTH)
    return Perftest(Perftest.Config(folder=program(folder, "ib_write_lat", LATENCY)))


def test_the_slowest_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Device) -> None:
    monkeypatch.setattr(perftest, "rdma_devices", lambda: {"mlx5_0": True, "mlx5_1": True, "mlx5_2": False})
    monkeypatch.setattr(Perftest, "_rate", lambda _, name, place: {"mlx5_0": 24e9, "mlx5_1": 12e9}[name] + 0 * place)
    result = both(tmp_path).run(cpu, time.perf_counter)
    assert (result.state, result.device) == (BenchmarkState.OK, "host")
    assert [metric.values for metric in result.metrics] == [(12e9,), (pytest.approx(0.95e-6),), (0.5,)]
    assert "slowest of 2 ports: mlx5_1" in (result.error or "")
    assert "-d mlx5_1 -F -s 2 -n 5000 -p 18603 127.0.0.1" in recorded_arguments(tmp_path, "ib_write_lat")


def test_a_machine_whose_ports_are_all_down_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Device
) -> None:
    monkeypatch.setattr(perftest, "rdma_devices", lambda: {"mlx5_0": False})
    with pytest.raises(RuntimeError, match="no port is active of mlx5_0"):
        both(tmp_path).run(cpu, time.perf_counter)
    monkeypatch.setattr(perftest, "rdma_devices", dict)
    assert both(tmp_path).supported(cpu) == (False, "this host has no RDMA device")


LOGS = DATA / "superbench" / "tests_data"


@needs("superbench", "tests_data")
def test_a_real_log_is_read() -> None:
    found = read((LOGS / "ib_loopback_all_sizes.log").read_text(), "average")
    assert found[8 << 20] == pytest.approx(23240.68 * (1 << 20))
    assert found[2] == pytest.approx(5.30 * (1 << 20))
