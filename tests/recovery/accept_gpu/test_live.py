"""The checks of ``mainstay accept-gpu`` on this machine: processors, gloo, and a simulated NVIDIA driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstay.recovery.accept_gpu.contract import CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS
from mainstay.recovery.accept_gpu.runner import AcceptanceReport, AcceptanceRun
from tests.fakes.fleet import FakeFleet, compile_fake

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1500), pytest.mark.xdist_group("training")]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeFleet:
    """Two cards of a driver that every process of the test sees."""
    fleet = FakeFleet.create(tmp_path / "gpus", 2, "h100")
    for name, value in fleet.environment(compile_fake(tmp_path / "library")).items():
        monkeypatch.setenv(name, value)
    return fleet


def figures(report: AcceptanceReport, check: str) -> dict[str, float]:
    return {figure.name: figure.value for one in report.checks if one.name == check for figure in one.figures}


def test_every_check_passes_with_a_real_kill_and_a_real_hang(driver: FakeFleet) -> None:
    report = AcceptanceRun(names=tuple(CHECKS), kind="cpu", seconds=0.5).run()
    assert {check.name: check.evidence for check in report.checks if check.status is not CheckStatus.PASSED} == {}
    assert report.passed
    (nvml,) = [check for check in report.checks if check.name == "nvml"]
    assert nvml.facts["driver"] == "580.95.05"
    assert "gpu_temperature_celsius" in nvml.facts["names of signals given"]
    assert "serial" not in nvml.facts["GPU 1"]
    assert driver.opens == 1
    assert figures(report, "nvml")["signals given"] > 10
    assert figures(report, "snapshot")["snapshots under writes"] >= 10
    assert 0.0 < figures(report, "kill")["fault to training again"] < figures(report, "hang")["fault to training again"]
    assert {"cpu: copy_256MiB", "cpu: fp32_n1024"} <= figures(report, "throughput").keys()
