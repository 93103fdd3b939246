"""The checks of ``mainstay accept-gpu`` on this machine: processors, gloo, and a simulated NVIDIA driver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mainstay.recovery.accept_gpu.contract import CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS
from mainstay.recovery.accept_gpu.runner import AcceptanceReport, AcceptanceRun
from tests.fakes.fleet import FakeFleet, compile_fake
from tests.fork_server.processes import Warm
from tests.recovery.accept_gpu import forking

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1500), pytest.mark.xdist_group("training")]

RECOVERIES = ("kill", "hang")
"""Their jobs begin with torch imported, as those of scenarios do."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeFleet:
    """Two cards of a driver that every process of the test sees."""
    fleet = FakeFleet.create(tmp_path / "gpus", 2, "h100")
    for name, value in fleet.environment(compile_fake(tmp_path / "library")).items():
        monkeypatch.setenv(name, value)
    return fleet


def figures(report: AcceptanceReport, check: str) -> dict[str, float]:
    return {figure.name: figure.value for one in report.checks if one.name == check for figure in one.figures}


def passed(report: AcceptanceReport) -> bool:
    assert {check.name: check.evidence for check in report.checks if check.status is not CheckStatus.PASSED} == {}
    return report.passed


def test_every_check_of_the_devices_passes(driver: FakeFleet) -> None:
    report = AcceptanceRun(names=[name for name in CHECKS if name not in RECOVERIES], kind="cpu", seconds=0.5).run()
    assert passed(report)
    (nvml,) = [check for check in report.checks if check.name == "nvml"]
    assert nvml.facts["driver"] == "580.95.05"
    assert "gpu_temperature_celsius" in nvml.facts["names of signals given"]
    assert "serial" not in nvml.facts["GPU 1"]
    assert driver.opens == 1
    assert figures(report, "nvml")["signals given"] > 10
    assert figures(report, "snapshot")["snapshots under writes"] >= 10
    assert {"cpu: copy_256MiB", "cpu: fp32_n1024"} <= figures(report, "throughput").keys()


def test_a_real_kill_and_a_real_hang_change_no_bit(warm: Warm) -> None:
    command = (sys.executable, forking.__file__, str(warm.python))
    report = AcceptanceRun(names=RECOVERIES, kind="cpu", command=command).run()
    assert passed(report)
    assert 0.0 < figures(report, "kill")["fault to training again"] < figures(report, "hang")["fault to training again"]
