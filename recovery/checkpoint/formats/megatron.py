"""Megatron-core distributed checkpoints (``torch_dist``): torch.distributed.checkpoint with Megatron's names.

Model tensors have bare names, with all layers of a stack in one tensor; optimizer tensors are called
``optimizer.state.KEY.NAME``. What is no tensor is in ``common.pt``, or in newer versions in the entry ``common_state``
(megatron/core/dist_checkpointing of core 0.16, and of the repository at d98e8a6).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.formats import dcp
from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.formats.mainstay import RANK
from mainstay.recovery.checkpoint.logical import MASTER, LogicalCheckpoint, array_tensor
from mainstay.recovery.checkpoint.manifest import METADATA, CheckpointError
from mainstay.recovery.checkpoint.torch_archive import is_plain, read_archive, save_file

_CONFIG: Final = "metadata.json"
_COMMON: Final = "common.pt"
_COMMON_ENTRY: Final = "common_state/shard_0_1"
_LATEST: Final = "latest_checkpointed_iteration.txt"
_STATE: Final = re.compile(r"^(?:chained_\d+\.)?optimizer\.state\.([^.]+)\.(.+)$")
_THEIR_MASTER: Final = "fp32_param"


def detect(path: Path) -> bool:
    return (path / _LATEST).is_file() or ((path / _CONFIG).is_file() and (path / METADATA).is_file())


def read(path: Path) -> LogicalCheckpoint:
    """Read the metadata and what is no tensor.

    Raises:
        CheckpointError: another backend than ``torch_dist``, or damaged.
    """
    folder = path
    if (path / _LATEST).is_file():
        iteration = (path / _LATEST).read_text(errors="replace").strip()
        folder = path / (f"iter_{int(iteration):07d}" if iteration.isdecimal() else "release")
    with file_errors(folder / _CONFIG):
        config = msgspec.json.decode((folder / _CONFIG).read_bytes(), type=dict[str, Any])
    if config.get("sharded_backend") != "torch_dist":
        raise CheckpointError(f"{folder} has the backend {config.get('sharded_backend')!r}; only torch_dist is read")
    checkpoint = dcp.read(folder, "megatron", _our_name)
    entry = checkpoint.values.get(_COMMON_ENTRY)
    found = entry[0] if isinstance(entry, list) and entry else entry
    if (folder / _COMMON).is_file():
        found = read_archive(folder / _COMMON)
    checkpoint.values = {key: value for key, value in checkpoint.values.items() if "/shard_" not in key}
    if isinstance(found, dict):
        checkpoint.values |= {key: value for key, value in found.items() if is_plain(value) and key != "optimizer"}
        checkpoint.values["step"] = int(found.get("iteration", 0))
        optimizer = found.get("optimizer")
        inner = optimizer.get("optimizer", optimizer) if isinstance(optimizer, dict) else {}
        if is_plain(inner.get("param_groups")) and inner.get("param_groups"):
            _set_groups(checkpoint, inner["param_groups"])
    return checkpoint


def _set_groups(checkpoint: LogicalCheckpoint, groups: list[dict[str, Any]]) -> None:
    """Groups, and the number of steps in them as tensors, as torch's optimizers have it."""
    checkpoint.values["optimizer.param_groups"] = [{k: v for k, v in group.items() if k != "step"} for group in groups]
    steps = {group["step"] for group in groups if isinstance(group.get("step"), int | float)}
    for parameter in checkpoint.optimizer_state() if len(steps) == 1 else ():
        step = array_tensor(np.array(max(steps), np.float32), "float32")
        checkpoint.add_tensor(f"optimizer.state.{parameter}.step", step)


def _our_name(key: str) -> str:
    match = _STATE.match(key)
    if match is None:
        return f"model.{key}"
    return f"optimizer.state.{match[2]}.{MASTER if match[1] == _THEIR_MASTER else match[1]}"


def _their_name(name: str) -> str:
    if name.startswith("optimizer.state."):
        parameter, _, key = name.removeprefix("optimizer.state.").rpartition(".")
        return f"optimizer.state.{_THEIR_MASTER if key == MASTER else key}.{parameter}"
    return name.removeprefix("model.")


def write(checkpoint: LogicalCheckpoint, out: Path, options: WriteOptions) -> None:
    """Write the directory of an iteration, and the file that names it. Steps of the optimizer are in its groups."""
    folder = out / f"iter_{checkpoint.step:07d}"
    steps = {name for name in checkpoint.tensors if name.startswith("optimizer.state.") and name.endswith(".step")}
    kept = {name: t for name, t in checkpoint.tensors.items() if name not in steps and not RANK.match(name)}
    dcp.write(LogicalCheckpoint(checkpoint.path, "megatron", kept), folder, options, _their_name)
    counted = {"step": int(checkpoint.tensors[min(steps)].read())} if steps else {}
    groups = [group | counted for group in checkpoint.values.get("optimizer.param_groups", [])]
    values = {key: value for key, value in checkpoint.values.items() if key != "optimizer.param_groups"}
    common = values | {"iteration": checkpoint.step, "checkpoint_version": 3.0}
    if groups:
        common["optimizer"] = {"optimizer": {"param_groups": groups}}
    save_file(folder / _COMMON, common)
    config = {
        "sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
        "common_backend_version": 1,
    }  # fmt: skip
    (folder / _CONFIG).write_bytes(msgspec.json.encode(config))
    (out / _LATEST).write_text(str(checkpoint.step))


FORMAT = Format("megatron", detect, read, write)
