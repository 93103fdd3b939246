"""A validation that failed, as one finding: what is broken, where, and by how much.

Invariant: one finding a node, for any number of failed metrics and devices; it names the device only where all
that failed is on one. GPUs that are slow together have a chassis, a host or a power supply in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.validation.criterion_learning import FALSE_ALARMS
from mainstay.detectors.validation.defect_attribution import describe_defects
from mainstay.detectors.validation.verdict import MetricVerdict, RunVerdict
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.core_types import RecommendedAction, Severity, Verdict

NAME: Final = "validator"
SHOWN: Final = 3
"""Metrics in the sentence; the others are counted."""

CAUSES: Final = {
    Defect.COMPUTE: Cause.FAULTY_GPU,
    Defect.THERMAL: Cause.GPU_THERMAL,
    Defect.GPU_MEMORY: Cause.GPU_MEMORY,
    Defect.NUMERICS: Cause.SILENT_CORRUPTION,
    Defect.HOST_LINK: Cause.GPU_LINK,
    Defect.GPU_LINK: Cause.GPU_LINK,
    Defect.FABRIC: Cause.NIC,
    Defect.NETWORK: Cause.NETWORK,
    Defect.HOST_CPU: Cause.HOST,
    Defect.HOST_MEMORY: Cause.HOST,
    Defect.STORAGE: Cause.STORAGE,
    Defect.SOFTWARE: Cause.DEPENDENCY,
}
"""What a class of defect is in the words of an incident."""


def has_wrong_bits(judged: RunVerdict) -> tuple[str, ...]:
    """Benchmarks whose fingerprints or counts of bits are not right; they have no unit, and no noise moves them."""
    return tuple(sorted({v.benchmark for v in judged.verdicts if v.verdict is Verdict.FAIL and v.unit == ""}))


def finding_of_validation(
    node: str, suite: str, judged: RunVerdict, *, time: float, sound_at: float | None = None, shown: bool = False
) -> Finding | None:
    """The finding of a validation; None where nothing failed: an unmeasured metric blames no device.

    Args:
        node: that was validated.
        suite: by name.
        judged: its verdict.
        time: Unix seconds, when it ended.
        sound_at: Unix seconds since when its bits may be wrong; None: not asked.
        shown: an earlier run showed right bits then; else that is when it was first heard of.
    """
    failed = [verdict for verdict in judged.verdicts if verdict.verdict is Verdict.FAIL]
    if not failed:
        return None
    devices = sorted({verdict.device for verdict in failed if verdict.device})
    cause = CAUSES[judged.points_to[0]] if judged.points_to else None
    if len(devices) > 1 and cause is Cause.FAULTY_GPU:
        cause = Cause.HOST
    wrong = bool(has_wrong_bits(judged))
    numbers = {"failed": float(len(failed)), "metrics": float(len(judged.verdicts)), "devices": float(len(devices))}
    if (worst := _worst(failed)) is not None:
        numbers["slowdown"] = worst
    summary = _words(suite, failed, judged, devices)
    if wrong and sound_at is not None:
        numbers["since"] = sound_at
        summary += f" {_since(time - sound_at, shown=shown)}"
    return Finding(
        kind=FindingKind.VALIDATION_FAILED,
        entity=Entity(node=node),
        time=time,
        severity=Severity.CRITICAL if wrong else Severity.WARNING,
        detector=NAME,
        confidence=1.0 - FALSE_ALARMS,
        evidence=Evidence(summary=summary, numbers=numbers),
        recommended_action=RecommendedAction.INSPECT_NODE if wrong else RecommendedAction.MONITOR,
        cause=cause,
    )


def _since(seconds: float, *, shown: bool) -> str:
    age = f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"
    return (
        f"Its bits were last seen right {age} before." if shown else "No earlier run showed that its bits were right."
    )


def _worst(failed: Sequence[MetricVerdict]) -> float | None:
    """How much slower than typical the worst metric is, as a share."""
    gaps = []
    for verdict in failed:
        typical = None if verdict.criterion is None else verdict.criterion.center
        if typical and verdict.value and verdict.unit:
            ratio = typical / verdict.value
            gaps.append(max(ratio, 1.0 / ratio) - 1.0)
    return max(gaps, default=None)


def _words(suite: str, failed: Sequence[MetricVerdict], judged: RunVerdict, devices: Sequence[str]) -> str:
    where = f" on {devices[0]}" if len(devices) == 1 else f" on {len(devices)} devices" if devices else ""
    told = "; ".join(f"{v.benchmark} {v.metric}: {v.reason}" for v in failed[:SHOWN])
    more = f" (and {len(failed) - SHOWN} more)" if len(failed) > SHOWN else ""
    points = describe_defects(judged.points_to)
    tail = f"; {points}" if points else ""
    return f"Validation {suite} failed in {len(failed)} of {len(judged.verdicts)} metrics{where}: {told}{more}{tail}."
