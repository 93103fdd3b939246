"""``torch.distributed.checkpoint`` on memory: one object that is its stager, its writer and its reader.

    storage = MemoryStorage("checkpoints", disk_every=100)
    if storage.holds_something():
        dcp.load(state_dict, storage_reader=storage)         # the newest in memory, else on the disk
    dcp.async_save(state_dict, storage_writer=storage)       # each call to memory, each hundredth to the disk too

``dcp.save`` does as well. A save copies this rank's own parts into the node's standalone agent before it returns; only
the disk's part is still written, in the format of torch's ``FileSystemWriter``, which any other tool reads. A
load takes the newest epoch that every rank has in memory, on the same number of ranks and shards; where there is none,
the newest whole one on disk, which may be resharded.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from mainstay.probes.torch_private import copy_to_cpu, flatten_state_dict, shard_offsets
from mainstay.recovery.adapters.state_dict_store import StateDictStore
from mainstay.recovery.memory.dtensor import is_distributed, local

_STEP: Final = re.compile(r"epoch-(\d+)$")
_WHOLE: Final = ".metadata"
"""Written last by torch: a directory without it was never finished."""


class MemoryStorage(AsyncStager, StorageWriter, StorageReader):
    """See the module.

    Args:
        directory: where epochs for the disk go, as ``directory/epoch-N``.
        disk_every: each so many saves one goes to the disk; 0: none does.
        group: all ranks of the job; None: the default group.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, disk_every: int = 0, group: ProcessGroup | None = None
    ) -> None:
        if disk_every < 0:
            raise ValueError(f"disk_every={disk_every}: a number of saves, 0 for never")
        self._directory = Path(directory)
        self._disk_every = disk_every
        self._store = StateDictStore(group)
        self._staged = False
        """The save under way is in memory already."""
        self._files: FileSystemWriter | None = None
        """Of the save under way, if it goes to the disk."""
        self._read: FileSystemReader | None = None
        self._found: dict[str, Any] = {}
        """From memory: name -> local tensor or value."""

    @property
    def epoch(self) -> int:
        """How many saves there have been, over all starts of the job."""
        return self._store.session.epoch

    @property
    def protected(self) -> bool:
        return self._store.session.protected

    def holds_something(self) -> bool:
        """Whether a load would find an epoch, in memory or on disk. Every rank asks."""
        return self._store.session.newest() is not None or self._newest_on_disk() is not None

    # The stager

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy to memory; what is returned is left to be written: everything, or nothing.

        Raises:
            ValueError: the state dict holds something that is neither tensor nor plain data.
        """
        self._files = self._writer()
        self._remember(flatten_state_dict(state_dict))
        self._staged = True
        return {} if self._files is None else copy_to_cpu(state_dict)

    def _remember(self, flat: Mapping[str, Any]) -> None:
        self._store.save({name: _entry(value) for name, value in flat.items()})

    def _writer(self) -> FileSystemWriter | None:
        """Of the next save, if that one goes to the disk."""
        number = self.epoch + 1
        if not self._disk_every or number % self._disk_every:
            return None
        return FileSystemWriter(self._directory / f"epoch-{number}")

    def synchronize_staging(self) -> None:
        """Nothing: ``stage`` has copied when it returns."""

    def close(self) -> None:
        """Hang up. What was saved stays with the agent."""
        self._store.close()

    # The writer

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new save or load begins. Epochs name themselves.

        Raises:
            ValueError: a ``checkpoint_id`` was given.
        """
        if checkpoint_id is not None:
            raise ValueError("MemoryStorage numbers its epochs itself: call dcp without checkpoint_id")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not self._staged:
            self._files = self._writer()
        if self._files is not None:
            self._files.set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: Any) -> Any:
        """Of a save (``SavePlan``) or a load (``LoadPlan``)."""
        disk = self._files if isinstance(plan, SavePlan) else self._read
        return plan if disk is None else disk.prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Of a save or a load."""
        disk = self._files if plans and isinstance(plans[0], SavePlan) else self._read
        return plans if disk is None else disk.prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what belongs to the disk; and copy to memory where nothing was staged, as with ``dcp.save``.

        Raises:
            TypeError: a planner that does not show its state dict, without a stage before.
        """
        if not self._staged:
            if not isinstance(planner, DefaultSavePlanner):
                raise TypeError(f"{type(planner).__name__} does not show what it saves: use dcp.async_save with it")
            self._remember(planner.state_dict)
        self._staged = False
        if self._files is not None:
            return self._files.write_data(plan, planner)
        nothing: Future[list[WriteResult]] = Future()
        nothing.set_result([])
        return nothing

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        if self._files is not None:
            self._files.finish(metadata, results)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - torch's signature
        """Never chosen by torch from an id alone."""
        return False

    # The reader

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Of the newest epoch in memory, else of the newest whole one on disk.

        Raises:
            FileNotFoundError: neither has one.
        """
        tree = self._store.load()
        if tree is not None:
            self._read = None
            self._found = {name: entry["value"] for name, entry in tree.items()}
            return Metadata({name: _metadata(entry) for name, entry in tree.items()})
        path = self._newest_on_disk()
        if path is None:
            raise FileNotFoundError(f"no epoch that all have in memory, and none that is whole in {self._directory}")
        self._read = FileSystemReader(path)
        return self._read.read_metadata(*args, **kwargs)

    def _newest_on_disk(self) -> Path | None:
        found = [
            (int(match[1]), path) for path in self._directory.glob("epoch-*") if (match := _STEP.search(path.name))
        ]
        whole = [pair for pair in found if (pair[1] / _WHOLE).exists()]
        return max(whole)[1] if whole else None

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._read is not None:
            self._read.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if self._read is not None:
            return self._read.read_data(plan, planner)
        for item in plan.items:
            value = self._found[item.storage_index.fqn]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, _as_torch_saves(value))
            else:
                _fill(planner, item, value)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _entry(value: Any) -> dict[str, Any]:
    """One name's value with what a load has to know of it: the whole shape, and where this rank's part lies in it."""
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    part = local(value)
    return {"value": part, "shape": list(value.shape), "offsets": list(_offsets(value)), "sizes": list(part.shape)}


def _offsets(tensor: torch.Tensor) -> tuple[int, ...]:
    if not is_distributed(tensor):
        return (0,) * tensor.dim()
    whole: Any = tensor
    return shard_offsets(whole.shape, whole.device_mesh, whole.placements)


def _metadata(entry: dict[str, Any]) -> TensorStorageMetadata | BytesStorageMetadata:
    value = entry["value"]
    if not isinstance(value, torch.Tensor):
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size(entry["offsets"]), torch.Size(entry["sizes"]))
    return TensorStorageMetadata(TensorProperties(dtype=value.dtype), torch.Size(entry["shape"]), [chunk])


def _fill(planner: LoadPlanner, item: ReadItem, value: torch.Tensor) -> None:
    source = value
    for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        source = source.narrow(dim, start, length)
    target = planner.resolve_tensor(item).detach()
    target.copy_(source)
    planner.commit_tensor(item, target)


def _as_torch_saves(value: Any) -> io.BytesIO:
    """What torch's planner expects of a value that is no tensor. We made it ourselves, from plain data."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer
