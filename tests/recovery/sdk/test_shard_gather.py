"""Gathering a sharded state from real agents: bit-equal, patient with a part still to come, clear about whose fails."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from bench.lib_agents import TLS, LocalAgent
from mainstay.recovery.agent.peer import Credentials
from mainstay.recovery.controller.recovery_record import BadSource, failed_sources
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.shard import ShardedState
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.protocol.worker_messages import RestoreOrder, Shard
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk import shard_gather
from mainstay.recovery.sdk.shard_gather import PartError, ShardGather

EPOCH = 5
CREDENTIALS = Credentials(TLS, "bench", 1)


class Replica:
    """A rank with an agent of its own, one of two that hold the same."""

    def __init__(self, root: Path, rank: int, width: int = 40) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(width, width)
        self.rank = rank
        self.agent = LocalAgent(root, f"node-{rank}")
        self.state = ShardedState(TrainerState(self.model, None), rank, 2)
        self.arena = Arena.attach(Path(self.agent.client.open_arena(rank, self.state.layout).path))

    def save(self) -> None:
        writer = SnapshotWriter(self.arena, self.state)
        writer.start(EPOCH, 1)
        writer.wait()
        writer.close()

    def restore(self, other: Replica) -> int:
        shards = [Shard(rank=other.rank, endpoint=other.agent.endpoint)]
        shards.insert(self.rank, None)
        return ShardGather(self.state, EPOCH, shards, CREDENTIALS).restore(self.arena)


@pytest.fixture
def pair(tmp_path: Path):
    with_agents = [Replica(tmp_path, rank) for rank in range(2)]
    yield with_agents
    for replica in with_agents:
        replica.agent.close()


def test_a_state_comes_back_from_two_parts(pair):
    for replica in pair:
        replica.save()
    wanted = pair[0].model.weight.detach().clone()
    with torch.no_grad():
        pair[0].model.weight.zero_()
    assert pair[0].restore(pair[1]) == pair[1].state.layout.nbytes
    assert torch.equal(pair[0].model.weight, wanted)


def test_a_part_that_is_being_rebuilt_is_waited_for(pair):
    pair[0].save()
    later = threading.Timer(0.3, pair[1].save)
    begun = time.monotonic()
    later.start()
    pair[0].restore(pair[1])
    assert time.monotonic() - begun >= 0.3
    later.join()


def test_a_part_that_never_comes_is_the_replicas_failure(pair, monkeypatch):
    monkeypatch.setattr(shard_gather, "PATIENCE", 0.1)
    pair[0].save()
    with pytest.raises(PartError, match=r"the part of rank 1: .*no slot of epoch 5") as caught:
        pair[0].restore(pair[1])
    assert caught.value.rank == 1
    order = RestoreOrder(epoch=EPOCH, source=RestoreSource.LOCAL_SLOT)
    assert failed_sources(0, order, caught.value.rank) == BadSource(1, EPOCH, RestoreSource.LOCAL_SLOT)
    assert failed_sources(0, order) == BadSource(0, EPOCH, RestoreSource.LOCAL_SLOT)


def test_a_damaged_part_changes_nothing(pair):
    for replica in pair:
        replica.save()
    pair[1].agent.client.inventory()  # verifies
    before = pair[0].model.weight.detach().clone()
    record = pair[1].arena.find(EPOCH)
    pair[1].arena.slot_bytes(record.slot)[100] ^= 1
    with pytest.raises(PartError, match=r"the part of rank 1: .*damaged"):
        pair[0].restore(pair[1])
    assert torch.equal(pair[0].model.weight, before)


def test_a_rank_that_is_no_replica_is_named(tmp_path: Path):
    first, other = Replica(tmp_path, 0), Replica(tmp_path, 1, width=41)
    try:
        first.save()
        other.save()
        with pytest.raises(PartError, match="rank 1 is no replica of this rank"):
            first.restore(other)
    finally:
        first.agent.close()
        other.agent.close()


def test_an_agent_that_is_gone_is_the_replicas_failure(pair):
    pair[0].save()
    endpoint = pair[1].agent.endpoint
    pair[1].agent.close()
    shards = [None, Shard(rank=1, endpoint=endpoint)]
    with pytest.raises(PartError, match="no agent answers"):
        ShardGather(pair[0].state, EPOCH, shards, CREDENTIALS).restore(pair[0].arena)
