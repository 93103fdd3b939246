"""A node whose devices are slow together: one statement about the node, with its own limit, instead of one a device.

Devices of a node share cooling, power, host, and placement. On Longhorn slow GPUs are not scattered: whole nodes are 2
to 4 % slow. One node in thirty is so, which no limit for devices can allow for at a budget of one in two hundred. So a
device that is not slower than its siblings fails only from ``NODE_FAIL`` on, the least slowdown by which robust limits
fail anything; below, it is a warning about the node. A device that stands out from its siblings fails as ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from mainstay.detectors.validation.criterion_limits import FAIL_SLACK, WARN_SLACK
from mainstay.detectors.validation.verdict import MetricVerdict
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict

NODE_FAIL = math.log1p(FAIL_SLACK)
"""Chosen on Longhorn's SGEMM; what that gives on BERT, PageRank, and ResNet says ``bench.validator``."""
ALIKE = math.log1p(WARN_SLACK)
"""Beyond its siblings' median by this a device stands out: below it, temperature and placement move a healthy one."""


def relax_whole_node(verdicts: Sequence[MetricVerdict]) -> list[MetricVerdict]:
    """The verdicts of one node; failures of devices that are slow together become a warning about the node.

    A device's own value can only make its own verdict worse. Fingerprints, and failures by the distribution of the
    repetitions alone, stay as they are.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, one in enumerate(verdicts):
        if _slowness(one) is not None:
            groups[one.benchmark, one.metric].append(i)
    found = list(verdicts)
    for places in groups.values():
        slow = np.array([_slowness(verdicts[i]) for i in places])
        for k, i in enumerate(places if len(places) > 1 else ()):
            others = float(np.median(np.delete(slow, k)))
            if _beyond(verdicts[i]) and slow[k] < NODE_FAIL and slow[k] - others < ALIKE:
                found[i] = msgspec.structs.replace(verdicts[i], verdict=Verdict.WARN, reason=_reason(slow))
    return found


def _slowness(one: MetricVerdict) -> float | None:
    """How much worse than typical, a logarithm; None where that has no meaning."""
    kept = one.criterion
    if kept is None or kept.better is Better.EQUAL or not kept.center or not one.value or one.value <= 0:
        return None
    return math.log(one.value / kept.center) * (1.0 if kept.better is Better.LOWER else -1.0)


def _beyond(one: MetricVerdict) -> bool:
    """Whether the median failed, and not only the distribution of the repetitions."""
    kept = one.criterion
    if one.verdict is not Verdict.FAIL or kept is None or one.value is None:
        return False
    if kept.better is Better.HIGHER:
        return kept.low is not None and one.value < kept.low
    return kept.high is not None and one.value > kept.high


def _reason(slow: np.ndarray) -> str:
    middle = math.expm1(float(np.median(slow)))
    return (
        f"{len(slow)} devices of the node are slow together, by {middle:.1%} in the middle: cooling, power, or host; "
        f"a node fails from {FAIL_SLACK:.0%}"
    )
