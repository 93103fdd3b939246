"""Failures by component and by batch: which part of a node failed, and GPUs of which model and VBIOS. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.reports.reliability import HOUR, Between, Failure, between


class Component(StrEnum):
    """What failed."""

    GPU = "gpu"
    GPU_LINK = "gpu_link"  # NVLink, NVSwitch, PCIe
    NETWORK = "network"  # NIC, cable, or switch
    HOST = "host"  # CPU, memory, power, kernel
    STORAGE = "storage"
    OTHER = "other"  # no component of a node: software, maintenance, an operator
    UNKNOWN = "unknown"


_C, _K = Cause, FindingKind
_OF_CAUSE: Final[Mapping[str, Component]] = {
    **dict.fromkeys((_C.FAULTY_GPU, _C.GPU_MEMORY, _C.GPU_SRAM, _C.GPU_SYSTEM_PROCESSOR), Component.GPU),
    **dict.fromkeys((_C.GPU_THERMAL, _C.SILENT_CORRUPTION), Component.GPU),
    _C.GPU_LINK: Component.GPU_LINK,
    **dict.fromkeys((_C.NIC, _C.NETWORK), Component.NETWORK),
    _C.HOST: Component.HOST,
    _C.STORAGE: Component.STORAGE,
    **dict.fromkeys((_C.SOFTWARE, _C.DEPENDENCY, _C.MAINTENANCE, _C.OPERATOR, _C.WORKLOAD), Component.OTHER),
}
_OF_KIND: Final[Mapping[str, Component]] = {
    **dict.fromkeys((_K.GPU_LOST, _K.ROW_REMAP, _K.THERMAL_THROTTLE, _K.GPU_RECOVERY_ACTION), Component.GPU),
    **dict.fromkeys((_K.NVLINK_ERRORS, _K.PCIE_DEGRADED, _K.FABRIC_DOWN), Component.GPU_LINK),
    _K.NIC_DEGRADED: Component.NETWORK,
    **dict.fromkeys((_K.KERNEL_FAULT, _K.OUT_OF_MEMORY, _K.CLOCK_SKEW, _K.MEMORY_BIT_FLIPS), Component.HOST),
    _K.DISK_FULL: Component.STORAGE,
}
"""Kinds that have one component for every cause. An XID is not one: some come from software."""


def component_of(cause: str | None, kinds: Iterable[str]) -> Component:
    """Component of an incident: by its cause, else by the kinds of its findings where these agree."""
    if cause is not None:
        return _OF_CAUSE.get(cause, Component.UNKNOWN)
    found = {_OF_KIND[kind] for kind in kinds if kind in _OF_KIND}
    return found.pop() if len(found) == 1 else Component.UNKNOWN


Batch = tuple[str, str | None]
"""GPUs that were probably made alike: model, and VBIOS version or None where it is not reported."""


def between_of_batches(
    nodes: Mapping[str, FleetNode], in_service: Mapping[str, float], failures: Sequence[Failure]
) -> tuple[dict[Batch, tuple[int, Between]], int]:
    """Batch → its number of GPUs and the time between their failures; and the number of GPU failures in no batch.

    A failure that names no GPU counts for the batch of its node where that has one only.

    Args:
        nodes: the fleet, with the devices that are there now.
        in_service: node → seconds in service.
        failures: all of the period.
    """
    gpus, seconds, failed, rest = Counter[Batch](), defaultdict[Batch, float](float), Counter[Batch](), 0
    for name, node in nodes.items():
        served = in_service.get(name, 0.0)
        for _, found in _gpus(node):
            gpus[found] += 1
            seconds[found] += served
    for failure in failures:
        if failure.component == Component.GPU:
            there = dict(_gpus(nodes.get(failure.node or "")))
            batch = there.get(failure.device or "") or _only(there.values())
            failed.update([batch] if batch else [])
            rest += batch is None
    return {
        batch: (gpus[batch], between(seconds[batch] / HOUR, failed[batch])) for batch in sorted(gpus, key=str)
    }, rest


def _gpus(node: FleetNode | None) -> Iterator[tuple[str, Batch]]:
    for device in node.all_devices if node is not None else ():
        if device.kind == "gpu" and device.present:
            yield device.id, (device.model, device.facts.get("vbios"))


def _only(batches: Collection[Batch]) -> Batch | None:
    return next(iter(batches)) if len(set(batches)) == 1 else None
