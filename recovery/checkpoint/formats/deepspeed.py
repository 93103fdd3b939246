"""DeepSpeed: the files of ZeRO 1, 2 and 3, and the universal format (arXiv 2406.18820; DeepSpeed 0.19.8).

ZeRO keeps flat groups of parameters, of which each data-parallel rank has a partition. Stages 1 and 2 cut a group at
any element and say in ``param_slice_mappings`` what a rank has. Stage 3 cuts each parameter evenly, and the last
partition is padded. The universal format has a file for each parameter and key. Writing is in ``deepspeed_files``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from mainstay.recovery.checkpoint.file_errors import file_errors
from mainstay.recovery.checkpoint.formats import deepspeed_files
from mainstay.recovery.checkpoint.formats.base import Format
from mainstay.recovery.checkpoint.logical import (
    MASTER,
    LogicalCheckpoint,
    LogicalTensor,
    Shape,
    array_tensor,
    flat_boxes,
)
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.pickle_codec import PickledDict, PickledObject
from mainstay.recovery.checkpoint.torch_archive import is_plain, read_archive

_MODEL_FILE: Final = re.compile(r"^(?:(?:bf16_|fp16_)?zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt$")
_OPTIMIZER_FILE: Final = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_Part = tuple[LogicalTensor, int, int, int]
"""A flat partition, and the numbers of a ``Fragment``."""


def detect(path: Path) -> bool:
    return path.is_dir() and _folder(path) is not None


def _folder(path: Path) -> Path | None:
    """The directory of one step: ``path``, or the one that its ``latest`` names."""
    if any(_MODEL_FILE.match(file.name) for file in path.iterdir()):
        return path
    for name in ("latest", "latest_universal"):
        if (path / name).is_file():
            tag = (path / name).read_text(errors="replace").strip()
            return path / tag if tag and Path(tag).name == tag and (path / tag).is_dir() else None
    return None


def read(path: Path) -> LogicalCheckpoint:
    """Read the descriptions in all files.

    Raises:
        CheckpointError: damaged, a rank's file is missing, or the model is cut in another way than by ZeRO.
    """
    folder = _folder(path)
    assert folder is not None
    models = _files(folder, _MODEL_FILE)
    universal = (folder / "zero").is_dir()
    if not universal:
        _require_zero_only(folder, models)
    states = [_dictionary(file) for _, file in sorted(models.items())]
    with file_errors(folder, "is no DeepSpeed checkpoint of a known kind"):
        checkpoint = _model(path, states[0], universal=universal)
        if universal:
            _read_universal(checkpoint, folder, states[0])
        else:
            _read_partitions(checkpoint, folder, states)
        return checkpoint


def _files(folder: Path, pattern: re.Pattern[str]) -> dict[tuple[int, int], Path]:
    """(model-parallel rank, data-parallel rank) -> file."""
    found = ((pattern.match(file.name), file) for file in folder.iterdir())
    return {(int(match[2]), int(match[1] or 0)): file for match, file in found if match}


def _require_zero_only(folder: Path, models: dict[tuple[int, int], Path]) -> None:
    pipelined, sliced = any(folder.glob("layer_*")), any(rank for rank, _ in models)
    if pipelined or sliced:
        kind = "a pipeline or experts" if pipelined else "tensor parallelism"
        raise CheckpointError(f"{folder} was saved with {kind}: make it universal first, with ds_to_universal.py")


def _dictionary(file: Path) -> dict[str, Any]:
    item = read_archive(file)
    if not isinstance(item, dict):
        raise CheckpointError(f"{file} holds no dict")
    return item


def _model(path: Path, first: dict[str, Any], *, universal: bool) -> LogicalCheckpoint:
    plain = {key: value for key, value in first.items() if key != "module" and is_plain(value)}
    checkpoint = LogicalCheckpoint(path, "deepspeed", {}, {"step": int(first["global_steps"]), "deepspeed": plain})
    shapes = {name: tuple(shape) for group in first["param_shapes"] for name, shape in group.items()}
    sliced = universal and int(first.get("mp_world_size", 1)) > 1
    for name, tensor in first["module"].items():
        if isinstance(tensor, LogicalTensor) and not sliced and shapes.get(name, tensor.shape) == tensor.shape:
            checkpoint.add_tensor(f"model.{name}", tensor)
    return checkpoint


def _add_state(checkpoint: LogicalCheckpoint, parameter: str, key: str, tensor: LogicalTensor) -> None:
    """The full-precision copy stands for the parameter where that is missing, and is left out where it is the same."""
    model = checkpoint.tensors.get(f"model.{parameter}")
    if key == MASTER and model is None:
        checkpoint.add_tensor(f"model.{parameter}", tensor)
    elif key != MASTER or (model is not None and model.dtype != tensor.dtype):
        checkpoint.add_tensor(f"optimizer.state.{parameter}.{key}", tensor)


def _set_groups(checkpoint: LogicalCheckpoint, groups: list[dict[str, Any]], shapes: list[dict[str, Any]]) -> None:
    checkpoint.values["optimizer.param_groups"] = [
        {key: value for key, value in group.items() if key != "params" and is_plain(value)}
        | {"params": [name for index in group["params"] for name in shapes[index]]}
        for group in groups
    ]


def _keep_common(checkpoint: LogicalCheckpoint, optimizer: dict[str, Any]) -> None:
    """What DeepSpeed's optimizer has beside tensors: loading takes gradient clipping and loss scale from the files."""
    kept: dict[str, Any] = {
        key: optimizer[key] for key in ("dynamic_loss_scale", "overflow", "clip_grad") if key in optimizer
    }
    scaler = optimizer.get("loss_scaler")
    if isinstance(scaler, PickledObject) and isinstance(scaler.state, PickledDict):
        kept["loss_scaler"] = {"kind": scaler.kind.name, "state": scaler.state.text()}
    if is_plain(kept):
        checkpoint.values["deepspeed.optimizer"] = kept


# Universal


def _read_universal(checkpoint: LogicalCheckpoint, folder: Path, first: dict[str, Any]) -> None:
    common = _dictionary(folder / "zero" / "optimizer_state.pt")
    optimizer = common.get("optimizer_state_dict", {})
    _keep_common(checkpoint, common)
    _set_groups(checkpoint, common.get("param_groups") or optimizer["param_groups"], first["param_shapes"])
    step = next((state["step"] for state in optimizer.get("state", {}).values() if "step" in state), None)
    for group in first["param_shapes"]:
        for parameter in group:
            files = sorted((folder / "zero" / parameter).glob("*.pt"))
            if not files or Path(parameter).name != parameter:
                raise CheckpointError(f"{folder / 'zero' / parameter} is missing")
            found = {} if step is None else {"step": step}
            found |= {file.stem: read_archive(file) for file in files}
            for key, item in found.items():
                tensor = item["param"] if isinstance(item, dict) else item
                _add_state(checkpoint, parameter, key, _as_tensor(tensor))


def _as_tensor(item: Any) -> LogicalTensor:
    return item if isinstance(item, LogicalTensor) else array_tensor(np.array(item, np.float32), "float32")


# Partitions


def _read_partitions(checkpoint: LogicalCheckpoint, folder: Path, states: list[dict[str, Any]]) -> None:
    optimizers = _optimizers(folder, int(states[0]["dp_world_size"]))
    _keep_common(checkpoint, optimizers[0])
    stage3 = "fp32_flat_groups" in optimizers[0]
    master = "fp32_flat_groups" if stage3 else "single_partition_of_fp32_groups"
    inner = "optimizer_state_dict" if stage3 else "base_optimizer_state"
    shapes = [{name: tuple(size) for name, size in group.items()} for group in states[0]["param_shapes"]]
    found: dict[tuple[str, str], list[_Part]] = {}
    place: dict[str, int] = {}
    for rank, optimizer in enumerate(optimizers):
        for index, state in enumerate(_flat_states(optimizer[master], optimizer[inner])):
            even = deepspeed_files.even_fragments(shapes[index], rank, len(optimizers))
            fragments = [*(even if stage3 else _mapped(optimizer["param_slice_mappings"][index], place))]
            for (key, flat), (parameter, *where) in itertools.product(state.items(), fragments):
                found.setdefault((parameter, key), []).append((_as_tensor(flat), *where))
    whole = {name: shape for group in shapes for name, shape in group.items()}
    for (parameter, key), parts in found.items():
        _add_state(checkpoint, parameter, key, _whole(whole[parameter], parts))
    if stage3:
        _add_frozen(checkpoint, states)
    for alias, original in states[0].get("shared_params", {}).items():
        if f"model.{alias}" not in checkpoint.tensors:
            checkpoint.add_tensor(f"model.{alias}", checkpoint.tensor(f"model.{original}"))
    if isinstance(optimizers[0][inner], dict):
        _set_groups(checkpoint, optimizers[0][inner]["param_groups"], shapes)


def _optimizers(folder: Path, world: int) -> list[dict[str, Any]]:
    files = _files(folder, _OPTIMIZER_FILE)
    missing = sorted(set(range(world)) - {rank for _, rank in files})
    if missing:
        raise CheckpointError(f"{folder} lacks the optimizer files of data-parallel ranks {missing[:8]}")
    return [_dictionary(files[0, rank])["optimizer_state_dict"] for rank in range(world)]


def _flat_states(masters: Any, optimizer: Any) -> Iterator[dict[str, Any]]:
    """Key -> flat partition, of each group; numbers of steps too."""
    kept = optimizer["state"] if isinstance(optimizer, dict) else dict(enumerate(optimizer))
    for index, master in enumerate(masters):
        yield {MASTER: master} | kept.get(index, {})


def _whole(shape: Shape, parts: list[_Part]) -> LogicalTensor:
    kind = parts[0][0]
    if not kind.shape:  # a number, alike for all ranks
        return kind
    boxes = (box for flat, position, start, n in parts if n for box in flat_boxes(shape, position, flat, start, n))
    return dataclasses.replace(kind, shape=shape, boxes=tuple(boxes))


def _mapped(mapping: dict[str, Any], place: dict[str, int]) -> Iterator[deepspeed_files.Fragment]:
    """What a rank of stage 1 or 2 has of a group; ``place`` counts the elements of ranks before it."""
    for name, address in mapping.items():
        fragment = address.state.text()
        position = place.get(name, 0)
        place[name] = position + int(fragment["numel"])
        yield name, position, int(fragment["start"]), int(fragment["numel"])


def _add_frozen(checkpoint: LogicalCheckpoint, states: list[dict[str, Any]]) -> None:
    for name, size in (states[0].get("frozen_param_shapes") or {}).items():
        parts = []
        for rank, state in enumerate(states):
            ((_, *where),) = deepspeed_files.even_fragments({name: tuple(size)}, rank, len(states))
            parts.append((state["frozen_param_fragments"][name], *where))
        checkpoint.add_tensor(f"model.{name}", _whole(tuple(size), parts))


FORMAT = Format("deepspeed", detect, read, deepspeed_files.write)
