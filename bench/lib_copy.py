"""A whole slot copied in one go."""

from __future__ import annotations

from collections.abc import Mapping

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.slot_copy import CopyPlan, Piece, SlotCopier


def copy_pieces(layout: Layout, pieces: Mapping[str, Piece], out: Bytes, copy: SlotCopier | None = None) -> None:
    """Copy every tensor of ``layout`` to its place in ``out`` (uint8 [slot bytes]).

    Args:
        layout: of ``out``.
        pieces: by the names of ``layout``.
        out: written at every tensor's place.
        copy: with its threads; by default one of its own, on the calling thread.

    Raises:
        ValueError: a piece is missing or has another size than its place; names it.
    """
    (copy or SlotCopier()).carry_out(CopyPlan(layout, out).work(pieces))
