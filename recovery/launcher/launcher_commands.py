"""What the coordinator tells launchers outside of a fence: start, meet, protect, and what it leaves behind."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainstay.recovery.agent.messages import Group
from mainstay.recovery.launcher.coordinator_state import CANDIDATES, capture_state
from mainstay.recovery.launcher.durability_monitor import DurabilityMonitor
from mainstay.recovery.launcher.grouping import arrange
from mainstay.recovery.launcher.membership import CoordinatorJobState, RankMember
from mainstay.recovery.launcher.messages import (
    ConfigureJobParity,
    RegroupRank,
    ReplicateState,
    StartRank,
    TrainingResumed,
)
from mainstay.recovery.launcher.worker_messages import Regroup

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")


class LauncherCommands:
    """One a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self.groups: tuple[Group, ...] = ()
        """As the agents were last told: parity and copies that exist belong to them."""
        self._exposed: tuple[str, ...] = ()
        """What may not be lost, as was last said."""
        self._coordinator_states = 0
        self.guard = DurabilityMonitor(coordinator)

    def replicate_state(self) -> None:
        """Tell what is to be known when this coordinator dies, before every order that follows from it."""
        self._coordinator_states += 1
        coordinator_state = capture_state(self._c, self._coordinator_states)
        election_endpoint = next(
            (e.election_endpoint for e in coordinator_state.electors if e.node == self._c.options.node), ""
        )
        for number, node in enumerate(sorted(self._c.members.alive(), key=lambda n: n.hello.node_rank)):
            will = coordinator_state if number < CANDIDATES else None
            node.send(
                ReplicateState(
                    term=self._c.term,
                    holder=self._c.options.node,
                    election_endpoint=election_endpoint,
                    coordinator_state=will,
                )
            )

    def start(self, rank: RankMember) -> None:
        """Have the rank's node give it a process."""
        host, port = self._c.store
        shape = self._c.members.shape
        told = shape or self._c.options
        start = StartRank(
            rank=rank.number,
            generation=self._c.generation,
            store_host=host,
            store_port=port,
            dp=told.dp,
            pp=told.pp,
            depths=shape.depths if shape else (),
            world_size=len(self._c.members.ranks),
        )
        self._c.members.nodes[rank.node].send(start)

    def regroup(self, orders: dict[int, Regroup]) -> None:
        """Tell every rank to form the present generation; ``orders`` holds what they restore."""
        host, port = self._c.store
        # One digest at the very first step tells whether replicas are replicas: a job may shard its state among them.
        for rank in self._c.members.present:
            order = orders.get(rank.number) or Regroup(
                generation=self._c.generation,
                store_host=host,
                store_port=port,
                restore=self._c.disk.first(rank.number),
                digest_steps=1,
            )
            self._c.members.nodes[rank.node].send(RegroupRank(rank=rank.number, order=order))

    def protect(self) -> None:
        """Tell the agents who protects whom in this membership."""
        self.groups, exposed = arrange(self._c.members, self._c.options)
        for warning in exposed if exposed != self._exposed else ():
            log.warning("DEGRADED %s: %s", self._c.options.job, warning)
        self._exposed = exposed
        every, scheme, extra_copies = (
            self._c.tuning.parity_every,
            str(self._c.options.protection),
            self.guard.extra_copies(),
        )
        for node in self._c.members.alive():
            kept = extra_copies.get(node.name, ())
            node.send(
                ConfigureJobParity(
                    groups=self.groups, every=every if self.groups else 0, scheme=scheme, extra_copies=kept
                )
            )
        self.guard.start()

    async def lose_spare_node(self) -> None:
        """A node without ranks is lost: no rank stops, and a recovery that is under way does not wait for it."""
        self.replicate_state()
        if self._c.state is CoordinatorJobState.RUNNING:
            self.protect()
        async with self._c.changed:
            self._c.changed.notify_all()

    def warm_standbys(self) -> None:
        """The first step after a recovery is committed: standbys may warm now."""
        for node in self._c.members.alive():
            node.send(TrainingResumed())
