"""Data-parallel replicas divide the writing of what they hold alike (FastPersist, arXiv 2406.13768, "parallel writes").

Parameters and optimizer tensors, one after the other, are one run of bytes. It is cut where the rows (the first
dimension) of a tensor end, so that each piece is a box that ``torch.distributed.checkpoint`` can name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.shard import SHARED


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor: all of it where it has no rows."""

    first: int
    count: int


def share(layout: Layout, index: int, count: int) -> dict[str, Rows]:
    """What replica ``index`` of ``count`` writes of the tensors of ``layout`` that replicas hold alike.

    Shares of all replicas cover each tensor once, and differ by a row or so.

    Raises:
        ValueError: no such replica.
    """
    if not 0 <= index < count:
        raise ValueError(f"replica {index} of {count}")
    total = sum(spec.nbytes for spec in _shared(layout))
    start, stop = total * index // count, total * (index + 1) // count
    found, at = {}, 0
    for spec in _shared(layout):
        first, last = _row(spec, start - at), _row(spec, stop - at)
        if not spec.nbytes:
            first, last = 0, int(index == 0)
        if last > first:
            found[spec.name] = Rows(first, last - first)
        at += spec.nbytes
    return found


def rows_of(spec: TensorSpec) -> int:
    """Into how many pieces a tensor can be cut: its rows, or one."""
    return spec.shape[0] if spec.shape and spec.nbytes else 1


def _row(spec: TensorSpec, at: int) -> int:
    """The row where byte ``at`` of the tensor cuts."""
    rows = rows_of(spec)
    return min(max(round(at * rows / max(1, spec.nbytes)), 0), rows)


def _shared(layout: Layout) -> Iterator[TensorSpec]:
    return (spec for spec in layout.tensors if spec.name.startswith(SHARED))
