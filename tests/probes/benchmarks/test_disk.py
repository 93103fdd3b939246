"""Disk: memory is never sold as a disk, neither the file system's nor the page cache's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstay.probes.benchmarks import disk
from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.disk import Disk
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState


def tiny(directory: str = str(Path(__file__).parent)) -> Disk:
    """Beside this file: a checkout lies on a disk; the temporary directory may lie in memory."""
    return Disk(Disk.Config(directory=directory, mebibytes=2, repeats=2, fsyncs=3))


def test_a_memory_file_system_is_not_a_disk(cpu: Device, ticking: Clock) -> None:
    result = tiny("/dev/shm").run(cpu, ticking)
    assert result.state is BenchmarkState.UNSUPPORTED
    assert result.error == "/dev/shm is tmpfs, memory and not a disk: name a directory on a disk"


def test_a_directory_that_is_not_there(cpu: Device, tmp_path: Path) -> None:
    able, reason = tiny(str(tmp_path / "none")).supported(cpu)
    assert not able
    assert "none is not a directory" in reason


def test_a_full_disk(cpu: Device) -> None:
    able, reason = Disk(Disk.Config(directory=str(Path(__file__).parent), mebibytes=1 << 40)).supported(cpu)
    assert not able
    assert "MiB free" in reason


def test_pages_still_in_memory_are_recognized() -> None:
    with tempfile.TemporaryFile(dir=Path(__file__).parent) as file:
        file.write(os.urandom(1 << 16))
        file.flush()
        assert disk._resident(file.fileno(), bytearray(1), 0)


def test_a_cached_read_has_a_reason_instead_of_a_value(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock
) -> None:
    monkeypatch.setattr(disk, "_forgotten", lambda *_: False)
    result = tiny().run(cpu, ticking)
    values = {metric.name: metric.values for metric in result.metrics}
    assert values["read_2MiB"] == ()
    assert values["write_2MiB"] == (float(2 << 20),) * 2
    assert result.error is not None
    assert "page cache" in result.error


def test_nothing_is_left_behind(run: Callable[..., BenchmarkResult], tmp_path: Path) -> None:
    run(tiny(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []
