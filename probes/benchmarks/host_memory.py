"""The host's own memory bandwidth, on machines whose ``memory`` benchmark measures the GPUs'."""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec

from probes.benchmarks.base import Clock, Device, Kind, Readings, Tier
from probes.benchmarks.defects import Defect
from probes.benchmarks.memory import Memory


class HostMemory(Memory):
    """STREAM on the processor, over every core that this process may use, whatever else the machine has."""

    name: ClassVar[str] = "host_memory"
    catches: ClassVar[str] = "a missing, slow or wrongly placed DIMM, and a processor held back while it feeds GPUs"
    defects: ClassVar[tuple[Defect, ...]] = (Defect.HOST_MEMORY, Defect.HOST_CPU)
    tier: ClassVar[Tier] = Tier.STANDARD
    each_device: ClassVar[bool] = False
    together: ClassVar[bool] = False

    @classmethod
    def sized(cls, kind: Kind) -> Self:
        del kind
        return cls(cls.Config())

    def where(self, device: Device) -> str:
        del device
        return "host"

    def measure(self, device: Device, clock: Clock) -> Readings:
        return super().measure(msgspec.structs.replace(device, kind="cpu", index=None), clock)
