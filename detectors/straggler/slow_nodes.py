"""When a node is named instead of its ranks: what most of them have in common is the node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools
from mainstay.detectors.finding import Entity

Rows = npt.NDArray[np.intp]


def common_nodes(hit: Bools, entities: Sequence[Entity], nodes: Rows, named: Collection[str]) -> dict[str, Rows]:
    """Nodes of which at least half of the ranks, and two, are hit; of those named already, any rank: node → rows [n].

    Args:
        hit: [R]
        entities: [R] ranks.
        nodes: [R] number of each rank's node.
        named: nodes that a finding is about already.
    """
    found = {}
    for number in np.unique(nodes[hit]):
        rows = np.flatnonzero(nodes == number)
        node, count = entities[rows[0]].node, np.count_nonzero(hit[rows])
        if node is not None and (node in named or (count >= 2 and 2 * count >= len(rows))):
            found[node] = rows
    return found
