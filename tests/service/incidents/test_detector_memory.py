"""What detectors learned outlives a restart in files; a damaged file costs what it held and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainstay.detectors.host.host_anomaly import HostAnomalyDetector
from mainstay.detectors.host.memory_leak import MemoryDetector
from mainstay.service.history.archive import Archive
from mainstay.service.incidents.detector_memory import SAVE_SECONDS, DetectorMemory
from tests.detectors.host.test_host_anomaly import hosts

NOW = 1_800_000_000.0


def memory_in(folder: Path) -> DetectorMemory:
    history: Any = SimpleNamespace(archive=Archive(str(folder)))
    return DetectorMemory(history)


def saved(folder: Path) -> Path:
    """The file of a detector that learned for five hours."""
    detector, memory = HostAnomalyDetector(), memory_in(folder)
    detector.update(hosts(0, hours=5))
    for now in (NOW, NOW + SAVE_SECONDS - 1.0):
        memory.save([detector, MemoryDetector()], now)
        memory.wait()
        assert not (folder / "detectors").exists(), "it is not time yet"
    memory.save([detector, MemoryDetector()], NOW + SAVE_SECONDS)
    memory.wait()
    (file,) = (folder / "detectors").iterdir()
    return file


def test_a_fresh_detector_continues_from_the_file(tmp_path: Path) -> None:
    file = saved(tmp_path)
    fresh = HostAnomalyDetector()
    memory_in(tmp_path).restore([fresh, MemoryDetector()])
    fresh.update(hosts(0, hours=6).part(300, 301))
    assert (file.name, fresh.status().numbers["learned"]) == ("host_anomaly.npz", 8.0)


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "none"])
def test_without_a_readable_file_it_learns_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    file = saved(tmp_path)
    whole = file.read_bytes()
    if damage == "none":
        file.unlink()
    else:
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
        file.write_bytes({"cut": whole[:middle], "empty": b"", "flipped": flipped}[damage])
    fresh = HostAnomalyDetector()
    memory_in(tmp_path).restore([fresh])
    fresh.update(hosts(0, hours=1))
    assert fresh.status().numbers["learned"] == 0.0
    assert ("cannot be read" in caplog.text) is (damage != "none")


def test_a_folder_that_cannot_be_written_is_told_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "detectors").write_text("a file, where the folder should be")
    memory, detector = memory_in(tmp_path), HostAnomalyDetector()
    detector.update(hosts(0, hours=1))
    for now in (NOW, NOW + SAVE_SECONDS):
        memory.save([detector], now)
    memory.wait()
    assert "cannot be written" in caplog.text
