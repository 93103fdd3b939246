"""Orders of the coordinator that a launcher passes on to its agent, beside everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainstay.recovery.node.agent_supervisor import AgentSupervisor
from mainstay.recovery.protocol.messages import (
    ConfigureCheckpoint,
    ConfigureJobParity,
    FromLauncher,
    Prefetch,
    PrefetchCheckpoint,
    RegroupRank,
    SaveCheckpointCommand,
    Saved,
)
from mainstay.recovery.recovery_plan import RestoreSource

log = logging.getLogger("mainstay.launcher")

AgentOrder = ConfigureJobParity | ConfigureCheckpoint | SaveCheckpointCommand | Prefetch | PrefetchCheckpoint


class AgentOrders:
    """One a launcher.

    Args:
        agent: of this node.
        node: its name.
        send: tells the coordinator.
    """

    def __init__(self, agent: AgentSupervisor, node: str, send: Callable[[FromLauncher], None]) -> None:
        self._agent = agent
        self._node = node
        self._send = send

    async def carry_out(self, order: AgentOrder) -> None:
        """Have the agent do it, and answer where the coordinator waits for one."""
        match order:
            case ConfigureJobParity():
                groups, every, scheme, extra = order.groups, order.every, order.scheme, order.extra_copies
                problem = await self._agent.request(lambda agent: agent.configure_parity(groups, every, scheme, extra))
                if problem:
                    log.error("DEGRADED node %s: no parity: %s", self._node, problem)
            case ConfigureCheckpoint():
                problem = await self._agent.configure_disk(order.config)
                if problem:
                    log.error("DEGRADED node %s: nothing goes to disk: %s", self._node, problem)
            case SaveCheckpointCommand():
                problem = await self._agent.request(lambda agent: agent.save_disk(order.epoch, order.copies))
                self._send(Saved(epoch=order.epoch, problem=problem[:500]))
            case Prefetch():
                self._send(await self._agent.prefetch(order))
            case PrefetchCheckpoint():
                problem = await self._agent.prefetch_checkpoint(order)
                if problem:  # the rank itself has the agent try again, and says what is wrong
                    log.info("node %s: rank %d's checkpoint was not prefetched: %s", self._node, order.rank, problem)

    async def prefetch(self, message: RegroupRank) -> None:
        """Have the agent read what a rank restores from disk while its script is still starting."""
        order = message.order.restore
        if order is not None and order.source is RestoreSource.DISK and not order.parts:
            await self.carry_out(PrefetchCheckpoint(rank=message.rank, order=order))
