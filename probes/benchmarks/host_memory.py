"""The host's own memory bandwidth, on machines whose ``memory`` benchmark measures the GPUs'."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mainstay.probes.benchmarks.base import BenchmarkReadings, Clock, Device, Sizes, SuiteTier
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.memory import Memory


class HostMemory(Memory):
    """STREAM on the processor, over every core that this process may use, with or without GPUs."""

    name: ClassVar[str] = "host_memory"
    catches: ClassVar[str] = "a missing, slow or wrongly placed DIMM, and a processor held back while it feeds GPUs"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_MEMORY, Defect.HOST_CPU)
    tier: ClassVar[SuiteTier] = SuiteTier.STANDARD
    each_device: ClassVar[bool] = False
    place: ClassVar[str] = "host"
    together: ClassVar[bool] = False
    gpu_sizes: ClassVar[Sizes] = {}

    def measure(self, device: Device, clock: Clock) -> BenchmarkReadings:
        return super().measure(msgspec.structs.replace(device, kind="cpu", index=None), clock)
