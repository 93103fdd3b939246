"""The default cause of each kind of finding, and the ranking of an incident's findings by likely root cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mainstay.detectors.correlation import finding_relations
from mainstay.detectors.finding import Cause, Finding, FindingKind
from mainstay.probes.core_types import Severity

USUAL: Final[Mapping[FindingKind, Cause]] = {
    FindingKind.GPU_LOST: Cause.FAULTY_GPU,
    FindingKind.ECC_UNCORRECTABLE: Cause.GPU_MEMORY,
    FindingKind.ECC_CORRECTED: Cause.GPU_MEMORY,
    FindingKind.ROW_REMAP: Cause.GPU_MEMORY,
    FindingKind.GPU_RECOVERY_ACTION: Cause.FAULTY_GPU,
    FindingKind.THERMAL_THROTTLE: Cause.GPU_THERMAL,
    FindingKind.POWER_BRAKE: Cause.HOST,
    FindingKind.PCIE_DEGRADED: Cause.GPU_LINK,
    FindingKind.NVLINK_ERRORS: Cause.GPU_LINK,
    FindingKind.FABRIC_DOWN: Cause.GPU_LINK,
    FindingKind.NIC_DEGRADED: Cause.NIC,
    FindingKind.CONGESTION: Cause.NETWORK,
    FindingKind.DISK_FULL: Cause.STORAGE,
    FindingKind.CLOCK_SKEW: Cause.HOST,
    FindingKind.KERNEL_FAULT: Cause.HOST,
    FindingKind.MEMORY_BIT_FLIPS: Cause.HOST,
    FindingKind.OUT_OF_MEMORY: Cause.SOFTWARE,
    FindingKind.MEMORY_LEAK: Cause.SOFTWARE,
}


def rank_causes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Active findings, likeliest root cause first: by depth of kind, then severity, time, confidence and key."""
    return tuple(
        sorted(
            (f for f in findings if f.active),
            key=lambda f: (
                _depth(f),
                f.severity is not Severity.CRITICAL,
                f.time,
                _rank(f),
                -f.confidence,
                finding_order(f),
            ),
        )
    )


def _depth(finding: Finding) -> int:
    if finding.kind in finding_relations.DECISIVE and finding.severity is Severity.CRITICAL:
        return 0
    return _rank(finding)


def _rank(finding: Finding) -> int:
    """Depth of its kind; an exit that only reports a missing peer ranks behind the reason that the peer is missing."""
    if finding.kind is FindingKind.PROCESS_EXIT and finding.cause is Cause.COLLECTIVE_TIMEOUT:
        return finding_relations.RANK[FindingKind.NONCOMM_HANG] + 1
    return finding_relations.RANK.get(finding.kind, len(finding_relations.DEPTH))


def finding_order(finding: Finding) -> tuple[float, str, bool, str, float, str]:
    """Total, so that two statements that differ at all never depend on the order in which they came."""
    said = (finding.severity.value, finding.confidence, finding.evidence.summary)
    return (finding.time, finding.key, not finding.active, *said)
