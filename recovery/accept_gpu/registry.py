"""Every acceptance check by name, in the order in which they run. Importing this module imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstay.recovery.accept_gpu.contract import AcceptanceCheck
from mainstay.recovery.accept_gpu.nvml import NvmlCheck
from mainstay.recovery.accept_gpu.recoveries import HangRecoveryCheck, KillRecoveryCheck
from mainstay.recovery.accept_gpu.snapshot import SnapshotCheck
from mainstay.recovery.accept_gpu.throughput import ThroughputCheck

CHECKS: Final[Mapping[str, type[AcceptanceCheck]]] = {
    check.name: check for check in (NvmlCheck, SnapshotCheck, KillRecoveryCheck, HangRecoveryCheck, ThroughputCheck)
}
