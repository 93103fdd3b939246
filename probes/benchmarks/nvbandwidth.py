"""NVIDIA's ``nvbandwidth``: copies by the copy engines, host to GPU, back, and between GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.external_tool import ExternalToolBenchmark
from mainstay.probes.benchmarks.result import Better, Metric

_HOST = {"h2d": "host_to_device_memcpy_ce", "d2h": "device_to_host_memcpy_ce"}
_DEVICE = {"d2d": "device_to_device_memcpy_read_ce"}
_GIGA = 1e9
Matrix = Mapping[tuple[int, int], float]
"""(row, column) → the figure in the unit of its head; cells that are N/A are absent."""


class NvBandwidth(ExternalToolBenchmark):
    """Of every GPU its copies from and to the host, and (``d2d``) its slowest copy with any other GPU."""

    name: ClassVar[str] = "nvbandwidth"
    catches: ClassVar[str] = "a narrow PCIe link, or a bad NVLink between two GPUs, by NVIDIA's program"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_LINK, Defect.GPU_LINK)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    programs: ClassVar[tuple[str, ...]] = ("nvbandwidth",)
    run_seconds: ClassVar[float] = 40.0

    def metrics(self, device: Device) -> tuple[Metric, ...]:
        return tuple(
            Metric(name=f"{short}_gpu{gpu}", unit="B/s", better=Better.HIGHER)
            for short in self._cases(device)
            for gpu in range(device.count)
        )

    def _cases(self, device: Device) -> dict[str, str]:
        return _HOST | _DEVICE if device.count > 1 else _HOST

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        del clock
        readings = BenchmarkReadings()
        for _ in range(max(1, self.config.repeats)):
            cases = self._cases(device)
            found = read(self.output("nvbandwidth", "-t", *cases.values()))
            for short, case in cases.items():
                for gpu, slowest in _slowest(found.get(case, {}), by_row=short in _DEVICE).items():
                    if gpu < device.count:
                        readings.values.setdefault(f"{short}_gpu{gpu}", []).append(slowest * _GIGA)
        return readings


def _slowest(matrix: Matrix, *, by_row: bool) -> dict[int, float]:
    """GPU → the least of its cells; the GPU is the column, or the row where both are GPUs."""
    least: dict[int, float] = {}
    for (row, column), figure in matrix.items():
        gpu = row if by_row else column
        least[gpu] = min(figure, least.get(gpu, math.inf))
    return least


def read(text: str) -> Mapping[str, Matrix]:
    """Test case → its matrix; one that was waived (no such path here) is absent.

    Raises:
        ValueError: the program found wrong bytes or another error, or printed no matrix.
    """
    if wrong := re.search(r"^.*\b(?:ERROR|Invalid value)\b.*$", text, re.MULTILINE):
        raise ValueError(f"nvbandwidth: {wrong.group(0).strip()[:200]}")
    found: dict[str, dict[tuple[int, int], float]] = {}
    case, columns = "", list[int]()
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["Running"] and len(words) == 2:
            case, columns = words[1].rstrip("."), []
        elif not words or not case:
            continue
        elif words[0] == "SUM":
            case = ""
        elif not columns and all(word.isdecimal() for word in words):
            columns = [int(word) for word in words]
        elif columns and words[0].isdecimal():
            found.setdefault(case, {}).update(_row(words, columns))
    if not found:
        raise ValueError("nvbandwidth printed no matrix")
    return found


def _row(words: list[str], columns: list[int]) -> dict[tuple[int, int], float]:
    cells = zip(columns, words[1:], strict=False)
    return {(int(words[0]), column): float(word) for column, word in cells if word != "N/A"}
