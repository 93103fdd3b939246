"""The other replicas' shares of a sharded save, brought together in this process, straight from their nodes' agents.

Every slot is read whole and must have the digest that its agent has verified. A replica that lost its node has its slot
again only once it is rebuilt, so one that has none yet is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError
from mainstay.recovery.agent.peer import Credentials, open_peer
from mainstay.recovery.agent.peer_messages import ReadSlot, SlotHeader
from mainstay.recovery.agent.transfer import WHOLE
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.errors import ArenaError, LayoutMismatchError
from mainstay.recovery.memory.shard import ShardedState
from mainstay.recovery.protocol.worker_messages import Shard

MAX_STREAMS: Final = 8
"""Replicas that are read from at once."""
PATIENCE: Final = 120.0
"""Seconds for a replica's rebuild: less than the coordinator waits for restores (five times ``--ready-timeout``), so
that a rank whose replica cannot be rebuilt reports this before it is taken for dead."""
ASK_AGAIN: Final = 0.02
"""Seconds: short beside the time that a rebuild takes."""


class PartError(AgentError):
    """A replica's part could not be had; the message says why.

    Attributes:
        rank: the replica.
    """

    def __init__(self, rank: int, error: Exception) -> None:
        super().__init__(f"the part of rank {rank}: {error}")
        self.rank = rank


class ShardGather:
    """One restore of a sharded state.

    Args:
        state: what is loaded.
        epoch: of all slots.
        replicas: in order of index; None stands for this rank.
        credentials: for the agents.
    """

    def __init__(
        self, state: ShardedState, epoch: int, replicas: Sequence[Shard | None], credentials: Credentials
    ) -> None:
        self._state = state
        self._epoch = epoch
        self._others = [(index, shard) for index, shard in enumerate(replicas) if shard is not None]
        self._credentials = credentials
        self._shared: Bytes = np.empty(state.shared.nbytes, np.uint8)
        self._deadline = time.monotonic() + PATIENCE

    def restore(self, arena: Arena) -> int:
        """Load the state from this rank's ``arena``, which holds the epoch, and its replicas'; bytes that came.

        Raises:
            SlotMissingError, CorruptArenaError, PartError: nothing was changed.
            TornSlotError: the slot was overwritten meanwhile; the state must be restored again.
        """
        record = arena.find(self._epoch)
        arena.check(record)
        with ThreadPoolExecutor(min(MAX_STREAMS, len(self._others)), "mainstay-gather") as pool:
            moved = sum(pool.map(self._bring, self._others))
        with arena.reading(record) as own:
            self._state.put(self._state.index, own, self._shared)
            self._state.join(self._shared, own)
        return moved

    def _bring(self, replica: tuple[int, Shard]) -> int:
        """Its share, once it is there. A fence ends the waiting: agents turn a revoked generation away."""
        while True:
            try:
                return self._read(*replica)
            except NoSuchSlotError as error:
                if time.monotonic() > self._deadline:
                    raise PartError(replica[1].rank, error) from error
                time.sleep(ASK_AGAIN)
            except (AgentError, ArenaError, OSError, ValueError) as error:
                raise PartError(replica[1].rank, error) from error

    def _read(self, index: int, shard: Shard) -> int:
        layout = self._state.layout_of(index)
        with open_peer(shard.endpoint, self._credentials) as peer:
            header = peer.call(ReadSlot(rank=shard.rank, epoch=self._epoch, offset=0, nbytes=WHOLE), SlotHeader)
            if header.layout_digest != layout.digest:
                raise LayoutMismatchError(f"rank {shard.rank} is no replica of this rank: it saves other tensors")
            if header.nbytes != layout.nbytes or header.slot_nbytes != layout.nbytes:
                raise CorruptError(f"{shard.endpoint} announced {header.nbytes} bytes, a slot has {layout.nbytes}")
            slot: Bytes = np.empty(header.nbytes, np.uint8)
            peer.receive_into(slot)
            peer.finish()
        if digest(slot) != header.digest:
            raise CorruptError(f"rank {shard.rank} epoch {self._epoch}: what came from {shard.endpoint} is damaged")
        self._state.put(index, slot, self._shared)
        return header.nbytes
