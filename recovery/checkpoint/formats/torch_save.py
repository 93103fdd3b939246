"""One file of ``torch.save`` with nested state dicts: ``{"model": {W: tensor}, "optimizer": {"state": ...}}``.

A file that holds a state dict of a model alone, as ``torch.save(model.state_dict(), path)`` writes it, is read too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.logical import LogicalCheckpoint, LogicalTensor
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.torch_archive import is_plain, read_archive, save_file

SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt")
MODEL: Final[tuple[str, ...]] = ("model", "module", "state_dict", "model_state_dict", "model_state")
OPTIMIZER: Final = ("optimizer", "optimizer_state_dict", "optim", "optimizer_state", "optimizer_states")
"""What training scripts, Lightning, and Accelerate call the two."""


def detect(path: Path) -> bool:
    return path.is_file() and path.suffix in SUFFIXES


def read(path: Path) -> LogicalCheckpoint:
    """Read the file.

    Raises:
        CheckpointError: damaged, or it holds no tensors.
    """
    item = read_archive(path)
    checkpoint = LogicalCheckpoint(path, "torch", {})
    parts = dict(item) if isinstance(item, dict) else {}
    if all(isinstance(part, LogicalTensor) and not str(name).startswith("optimizer.") for name, part in parts.items()):
        parts = {"model": parts}
    for name in MODEL:
        if isinstance(parts.get(name), dict):
            _add(checkpoint, parts.pop(name), ("model",))
            break
    for name in OPTIMIZER:
        if isinstance(parts.get(name), list) and len(parts[name]) == 1:  # Lightning's list of optimizers
            parts[name] = parts[name][0]
        if isinstance(parts.get(name), dict):
            optimizer = dict(parts.pop(name))
            checkpoint.values["optimizer.param_groups"] = optimizer.pop("param_groups", [])
            _add(checkpoint, optimizer, ("optimizer",))
            break
    for name in ("step", "global_step"):
        if isinstance(parts.get(name), int):
            checkpoint.values["step"] = parts.pop(name)
    _add(checkpoint, parts, ())
    if not checkpoint.tensors:
        raise CheckpointError(f"{path} holds no state dict")
    return checkpoint


def _add(checkpoint: LogicalCheckpoint, item: dict[Any, Any], path: tuple[str, ...]) -> None:
    for key, value in item.items():
        name = ".".join((*path, str(key)))
        if isinstance(value, LogicalTensor):
            checkpoint.add_tensor(name, value)
        elif is_plain(value):
            checkpoint.values[name] = value
        elif isinstance(value, dict):
            _add(checkpoint, value, (*path, str(key)))


def write(checkpoint: LogicalCheckpoint, out: Path, _options: WriteOptions) -> None:
    save_file(out, checkpoint.nested())


FORMAT = Format("torch", detect, read, write)
