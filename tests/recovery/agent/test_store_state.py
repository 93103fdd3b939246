"""The groups that an agent was configured with."""

from __future__ import annotations

import msgspec

from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.agent.store import ArenaStoreState


def test_a_rank_finds_its_group_and_new_groups_replace_the_old() -> None:
    one, other, alone = (
        tuple(GroupMember(node=f"n{rank}", endpoint="", rank=rank) for rank in ranks)
        for ranks in ((0, 3), (1, 2), (4,))
    )
    state = ArenaStoreState(groups=(one, other, alone), every=1)
    assert [state.group_of(rank) for rank in range(6)] == [one, other, other, one, (), ()], "one rank is no group"
    later = msgspec.structs.replace(state, groups=(other,))
    assert [later.group_of(rank) for rank in (0, 1)] == [(), other]
    assert msgspec.structs.replace(state, every=0).group_of(0) == ()
    assert msgspec.json.decode(msgspec.json.encode(state), type=ArenaStoreState) == state
