"""Nodes that come and go while a job with ``--nnodes MIN:MAX`` runs: what becomes of those that others replace."""

from __future__ import annotations

from typing import Final

from mainstay.recovery.membership.members import Members

FORGET: Final = 5.0
"""Times ``--node-timeout``: a launcher that finds no coordinator has given up after three, and a question takes 2 s."""


def forget_lost_nodes(members: Members, heard_before: float) -> None:
    """Forget lost nodes beyond the largest number of nodes, those first that have been silent for longest.

    A lost node counts as one that may follow another coordinator, until a node has come in its place.
    """
    surplus = len(members.nodes) - members.nnodes - members.spare_nodes
    if surplus <= 0:
        return
    needed = {rank.node for rank in members.ranks}
    lost = [n for n in members.nodes.values() if not n.alive and n.name not in needed and n.heard_at < heard_before]
    for node in sorted(lost, key=lambda node: node.heard_at)[:surplus]:
        del members.nodes[node.name]
