"""Sequential write with fsync, read back from the device, and the latency of a small fsync."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device, Effort, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import Better, Metric

_BLOCK = 1 << 20
_REPEATS = {SuiteTier.QUICK: 3, SuiteTier.STANDARD: 10, SuiteTier.DEEP: 40}
_MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


class Disk(Benchmark):
    """Where snapshots and data sets live. The bytes are random: a file system that compresses gains nothing.

    A write counts when fsync has returned. A read counts only if the kernel confirms, page by page, that it no longer
    held the file in memory; if the kernel keeps it, the read has no value rather than memory's speed. Caches
    below the operating system (a controller's, a hypervisor's) are part of what is measured.
    """

    name: ClassVar[str] = "disk"
    catches: ClassVar[str] = "a worn, throttled or degraded drive that would stall checkpoints or data loading"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.STORAGE,)
    each_device: ClassVar[bool] = False
    place: ClassVar[str] = "host"

    @dataclass(frozen=True, kw_only=True)
    class Config(Benchmark.Config):
        directory: str = ""
        """Where to write; empty: the directory for temporary files."""
        mebibytes: int = 128
        repeats: int = 3
        fsyncs: int = 20

    config: Config

    def tuned(self, effort: Effort) -> Self:
        repeats = _REPEATS[effort.tier]
        changed = replace(self.config, repeats=repeats, fsyncs=10 * repeats, directory=effort.directory)
        return type(self)(changed)

    def expected_seconds(self, device: Device) -> float:
        """At 500 MB/s both ways and 5 ms an fsync: a slow drive of today."""
        del device
        return self.config.repeats * 2 * self._size / 500e6 + self.config.fsyncs * 0.005

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        del device
        size = f"{self.config.mebibytes}MiB"
        return (
            Metric(name=f"write_{size}", unit="B/s", better=Better.HIGHER),
            Metric(name=f"read_{size}", unit="B/s", better=Better.HIGHER),
            Metric(name="fsync_4KiB", unit="s", better=Better.LOWER),
        )

    def supported(self, device: Device) -> tuple[bool, str]:
        del device
        folder = self._folder()
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            return False, f"{folder} is not a directory that this user may write to"
        if (kind := _filesystem(folder)) in _MEMORY_FILESYSTEMS:
            return False, f"{folder} is {kind}, memory and not a disk: name a directory on a disk"
        needed = 4 * self.config.mebibytes << 20
        if shutil.disk_usage(folder).free < needed:
            return False, f"{folder} has less than {needed >> 20} MiB free"
        return True, ""

    def _folder(self) -> Path:
        return Path(self.config.directory or tempfile.gettempdir())

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        write, read, sync = (metric.name for metric in self.metrics(device))
        readings = BenchmarkReadings(values={write: [], read: [], sync: []})
        block = os.urandom(_BLOCK)
        with _scratch(self._folder()) as file:
            for _ in range(self.config.repeats):
                readings.values[write].append(self._size / _write(file, self._size, block, clock))
                if not _forgotten(file, self._size):
                    readings.problems[read] = "the page cache kept the file: the read would time memory"
                    continue
                readings.values[read].append(self._size / _read(file, self._size, block, clock))
            readings.values[sync] = [_sync(file, block[:4096], clock) for _ in range(self.config.fsyncs)]
        return readings

    @property
    def _size(self) -> int:
        return self.config.mebibytes << 20


def _filesystem(folder: Path) -> str:
    """Type of the file system that holds ``folder``: the longest mount point that is its parent."""
    path, best, kind = folder.resolve(), 0, "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), name
    return kind


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[int]:
    """A file without a name: however this process ends, the space comes back."""
    with tempfile.TemporaryFile(dir=folder, prefix="mainstay-disk-", buffering=0) as file:
        yield file.fileno()


def _write(file: int, size: int, block: bytes, clock: Clock) -> float:
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    begun = clock()
    for _ in range(size // len(block)):
        if os.write(file, block) != len(block):
            raise OSError("the file system took only part of a block")
    os.fsync(file)
    return clock() - begun


def _forgotten(file: int, size: int) -> bool:
    """Ask the kernel to drop the file's pages, then ask 64 times whether it did."""
    os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file, 0, size, os.POSIX_FADV_RANDOM)  # or asking would itself read ahead
    probe = bytearray(1)
    try:
        return not any(_resident(file, probe, offset) for offset in range(0, size, max(4096, size // 64)))
    finally:
        os.posix_fadvise(file, 0, size, os.POSIX_FADV_SEQUENTIAL)


def _resident(file: int, probe: bytearray, offset: int) -> bool:
    """Whether a read at ``offset`` would be answered from memory."""
    try:
        return os.preadv(file, [probe], offset, os.RWF_NOWAIT) > 0
    except BlockingIOError:
        return False
    except OSError:  # a file system without the flag: cannot tell, so do not claim
        return True


def _read(file: int, size: int, block: bytes, clock: Clock) -> float:
    os.lseek(file, 0, os.SEEK_SET)
    buffer = bytearray(_BLOCK)
    begun = clock()
    for _ in range(size // _BLOCK):
        if os.readv(file, [buffer]) != _BLOCK:
            raise OSError("the file ended early")
    seconds = clock() - begun
    if buffer != block:
        raise OSError("the last block came back with other bytes than were written")
    return seconds


def _sync(file: int, page: bytes, clock: Clock) -> float:
    begun = clock()
    os.pwrite(file, page, 0)
    os.fsync(file)
    return clock() - begun
