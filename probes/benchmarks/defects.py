"""Classes of defect: what a benchmark can find, a verdict can blame, and coverage is learned for.

One word says where the fault sits, not how it was seen: a slow all-reduce is ``fabric`` when the ports between nodes
are slow and ``gpu_link`` when it never left the node. The classes follow the parts that are exchanged in a repair.
"""

from __future__ import annotations

from enum import StrEnum


class Defect(StrEnum):
    COMPUTE = "compute"  # SMs, tensor cores, clocks: arithmetic below its peers
    THERMAL = "thermal"  # power or cooling: right at first, slow once warm
    GPU_MEMORY = "gpu_memory"  # HBM bandwidth, remapped rows
    NUMERICS = "numerics"  # wrong bits: silent data corruption
    HOST_LINK = "host_link"  # PCIe width or generation, NUMA placement
    GPU_LINK = "gpu_link"  # NVLink, NVSwitch, peer-to-peer
    FABRIC = "fabric"  # NIC, InfiniBand or RoCE port, cable, switch
    NETWORK = "network"  # the management or TCP network
    HOST_CPU = "host_cpu"  # cores, frequency, launch latency
    HOST_MEMORY = "host_memory"  # DIMMs, NUMA nodes
    STORAGE = "storage"  # local disk
    SOFTWARE = "software"  # driver, library or tool missing, hung or broken
