"""A node with ranks in one process: slots in, steps on disk out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib_source import ArraySource
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import DiskConfig, Manifest
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter
from tests.recovery.checkpoint.object_store import FaultProxy, s3_server
from tests.recovery.checkpoint.upload_place import Place

RUN = "01997c4e-8f00-7000-8000-000000000001"


def arrays(role: int, rank: int, epoch: int) -> dict[str, np.ndarray]:
    """Parameters are the role's, random numbers and scalars the rank's own."""
    shared, own = np.random.default_rng([epoch, role]), np.random.default_rng([rank, epoch, 7])
    return {
        "param.w": shared.standard_normal((5, 3)).astype(np.float32),
        "buffer.n": shared.integers(0, 9, 2).astype(np.int64),
        "optim.w.exp_avg": shared.standard_normal((5, 3)),
        "rng.torch": own.integers(0, 256, 33).astype(np.uint8),
        "mainstay.blob": own.integers(0, 256, 100).astype(np.uint8),
    }


class Ranks:
    """The arenas of a job of ``dp`` replicas and ``pp`` stages, all on this node."""

    def __init__(self, home: Path, *, dp: int = 2, pp: int = 1, run: str = RUN, sharded: bool = False) -> None:
        self.memory = home / f"memory-{run[-4:]}"
        self.memory.mkdir()
        self.directory = home / "checkpoints"
        self.dp, self.pp, self.run_id, self.sharded = dp, pp, run, sharded
        self.arenas: dict[int, Arena] = {}

    def target(self, generation: int = 1, returns: tuple[tuple[int, int], ...] = ()) -> WriteTarget:
        config = DiskConfig(
            run=self.run_id,
            generation=generation,
            every=1,
            dp=self.dp,
            pp=self.pp,
            tp=1,
            returns=returns,
            replicated=not self.sharded,
        )
        return WriteTarget(self.directory, "job", config)

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory / self.run_id)

    def state(self, rank: int, epoch: int) -> dict[str, np.ndarray]:
        return arrays(rank + 100 if self.sharded else rank % self.pp, rank, epoch)

    def step(self, rank: int, epoch: int, generation: int = 1) -> Arena:
        state = self.state(rank, epoch)
        source = ArraySource(state)
        if rank not in self.arenas:
            path = self.memory / f"rank-{rank}.arena"
            self.arenas[rank] = Arena.create(path, rank=rank, layout=source.layout, slots=3)
        writer = SnapshotWriter(self.arenas[rank], source)
        writer.start(epoch, generation)
        writer.wait()
        writer.close()
        self.arenas[rank].verify(self.arenas[rank].find(epoch))
        return self.arenas[rank]

    def write(self, rank: int, epoch: int, target: WriteTarget | None = None, generation: int = 1) -> None:
        arena = self.step(rank, epoch, generation)
        save.write_part(arena, arena.find(epoch), target or self.target(generation))

    def whole(self, epoch: int, generation: int = 1, returns: tuple[tuple[int, int], ...] = ()) -> Manifest:
        target = self.target(generation, returns)
        save.begin_step(target)
        for rank in range(self.dp * self.pp):
            self.write(rank, epoch, target, generation)
        made = save.commit(target, epoch)
        assert made is not None
        return made


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., Ranks]:
    """Make a job: see ``Ranks``."""
    return lambda **options: Ranks(tmp_path, **options)


@pytest.fixture
def place(ranks: Callable[..., Any], tmp_path: Path) -> Place:
    """A job, and a directory as its upload level."""
    return Place(ranks(dp=2), str(tmp_path / "level"))


@pytest.fixture(scope="module")
def server() -> Iterator[FaultProxy]:
    """A bucket behind a proxy."""
    with s3_server() as proxy:
        yield proxy


@pytest.fixture
def proxy(server: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The same with credentials; faults of one test do not reach the next."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield server
    server.work_again()


@pytest.fixture
def bucket(ranks: Callable[..., Any], proxy: FaultProxy, request: pytest.FixtureRequest) -> Place:
    """A job, and a part of the bucket as its upload level."""
    return Place(ranks(dp=2), proxy.url.replace("runs/here", re.sub(r"\W", "-", request.node.name)))
