"""Lightning on memory: one object that is a callback, and whose ``storage`` gives memory back as a checkpoint.

    protect = Protect()
    trainer = Trainer(callbacks=[protect], plugins=[protect.storage])
    trainer.fit(model, ckpt_path=protect.newest())

After every update the checkpoint that Lightning itself would write is copied to the node's standalone agent, with the
random numbers, which Lightning leaves out. In the middle of an epoch Lightning continues with the batches of a loader
that has ``state_dict`` (torchdata's ``StatefulDataLoader``); any other loader it begins again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from mainstay.recovery.adapters.state_dict_store import StateDictStore
from mainstay.recovery.adapters.tree import Tree
from mainstay.recovery.memory.rng_state import RngState

MEMORY: Final = "mainstay://memory"
"""What Lightning takes for the path of a checkpoint."""
_RANDOM: Final = "mainstay.random"


class Protect(Callback):
    """See the module. Every rank makes one."""

    def __init__(self) -> None:
        self.storage = _Storage()
        self._store: StateDictStore | None = None
        self._saved = 0
        self._random: Mapping[str, Any] | None = None

    def newest(self) -> str | None:
        """What to give ``fit`` as ``ckpt_path``. Meets the other ranks; forms the default group if needed."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self._store = StateDictStore()
        tree = self._store.load()
        if tree is None:
            return None
        self._random = tree.pop(_RANDOM)
        self._saved = self._store.session.epoch
        self.storage.tree = tree
        return MEMORY

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before the first forward pass: random numbers, which loaders may have drawn from meanwhile."""
        if self._random is not None:
            _generators(module).restore(self._random["arrays"], self._random["scalars"])
            self._random = None

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save, if the batch has ended in an update."""
        if self._store is None:
            raise RuntimeError("call protect.newest() before trainer.fit: it meets the other ranks")
        if trainer.global_step == self._saved:
            return
        self._saved = trainer.global_step
        # Lightning has no public name for what `save_checkpoint` writes.
        tree: Tree = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)  # noqa: SLF001
        arrays, scalars = _generators(module).capture()
        self._store.save(tree | {_RANDOM: {"arrays": arrays, "scalars": scalars}}, self._saved)


class _Storage(TorchCheckpointIO):
    """Torch's own files, and memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: Tree | None = None

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if path == MEMORY and self.tree is not None:
            tree, self.tree = self.tree, None
            return tree
        loaded: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
        return loaded


def _generators(module: LightningModule) -> RngState:
    return RngState((module.device.index,) if module.device.type == "cuda" else ())
