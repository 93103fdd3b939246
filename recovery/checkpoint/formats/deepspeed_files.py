"""The files that DeepSpeed loads: universal ones for any number of ranks, or those of ZeRO 1, 2 or 3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mainstay.recovery.checkpoint.formats.base import WriteOptions
from mainstay.recovery.checkpoint.logical import MASTER, LogicalCheckpoint, LogicalTensor, Shape, array_tensor, joined
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.pickle_codec import Name, PickledCall, PickledObject
from mainstay.recovery.checkpoint.torch_archive import save_file
from mainstay.recovery.memory.layout import DTYPES

_VERSION: Final = "0.19.8"
"""Of DeepSpeed, whose files these are like."""
_ALIGNMENT: Final = 2
"""Elements for each rank to which stages 1 and 2 pad a group: ``nccl_start_alignment_factor``."""
_SUB_GROUP: Final = 1_000_000_000
"""Elements of a rank beyond which stage 3 cuts a group in several: ``sub_group_size``."""
Fragment = tuple[str, int, int, int]
"""(parameter, its first element, start in the flat partition of a rank, number of elements)."""


def even_fragments(shapes: dict[str, Shape], rank: int, world: int) -> Iterator[Fragment]:
    """What a rank of stage 3 has of a group: an even part of each parameter, with padding between them."""
    start = 0
    for name, shape in shapes.items():
        numel = math.prod(shape)
        part = -(-numel // world)
        first = min(rank * part, numel)
        yield name, first, start, min(part, numel - first)
        start += part


@dataclass(slots=True)
class _Group:
    options: dict[str, Any]
    state: dict[str, dict[str, LogicalTensor]]
    """Parameter -> key -> tensor, with the full-precision copy."""

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: keys[MASTER].shape for name, keys in self.state.items()}

    def keys_alike(self) -> list[str]:
        """Keys of tensors that are as large as their parameter."""
        first = next(iter(self.state.values()), {})
        return [key for key, tensor in first.items() if tensor.shape == first[MASTER].shape]

    def scalars(self) -> dict[str, LogicalTensor]:
        """Small tensors, alike for all parameters of a group: the number of steps."""
        first = next(iter(self.state.values()), {})
        return {key: tensor for key, tensor in first.items() if key not in self.keys_alike()}


def write(checkpoint: LogicalCheckpoint, out: Path, options: WriteOptions) -> None:
    """Write ``latest`` (or ``latest_universal``) and the directory of the step.

    Raises:
        CheckpointError: the checkpoint lacks the optimizer, its groups, or a parameter in full precision.
    """
    groups = [_group(checkpoint, group) for group in checkpoint.param_groups()]
    if not any(group.state for group in groups):
        raise CheckpointError(f"{checkpoint.path} has no optimizer state, which DeepSpeed loads the parameters with")
    tag = f"global_step{checkpoint.step}"
    folder = out / tag
    folder.mkdir(parents=True)
    world = options.dp or int(checkpoint.values.get("deepspeed", {}).get("dp_world_size", 1))
    if options.zero_stage == 0:
        _write_universal(checkpoint, groups, folder)
    elif options.zero_stage in {1, 2, 3}:
        _write_partitions(checkpoint, groups, folder, options.zero_stage, world)
    else:
        raise CheckpointError(f"--zero-stage {options.zero_stage} must be 1, 2, or 3")
    (out / ("latest" if options.zero_stage else "latest_universal")).write_text(tag)


def _group(checkpoint: LogicalCheckpoint, group: dict[str, Any]) -> _Group:
    state = checkpoint.optimizer_state()
    kept = {}
    for name in group.pop("params", []):
        if Path(name).name != name:  # it becomes the name of a directory
            raise CheckpointError(f"{checkpoint.path}: DeepSpeed cannot have a parameter called {name!r}")
        master = state.get(name, {}).get(MASTER) or checkpoint.tensor(f"model.{name}")
        if master.dtype != "float32":
            raise CheckpointError(
                f"{checkpoint.path} has parameter {name!r} only as {master.dtype}: DeepSpeed needs it as float32"
            )
        kept[name] = {MASTER: master} | {key: t for key, t in state.get(name, {}).items() if key != MASTER}
    return _Group(group, kept)


def _model_states(checkpoint: LogicalCheckpoint, groups: list[_Group], world: int, stage: int) -> dict[str, Any]:
    trained = {name for group in groups for name in group.state}
    model = checkpoint.model()
    if stage == 3:
        empty = ((name, model[name].dtype) for name in trained & model.keys())
        model |= {name: array_tensor(np.empty(0, DTYPES[dtype]), dtype) for name, dtype in empty}
    kept: dict[str, Any] = checkpoint.values.get("deepspeed", {})
    return {
        "lr_scheduler": None, "data_sampler": None, "random_ltd": None, "skipped_steps": 0, "ds_config": {},
        "global_samples": 0, "optimizer": None, "shared_params": {}, "frozen_param_shapes": None,
        "frozen_param_fragments": None,
    } | kept | {
        "module": model,
        "buffer_names": [name for name in model if name not in trained],
        "param_shapes": [
            {name: PickledCall(Name("torch", "Size"), (shape,)) for name, shape in group.shapes.items()}
            for group in groups
        ],
        "global_steps": checkpoint.step,
        "dp_world_size": world,
        "mp_world_size": 1,
        "ds_version": _VERSION,
    }  # fmt: skip


def _common(checkpoint: LogicalCheckpoint, stage: int) -> dict[str, Any]:
    """Gradient clipping and loss scale of the source; without them an engine keeps its own, except in stage 3."""
    kept = dict(checkpoint.values.get("deepspeed.optimizer", {}))
    default = {"kind": "LossScaler", "state": {"cur_scale": 1.0, "dynamic": False}}
    scaler = kept.pop("loss_scaler", default if stage == 3 else None)
    if scaler is not None:
        kind = "DynamicLossScaler" if scaler["kind"] == "DynamicLossScaler" else "LossScaler"
        kept["loss_scaler"] = PickledObject(Name("deepspeed.runtime.fp16.loss_scaler", kind), scaler["state"])
    return ({"dynamic_loss_scale": False, "overflow": False} if stage == 3 else {}) | kept | {
        "zero_stage": PickledCall(Name("deepspeed.runtime.zero.config", "ZeroStageEnum"), (stage,)),
        "ds_version": _VERSION,
    }  # fmt: skip


def _flat_groups(groups: list[_Group]) -> list[dict[str, Any]]:
    """Each group as one flat parameter, as ZeRO gives it to the optimizer."""
    return [group.options | {"params": [index]} for index, group in enumerate(groups)]


def _write_universal(checkpoint: LogicalCheckpoint, groups: list[_Group], folder: Path) -> None:
    save_file(folder / "mp_rank_00_model_states.pt", _model_states(checkpoint, groups, 1, 1))
    save_file(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", _model_states(checkpoint, groups, 1, 3))
    for group in groups:
        for name, state in group.state.items():
            (folder / "zero" / name).mkdir(parents=True)
            for key, tensor in state.items():
                save_file(
                    folder / "zero" / name / f"{key}.pt", {"param": tensor} if key in group.keys_alike() else tensor
                )
    flat = _flat_groups(groups)
    optimizer = {"state": {index: group.scalars() for index, group in enumerate(groups)}, "param_groups": flat}
    save_file(
        folder / "zero" / "optimizer_state.pt",
        _common(checkpoint, 1) | {"param_groups": flat, "optimizer_state_dict": optimizer},
    )


def _write_partitions(
    checkpoint: LogicalCheckpoint, groups: list[_Group], folder: Path, stage: int, world: int
) -> None:
    if stage == 3 and any(sum(map(math.prod, group.shapes.values())) > _SUB_GROUP * world for group in groups):
        raise CheckpointError(f"{checkpoint.path} has groups that ZeRO 3 splits: write the universal format instead")
    model = _model_states(checkpoint, groups, world, stage)
    prefix = "bf16_" if any(tensor.dtype == "bfloat16" for tensor in checkpoint.model().values()) else ""
    if stage < 3:
        save_file(folder / "mp_rank_00_model_states.pt", model)
    for rank in range(world):
        stem = f"zero_pp_rank_{rank}_mp_rank_00"
        if stage == 3:
            save_file(folder / f"{stem}_model_states.pt", model)
        part = _stage3(groups, rank, world) if stage == 3 else _stage12(groups, rank, world)
        state = {"optimizer_state_dict": _common(checkpoint, stage) | part, "ds_config": {}, "ds_version": _VERSION}
        save_file(folder / f"{prefix}{stem}_optim_states.pt", state)


def _stage3(groups: list[_Group], rank: int, world: int) -> dict[str, Any]:
    flat = []
    for group in groups:
        fragments = list(even_fragments(group.shapes, rank, world))
        length = sum(-(-math.prod(shape) // world) for shape in group.shapes.values())
        flat.append({key: _flat(group, key, fragments, length) for key in group.keys_alike()})
    return {
        "partition_count": world,
        "fp32_flat_groups": [state[MASTER] for state in flat],
        "optimizer_state_dict": _optimizer(groups, flat),
    }


def _flat(group: _Group, key: str, fragments: list[Fragment], length: int) -> LogicalTensor:
    """A flat partition [length] of fragments, with zeros between and behind them."""
    parts, at = [], 0
    for name, first, start, count in [*fragments, ("", 0, length, 0)]:
        parts.append((LogicalTensor("", "float32", (start - at,), ()), 0, start - at))
        if count:
            parts.append((group.state[name][key], first, first + count))
        at = start + count
    return joined("float32", parts)


def _stage12(groups: list[_Group], rank: int, world: int) -> dict[str, Any]:
    flat, masters, mappings, paddings = [], [], [], []
    for group in groups:
        total = sum(map(math.prod, group.shapes.values()))
        part = -(-total // (_ALIGNMENT * world)) * _ALIGNMENT
        begin, end = min(rank * part, total), min((rank + 1) * part, total)
        fragments = list(_fragments(group.shapes, begin, end))
        flat.append({key: _flat(group, key, fragments, part) for key in group.keys_alike()})
        masters.append(_flat(group, MASTER, fragments, end - begin))
        mappings.append({name: _address(start, count) for name, _, start, count in fragments})
        paddings.append(part - end + begin)
    return {
        "base_optimizer_state": _optimizer(groups, flat),
        "single_partition_of_fp32_groups": masters,
        "group_paddings": paddings,
        "param_alignment_paddings": [[0] * len(group.state) for group in groups],
        "partition_count": [world] * len(groups),
        "param_slice_mappings": mappings,
    }


def _fragments(shapes: dict[str, Shape], begin: int, end: int) -> Iterator[Fragment]:
    """What a rank of stage 1 or 2 has of a group, whose elements [begin, end) are its partition."""
    at = 0
    for name, shape in shapes.items():
        numel = math.prod(shape)
        first, last = max(begin, at), min(end, at + numel)
        if first < last:
            yield name, first - at, first - begin, last - first
        at += numel


def _address(start: int, count: int) -> PickledObject:
    return PickledObject(Name("deepspeed.utils.tensor_fragment", "fragment_address"), {"numel": count, "start": start})


def _optimizer(groups: list[_Group], flat: list[dict[str, LogicalTensor]]) -> dict[str, Any]:
    """The state dict of the optimizer over flat parameters."""
    state = {
        index: group.scalars() | {key: tensor for key, tensor in tensors.items() if key != MASTER}
        for index, (group, tensors) in enumerate(zip(groups, flat, strict=True))
    }
    return {"state": state, "param_groups": _flat_groups(groups)}
