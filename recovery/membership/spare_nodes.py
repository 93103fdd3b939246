"""Nodes that come and go while a job with ``--nnodes MIN:MAX`` runs: what becomes of those that others replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstay.recovery.membership.members import Members

FORGET: Final = 5.0
"""Times ``--node-timeout``: a launcher that finds no coordinator has given up after three, and a question takes 2 s."""


def surplus_nodes(members: Members, heard_at: Mapping[str, float], heard_before: float) -> list[str]:
    """Lost nodes beyond the largest number of nodes, which may be forgotten: those that are silent for longest.

    A lost node counts as one that may follow another coordinator, until a node has come in its place.
    """
    surplus = len(members.nodes) - members.nnodes - members.spare_nodes
    if surplus <= 0:
        return []
    needed = {rank.node for rank in members.ranks}
    lost = [name for name, node in members.nodes.items() if not node.alive and name not in needed]
    silent = [name for name in lost if heard_at[name] < heard_before]
    return sorted(silent, key=lambda name: heard_at[name])[:surplus]
