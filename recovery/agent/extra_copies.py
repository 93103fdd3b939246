"""Extra copies of the newest slots of ranks whose node is not trusted, kept up to date here while the node lives.

The coordinator selects the ranks (``controller.monitors.durability_monitor``). Each newest verified slot is pulled as
soon as it is there, into the same kind of arena as the copies of ``copies:M``, so that it is listed, served and
restored from like any. A trainer whose steps are shorter than a transfer leaves some of them out.
"""

from __future__ import annotations

from typing import Final

from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.agent.node import AgentNode
from mainstay.recovery.agent.peer import Peer
from mainstay.recovery.agent.peer_messages import Head, ReadHead
from mainstay.recovery.agent.periodic_thread import PeriodicThread
from mainstay.recovery.agent.transfer import copy_slot
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.records import NO_EPOCH

LOOK_SECONDS: Final = 0.02
"""Between questions whether there is a newer slot: a tenth of the shortest steps that are worth protecting."""
LATE: Final = 1.0
"""After a node did not answer."""


class ExtraCopyManager(PeriodicThread):
    """Pulls the newest slots of the ranks that ``configure`` names."""

    def __init__(self, node: AgentNode) -> None:
        super().__init__("mainstay-extra-copies")
        self._node = node
        self._extra_copies: Group = ()
        self._generation = 0
        self._newest: dict[int, tuple[int, int]] = {}
        """Rank -> the newest epoch that was copied, and how often the job had gone back by then."""

    def configure(self, extra_copies: Group, generation: int) -> None:
        """Keep copies of these ranks from now on, from the agents at these endpoints; those of others may go."""
        copies, ranks = self._node.store.copies, frozenset(extra_copy.rank for extra_copy in extra_copies)
        ended = copies.extra_copies - ranks
        self._extra_copies, self._generation = extra_copies, generation
        copies.extra_copies = ranks
        copies.release(ended)
        for rank in ended:
            self._newest.pop(rank, None)
        self.wake()

    def run_once(self) -> float:
        answers = [self._try(extra_copy) for extra_copy in self._extra_copies]
        return LOOK_SECONDS if answers and all(answers) else LATE

    def _try(self, extra_copy: GroupMember) -> bool:
        """Whether its agent answers; a copy that did not come is tried again with the newest slot then."""
        subject = f"extra copy of rank {extra_copy.rank}"
        try:
            with self._node.peer(extra_copy.endpoint, self._generation) as peer:
                self._follow(extra_copy, peer)
        except (AgentError, ArenaError, OSError, ValueError) as error:
            self._node.store.degraded[subject] = str(error)
            return False
        self._node.store.degraded.pop(subject, None)
        return True

    def _follow(self, extra_copy: GroupMember, peer: Peer) -> None:
        discards = self._node.store.discards
        known, since = self._newest.get(extra_copy.rank, (NO_EPOCH, discards))
        known = known if since == discards else NO_EPOCH
        newest = peer.call(ReadHead(rank=extra_copy.rank, epoch=NO_EPOCH), Head).newest
        if newest == NO_EPOCH or newest <= known:
            return
        head = peer.call(ReadHead(rank=extra_copy.rank, epoch=newest), Head)
        if head.present:
            copy_slot(self._node, peer, extra_copy.rank, newest, head)
            self._newest[extra_copy.rank] = (newest, discards)
