"""From a membership to protection groups: domains as nodes say them, or as node 0 was told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mainstay.recovery.membership.grouping import arrange
from mainstay.recovery.membership.members import Members, NodeMember, RankMember
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protection_scheme import parse
from mainstay.recovery.protocol.messages import LauncherHello


@pytest.fixture
def members() -> Members:
    """Four nodes of two ranks, in racks a, a, b, b."""
    made = Members(4, 2)
    for number, domain in enumerate("aabb"):
        hello = LauncherHello(
            job="j", node=f"n{number}", node_rank=number, nnodes=4, nproc=2, spares=0, standbys=0, pid=1,
            agent_endpoint=f"h{number}:1", domain=domain,
        )  # fmt: skip
        made.nodes[hello.node] = NodeMember(hello, hello.agent_endpoint, 0)
        made.ranks += [RankMember(2 * number, hello.node), RankMember(2 * number + 1, hello.node)]
    return made


def test_every_rank_is_in_one_group_and_no_group_has_two_of_a_rack(members: Members, options: RunOptions) -> None:
    groups, exposed = arrange(members, replace(options, parity_every=5, protection=parse("xor")))
    assert exposed == ()
    assert sorted(member.rank for group in groups for member in group) == list(range(8))
    racks = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
    assert all(len({racks[m.node] for m in group}) == len(group) for group in groups)
    assert {m.endpoint for group in groups for m in group} == {f"h{n}:1" for n in range(4)}


def test_what_node_0_was_told_counts_more_and_what_cannot_be_is_named(members: Members, options: RunOptions) -> None:
    told = replace(options, parity_every=5, protection=parse("xor"), domains=(("n2", "a"),))
    groups, (warning,) = arrange(members, told)
    assert groups
    assert "the loss of domain a would take 3 ranks of one group, more than xor outlives" in warning


def test_without_reach_or_request_there_are_no_groups(members: Members, options: RunOptions) -> None:
    assert arrange(members, options) == ((), ())
    wanted = replace(options, parity_every=5)
    assert arrange(members, replace(wanted, protection=parse("none"))) == ((), ())
    members.nodes["n1"].endpoint = ""
    assert arrange(members, wanted) == ((), ())
