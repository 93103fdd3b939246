"""What the admission check asks of every node, as arrays: asking 1,024 objects one by one took most of its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import HealthState, Verdict

if TYPE_CHECKING:
    from mainstay.service.fleet.directory import FleetNode

_COLUMN: Final = np.dtype(
    [("fit", "?"), ("power", "i4"), ("gpus", "i4"), ("validated_at", "f8"), ("last_seen_at", "f8")]
)


class FleetColumns:
    """One row a node, in the order of their names. Never changed: a change makes another.

    Args:
        nodes: all of them.
        before: of an earlier fleet. Nodes that have not changed since are not read again.
    """

    nodes: list[FleetNode]
    names: tuple[str, ...]
    rows: dict[str, int]
    """Node → its row."""
    values: NDArray[np.void]
    """[node] ``fit``: healthy, passed its last validation, and not stopped. Times are Unix seconds, 0 for never."""

    def __init__(self, nodes: Iterable[FleetNode], before: FleetColumns | None = None) -> None:
        self.nodes = list(nodes)
        if before is not None and len(before.nodes) == len(self.nodes):  # no node is ever removed
            self.names, self.rows = before.names, before.rows
            self.values = before.values.copy()
            pairs = enumerate(zip(before.nodes, self.nodes, strict=True))
            changed = [row for row, (old, new) in pairs if old is not new]
            if changed:
                self.values[changed] = np.array([_row(self.nodes[row]) for row in changed], _COLUMN)
            return
        self.names = tuple(node.name for node in self.nodes)
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.values = np.array([_row(node) for node in self.nodes], _COLUMN)


def _row(node: FleetNode) -> tuple[bool, int, int, float, float]:
    validated = node.validated_at is not None
    fit = node.state == HealthState.HEALTHY.value and node.verdict == Verdict.PASS.value and validated
    return (
        fit and node.stopped_at is None, node.power or 0, node.gpus, node.validated_at or 0.0, node.last_seen_at or 0.0
    )  # fmt: skip
