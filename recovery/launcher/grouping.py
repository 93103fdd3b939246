"""From the nodes of a job, and what fails together, to the groups that protect one another."""

from __future__ import annotations

from recovery.agent.messages import Group, GroupMember
from recovery.launcher.membership import Members
from recovery.launcher.options import RunOptions
from recovery.placement import Host, place


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
    hosts = [Host(n.name, tuple(serving[n.name]), named.get(n.name, n.hello.domain)) for n in nodes]
    placed = place(hosts, options.protect)
    groups = tuple(
        tuple(GroupMember(node=at[r].name, endpoint=at[r].endpoint, rank=r) for r in group) for group in placed.groups
    )
    # One node alone has nobody to protect it: that is no mistake of anybody's.
    return (groups, placed.warnings) if len(nodes) > 1 else ((), ())
