"""The snapshots that agents keep, as fences, discards, and fetches leave them. Two slots a rank, as an arena has."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import NEWEST, Inventory, SlotInfo, TransferRates
from mainstay.recovery.protocol.messages import Prefetch, PrefetchResult
from tests.recovery.simulated.loop import Network, SimulatedProcess
from tests.recovery.simulated.ranks import ModelState

SLOTS: Final = 2


@dataclass(eq=False)
class SimulatedAgent:
    """In the place of ``AgentSupervisor`` and the agent behind it."""

    node: str
    process: SimulatedProcess
    network: Network
    agents: dict[str, SimulatedAgent]
    """Of all hosts, by endpoint."""
    fenced: int = 0
    slots: dict[int, dict[int, tuple[int, ModelState]]] = field(default_factory=dict)
    """Rank -> epoch -> generation and state."""
    socket: Path = Path("/agent.sock")

    def __post_init__(self) -> None:
        self.endpoint = f"{self.process.host}:9000"
        self.agents[self.endpoint] = self

    @property
    def client(self) -> SimulatedAgent:
        return self

    def save(self, rank: int, state: ModelState | None, generation: int) -> bool:
        """Commit a slot; False: the generation is fenced."""
        if state is None or generation < self.fenced:
            return False
        slots = self.slots.setdefault(rank, {})
        slots[state.epoch] = (generation, state)
        for epoch in sorted(slots)[:-SLOTS]:
            del slots[epoch]
        return True

    def find(self, rank: int, epoch: int) -> ModelState | None:
        found = self.slots.get(rank, {}).get(epoch)
        return None if found is None else found[1]

    def fetch(self, endpoint: str, rank: int, epoch: int) -> ModelState | None:
        """A slot of another agent; None: it is away, or has none."""
        other = self.agents.get(endpoint)
        if other is None or not self.network.reaches(self.process.host, other.process.host):
            return None
        return other.find(rank, epoch)

    # As the launcher asks

    async def fence(self, generation: int) -> Inventory:
        self.fenced = max(self.fenced, generation)
        held = tuple(
            SlotInfo(rank=rank, epoch=epoch, generation=since, nbytes=100, verified=True)
            for rank, slots in sorted(self.slots.items())
            for epoch, (since, _) in sorted(slots.items())
        )
        return Inventory(node=self.node, slots=held, parity=(), disk=(), rates=TransferRates(), degraded=())

    async def request(self, work: Any) -> str:
        try:
            work(self)
        except AgentError as error:
            return str(error)
        return ""

    def discard_after(self, epoch: int) -> None:
        for slots in self.slots.values():
            for newer in [e for e in slots if e > epoch]:
                del slots[newer]

    def configure_parity(self, *_: Any) -> None:
        """Copies are not simulated: replicas and a rank's own slots are."""

    def save_disk(self, *_: Any) -> None:
        """Neither is the disk."""

    def _call(self, *_: Any) -> None:
        """``AgentClient.drop``: the job is over."""
        self.slots.clear()

    async def configure_disk(self, _: Any) -> str:
        return ""

    async def prefetch(self, order: Prefetch) -> PrefetchResult:
        there = self.agents.get(order.endpoint)
        epochs = there.slots.get(order.rank, {}) if there else {}
        epoch = max(epochs, default=-1) if order.epoch == NEWEST else order.epoch
        state = self.fetch(order.endpoint, order.rank, epoch)
        if state is None or there is None:
            return PrefetchResult(rank=order.rank, epoch=order.epoch, problem="it is not there")
        self.save(order.rank, state, epochs[epoch][0])
        return PrefetchResult(rank=order.rank, epoch=order.epoch, nbytes=100, seconds=0.01)

    async def stop(self) -> None:
        self.agents.pop(self.endpoint, None)
