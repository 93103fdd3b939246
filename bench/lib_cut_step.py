"""A step of two tensor-parallel ranks, for replicas that have the whole model: a restore in another shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.lib_source import ArraySource
from mainstay.recovery.agent.messages import GatherParts, Group, LoadDisk
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.dcp import BLOB
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.memory import varlen_buffer
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, encode
from mainstay.recovery.memory.layout import Layout

CUTS = 2


@dataclass(frozen=True)
class CutStep:
    """Parameters of the whole model by name, each [rows, columns] uint8, of which every rank saved a range of rows."""

    directory: Path
    run: str
    epoch: int
    tensors: Mapping[str, Bytes]

    @property
    def layout(self) -> Layout:
        """Of a replica that has the whole model."""
        return ArraySource(dict(self.tensors) | _own(0)).layout

    def write(self) -> None:
        config = DiskConfig(run=self.run, generation=1, every=1, dp=1, pp=1, tp=CUTS)
        target = save.WriteTarget(self.directory, "bench", config)
        save.begin_step(target)
        for rank in range(CUTS):
            cut = {name: np.split(tensor, CUTS)[rank] for name, tensor in self.tensors.items()}
            places = {n: GlobalSlice(t.shape, (rank * len(cut[n]), 0)) for n, t in self.tensors.items()}
            arrays = cut | _own(rank) | {SLICES: encode(places)}
            layout = ArraySource(arrays).layout
            data = np.zeros(layout.nbytes, np.uint8)
            for name, view in layout.views(data).items():
                view[:] = arrays[name]
            save.write_image(target, (self.epoch, rank, 1), layout, data)
        if save.commit(target, self.epoch) is None:
            raise RuntimeError("the step is not whole")

    def order(self, rank: int, group: Group = ()) -> LoadDisk:
        """To read the whole model."""
        gather = GatherParts(parts=tuple((part, 1) for part in range(CUTS)), slices={}, stages=1, replica=0)
        return LoadDisk(
            rank=rank, epoch=self.epoch, directory=str(self.directory), run=self.run, from_rank=0, generation=1,
            group=group, gather=gather,
        )  # fmt: skip

    def same(self, found: Mapping[str, np.ndarray]) -> bool:
        """Whether a slot's tensors have the bits that were saved."""
        return all(np.array_equal(found[name], tensor) for name, tensor in self.tensors.items())


def _own(rank: int) -> dict[str, Bytes]:
    """Random numbers and scalars."""
    blob = np.zeros(4096, np.uint8)
    varlen_buffer.write_bytes(msgspec.msgpack.encode({"extra": {}}), blob)
    return {"rng.torch": np.full(64, rank, np.uint8), BLOB: blob}
