"""Which ranks a job's slowdown comes from, in words: all alike, some of them, or none that computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import median
from mainstay.detectors.finding import Entity, join_names


def describe_share(entities: Sequence[Entity], rise: Floats, of_job: float) -> str:
    """The end of a sentence; empty where the own compute of fewer than half of the ranks is known.

    Args:
        entities: [R] ranks.
        rise: [R] logarithm of the rise of each rank's own compute; NaN where it is not known.
        of_job: logarithm of the rise of the job's steps. A rank that rose by half of it takes part.
    """
    known = np.isfinite(rise)
    if np.count_nonzero(known) * 2 < len(entities) or not known.any():
        return ""
    slow = np.flatnonzero(np.where(known, rise, -np.inf) >= of_job / 2)
    if not len(slow):
        return "; no rank computes longer: they wait, for the network, for data, or for storage"
    by = f"{np.expm1(float(median(rise[slow]))):.0%}"
    if len(slow) == np.count_nonzero(known):
        return "; all ranks alike"
    if 2 * len(slow) >= np.count_nonzero(known):
        return f"; {len(slow)} of {np.count_nonzero(known)} ranks compute {by} longer"
    ranks = sorted((entities[row].rank or 0, entities[row].node or "") for row in slow.tolist())
    nodes = sorted({node for _, node in ranks if node})
    verb, where = "s" if len(slow) == 1 else "", f" on {join_names(nodes)}" if nodes else ""
    names = join_names([rank for rank, _ in ranks], 8)
    return f": rank{'' if verb else 's'} {names}{where} compute{verb} {by} longer, the others do not"
