"""From the nodes of a job, and what fails together, to the groups that protect one another."""

from __future__ import annotations

from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.membership.members import Members
from mainstay.recovery.options import RunOptions
from mainstay.recovery.placement import PlacementHost, place_groups


def arrange(members: Members, options: RunOptions) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups of the ranks that take part, and one sentence for each node or domain that may not be lost.

    No groups where the job asked for none, and while an agent of a node with ranks cannot be reached.
    """
    at = {rank.number: members.nodes[rank.node] for rank in members.present}
    serving: dict[str, list[int]] = {}
    for number, node in at.items():
        serving.setdefault(node.name, []).append(number)
    nodes = sorted((n for n in members.alive() if n.name in serving), key=lambda n: n.hello.node_rank)
    if not options.parity_every or not all(node.endpoint for node in nodes):
        return (), ()
    named = dict(options.domains)
    hosts = [PlacementHost(n.name, tuple(serving[n.name]), named.get(n.name, n.hello.domain)) for n in nodes]
    placed = place_groups(hosts, options.protection)
    groups = tuple(
        tuple(GroupMember(node=at[r].name, endpoint=at[r].endpoint, rank=r) for r in group) for group in placed.groups
    )
    # One node alone has no other node to protect it: that is no error.
    return (groups, placed.warnings) if len(nodes) > 1 else ((), ())
