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
    SaveCheckpointCommand,
    Saved,
)

log = logging.getLogger("mainstay.launcher")

AgentOrder = ConfigureJobParity | ConfigureCheckpoint | SaveCheckpointCommand | Prefetch


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
                await self._configure_parity(order)
            case ConfigureCheckpoint():
                problem = await self._agent.configure_disk(order.config)
                if problem:
                    log.error("DEGRADED node %s: nothing goes to disk: %s", self._node, problem)
            case SaveCheckpointCommand():
                problem = await self._agent.request(lambda agent: agent.save_disk(order.epoch, order.copies))
                self._send(Saved(epoch=order.epoch, problem=problem[:500]))
            case Prefetch():
                self._send(await self._agent.prefetch(order))

    async def _configure_parity(self, order: ConfigureJobParity) -> None:
        groups, every, scheme, extra_copies = order.groups, order.every, order.scheme, order.extra_copies
        problem = await self._agent.request(lambda agent: agent.configure_parity(groups, every, scheme, extra_copies))
        if problem:
            log.error("DEGRADED node %s: no parity: %s", self._node, problem)
