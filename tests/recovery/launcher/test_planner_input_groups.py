"""Which group a rank is decoded with: that of the rows which the agents really hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstay.recovery.agent.messages import Inventory, ParityInfo, TransferRates
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.membership.members import Members, NodeMember, RankMember
from mainstay.recovery.protocol.messages import LauncherHello


@pytest.fixture
def members() -> Members:
    """Four nodes of one rank; node 3 is lost."""
    made = Members(4, 1)
    for number in range(4):
        hello = LauncherHello(
            job="j", node=f"n{number}", node_rank=number, nnodes=4, nproc=1, spares=1, standbys=1, pid=1,
            agent_endpoint=f"h{number}:1",
        )  # fmt: skip
        made.nodes[hello.node] = NodeMember(hello, hello.agent_endpoint, 1)
        made.ranks.append(RankMember(number, hello.node))
    made.nodes["n3"].alive = False
    return made


def hold(members: Members, node: str, *rows: tuple[int, tuple[int, ...], int]) -> None:
    """``rows``: (epoch, ranks, place)."""
    members.nodes[node].inventory = Inventory(
        node=node, slots=(), disk=(), rates=TransferRates(), degraded=(),
        parity=tuple(
            ParityInfo(epoch=epoch, ranks=ranks, place=place, parity=1, nbytes=1, complete=False)
            for epoch, ranks, place in rows
        ),
    )  # fmt: skip


def inputs_of(members: Members) -> PlannerInputBuilder:
    """Only ``members`` count."""
    return PlannerInputBuilder(cast("Any", SimpleNamespace(members=members)), cast("Any", None))


def test_rows_of_groups_from_before_a_regroup_are_used_as_they_are(members: Members) -> None:
    old = (0, 1, 2, 3)
    hold(members, "n0", (10, old, 0), (10, (0, 3), 0))
    hold(members, "n1", (10, old, 1))
    hold(members, "n2", (10, old, 2))
    members.nodes["n1"].endpoint = "h1:99"  # its agent was started again
    group = inputs_of(members).group_of(3, 10)
    assert [(m.node, m.endpoint, m.rank) for m in group] == [
        ("n0", "h0:1", 0), ("n1", "h1:99", 1), ("n2", "h2:1", 2), ("n3", "", 3)
    ]  # fmt: skip


def test_nothing_held_is_no_group(members: Members) -> None:
    hold(members, "n0", (9, (0, 1, 2, 3), 0), (10, (0, 1), 0))
    assert inputs_of(members).group_of(3, 10) == ()
