"""Replicas on a node restore from disk with one read between them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench.lib_source import ArraySource
from mainstay.recovery.agent.checkpoint_reader import CheckpointReader
from mainstay.recovery.agent.errors import CorruptError
from mainstay.recovery.agent.messages import LoadDisk
from mainstay.recovery.agent.node import AgentNode, AgentSettings
from mainstay.recovery.agent.parity_store import ParityStore
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.manifest import DamagedError, DiskConfig
from mainstay.recovery.checkpoint.slot_reader import PartReader
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import TensorSpec
from mainstay.recovery.memory.snapshot import SnapshotWriter
from tests.recovery.agent.conftest import eventually

RUN, EPOCH, REPLICAS = "run-1", 7, 4
SHARED_BYTES = 400_000


class Node:
    """Ranks that are replicas, on one node; a step of theirs on disk, and empty memory after that."""

    def __init__(self, root: Path, copies: int) -> None:
        self.disk, config = root / "disk", DiskConfig(run=RUN, generation=1, every=1, dp=4, pp=1, tp=1, copies=copies)
        target = save.WriteTarget(self.disk, "job", config)
        save.begin_step(target)
        self.written = self._store(root / "before")
        for rank in range(REPLICAS):
            source = ArraySource(self.state(rank))
            self.written.open(rank, source.layout)
            writer = SnapshotWriter(self.written.arena(rank), source)
            writer.start(EPOCH, 1)
            writer.wait()
            writer.close()
            _, record = self.written.verified(rank, EPOCH)
            save.write_part(self.written.arena(rank), record, target)
        assert save.commit(target, EPOCH) is not None
        self.store = self._store(root / "after")
        tls = job_tls("secret", "job", Authority.SNAPSHOTS)
        settings = AgentSettings(job="job", node="node", tls=tls, directory=root / "after", disk_every=1, disk_keep=2)
        node = AgentNode(settings, self.store, ParityStore(root / "after"))
        self.read: list[int] = []
        node.meter.add_transfer = lambda _, nbytes, __: self.read.append(nbytes)  # type: ignore[method-assign]
        self.reader = CheckpointReader(node)

    def _store(self, memory: Path) -> ArenaStore:
        memory.mkdir()
        return ArenaStore(memory, slots=2, disk_every=1)

    @staticmethod
    def state(rank: int) -> dict[str, np.ndarray]:
        shared = np.random.default_rng(0).integers(0, 256, (400, 1000)).astype(np.uint8)
        return {"param.w": shared, "rng.torch": np.full(64, rank, np.uint8), "mainstay.blob": np.zeros(64, np.uint8)}

    def load(self, rank: int) -> None:
        self.store.open(rank, ArraySource(self.state(rank)).layout)
        self.reader.load(LoadDisk(rank=rank, epoch=EPOCH, directory=str(self.disk), run=RUN), 1, RUN)
        arena = self.store.arena(rank)
        views = arena.layout.views(arena.slot_bytes(arena.find(EPOCH).slot))
        assert all(np.array_equal(views[name], value) for name, value in self.state(rank).items())


@pytest.fixture
def node(tmp_path: Path) -> Callable[[int], Node]:
    return lambda copies: Node(tmp_path, copies)


@pytest.mark.parametrize("copies", [0, 1])
def test_what_replicas_hold_alike_is_read_once(node: Callable[[int], Node], copies: int) -> None:
    made = node(copies)
    for rank in range(REPLICAS):
        made.load(rank)
    assert sum(made.read) <= 1.05 * (SHARED_BYTES + 128)
    assert made.read[0] > SHARED_BYTES


def test_a_slot_that_was_made_again_since_is_not_taken_for_the_one_that_was_read(node: Callable[[int], Node]) -> None:
    made = node(0)
    made.load(0)
    arena = made.store.arena(0)
    source = ArraySource({name: np.ones_like(value) for name, value in made.state(0).items()})
    writer = SnapshotWriter(arena, source)
    writer.start(EPOCH, 2)
    writer.wait()
    writer.close()
    made.store.verified(0, EPOCH)
    made.load(1)


def test_a_share_that_is_damaged_is_said(node: Callable[[int], Node]) -> None:
    made = node(1)
    path = made.disk / RUN / f"step-{EPOCH:08d}" / "__2_1.distcp"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(CorruptError, match=r"__2_1\.distcp") as raised:
        made.load(0)
    assert isinstance(raised.value.__cause__, DamagedError)
    path.unlink()
    with pytest.raises(CorruptError, match=r"__2_1\.distcp") as raised:
        made.load(0)
    assert not isinstance(raised.value.__cause__, DamagedError), "a file that is missing, or a disk that refuses"


def at_once(made: Node) -> list[BaseException | None]:
    """All ranks load at the same time, the first of them before the others; what each raised."""
    with ThreadPoolExecutor(REPLICAS) as pool:
        futures = [pool.submit(made.load, 0)]
        eventually(lambda: 0 in made.reader._loaded)
        futures += [pool.submit(made.load, rank) for rank in range(1, REPLICAS)]
        return [future.exception(60.0) for future in futures]


def hold_first(made: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 reads no tensor before all others have begun."""
    read_tensor = PartReader.read_tensor

    def read(self: PartReader, spec: TensorSpec, slot: Bytes) -> int:
        if self.part.rank == 0:
            eventually(lambda: len(made.reader._loaded) == REPLICAS)
        return read_tensor(self, spec, slot)

    monkeypatch.setattr(PartReader, "read_tensor", read)


def test_replicas_that_ask_at_once_take_tensors_while_they_are_read(
    node: Callable[[int], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node(0)
    hold_first(made, monkeypatch)
    assert at_once(made) == [None] * REPLICAS
    assert sum(made.read) <= 1.05 * (SHARED_BYTES + 128)


def test_replicas_read_their_own_parts_when_the_first_one_is_damaged(
    node: Callable[[int], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node(0)
    hold_first(made, monkeypatch)
    path = made.disk / RUN / f"step-{EPOCH:08d}" / "__0_1.distcp"
    raw = bytearray(path.read_bytes())
    raw[SHARED_BYTES // 2] ^= 1
    path.write_bytes(bytes(raw))
    first, *others = at_once(made)
    assert isinstance(first, CorruptError)
    assert others == [None] * (REPLICAS - 1)
