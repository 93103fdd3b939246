"""Mainstay's own steps (``docs/decisions/0020``): a directory of runs, a run, or one step.

Names are those of the step's ``.metadata``: what is a rank's own stands behind ``rankR.``. Writing makes a new run with
one step to resume from. What only ranks have (random numbers, scalars, the layout of their slots) must be in the source
or in another step of the job.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from mainstay.probes.ids import uuid7
from mainstay.recovery.checkpoint import dcp, save
from mainstay.recovery.checkpoint.catalog import RunDirectory, find
from mainstay.recovery.checkpoint.formats.base import Format, WriteOptions
from mainstay.recovery.checkpoint.logical import (
    Array,
    Box,
    LogicalCheckpoint,
    LogicalTensor,
    Shape,
    array_tensor,
    file_reader,
)
from mainstay.recovery.checkpoint.manifest import (
    LAYOUT,
    MANIFEST,
    CheckpointError,
    CheckpointPart,
    DiskConfig,
    Manifest,
    PartEntry,
    TensorEntry,
    step_name,
)
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.checkpoint.tensor_index import TensorIndex
from mainstay.recovery.checkpoint.torch_archive import is_plain
from mainstay.recovery.memory import global_slices, varlen_buffer
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.global_slices import SLICES
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.model_names import MARK
from mainstay.recovery.mesh_shape import MeshShape

_STEP: Final = re.compile(r"step-(\d{1,18})$")
RANK: Final = re.compile(r"^rank\d+\.")
_GENERATION: Final = 1
_SHAPE: Final = "mainstay.shape"
_DECODED: Final = 8
"""Tensors of encoded parts in memory: the slices of tensor-parallel ranks are read in turn."""


def detect(path: Path) -> bool:
    return path.is_dir() and (
        (path / MANIFEST).is_file() or any(path.glob("run.g*.json")) or any(path.glob("*/run.g*.json"))
    )


def read(path: Path) -> LogicalCheckpoint:
    """Read the manifest and the parts' descriptions.

    Raises:
        CheckpointError: no step is whole, or a part is not the one that the manifest names.
    """
    run, manifest = _find(path.resolve())
    parts = [named_part(run, manifest, entry) for entry in manifest.parts]
    entries = {(part.rank, tensor.name): (part, tensor) for part in parts for tensor in part.listed}
    tensors: dict[str, LogicalTensor] = {}
    index = TensorIndex(run, [])
    decoded = functools.lru_cache(_DECODED)(lambda rank, name: index.array(*entries[rank, name]))
    for place, name in dcp.keys(parts).items():
        part, piece = entries[place]
        boxes = tensors[name].boxes if name in tensors else ()
        if part.is_encoded:
            box = _encoded_box(part, piece, functools.partial(decoded, *place))
        else:
            reader = file_reader(run.step(part.epoch) / part.file, piece.at, piece.shape, piece.dtype)
            verify = functools.partial(index.array, part, piece)
            box = Box(piece.slice.offsets, piece.shape, reader, f"rank {part.rank}", verify)
        tensors[name] = LogicalTensor(name, piece.dtype, piece.slice.global_shape, (*boxes, box))
    shape = {"dp": manifest.dp, "pp": manifest.pp, "tp": manifest.tp}
    near = "" if manifest.quantized is msgspec.UNSET else str(manifest.quantized)
    values, parity = {"step": manifest.epoch, _SHAPE: shape}, run.parity_bytes(manifest.epoch)
    checkpoint = LogicalCheckpoint(path, "mainstay", tensors, values, near, parity)
    _add_scalars(checkpoint, sorted(part.rank for part in parts))
    return checkpoint


def named_part(run: RunDirectory, manifest: Manifest, entry: PartEntry) -> CheckpointPart:
    """The part that the manifest means by ``entry``.

    Raises:
        CheckpointError: it is missing, damaged, or another one.
    """
    part = run.part(manifest.epoch, entry.rank, entry.generation)
    if part.check != entry.check:
        raise CheckpointError(f"{run.path}: the part of rank {entry.rank} is not the one that the manifest names")
    return part


def _find(path: Path) -> tuple[RunDirectory, Manifest]:
    step = _STEP.search(path.name)
    if (path / MANIFEST).is_file() and step:
        return RunDirectory(path.parent), RunDirectory(path.parent).manifest(int(step[1]))
    source = find(path.parent, path.name) if any(path.glob("run.g*.json")) else find(path)
    return source.run, source.manifest


def _encoded_box(part: CheckpointPart, entry: TensorEntry, decoded: Callable[[], Array]) -> Box:
    base = f" to {step_name(part.base[0])}" if part.base is not msgspec.UNSET else ""
    how = f"as differences{base}" if part.quantized is msgspec.UNSET else "quantized"
    place = f"rank {part.rank}, of which {part.encoded} bytes are on disk {how}"
    return Box(entry.slice.offsets, entry.shape, lambda region: np.array(decoded()[region]), place, decoded)


def _add_scalars(checkpoint: LogicalCheckpoint, ranks: Sequence[int]) -> None:
    """Hyperparameters and extras of the first rank, parameters of all; a damaged blob is found by its digest."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError):
        blobs = [blob for rank in ranks if (blob := checkpoint.tensors.get(f"rank{rank}.{dcp.BLOB}")) is not None]
        raw = [varlen_buffer.read_bytes(blob.read().view(np.uint8)) for blob in blobs]
        told = [msgspec.msgpack.decode(scalars, type=dict[str, Any]) for scalars in raw] or [{}]
        optimizers = [scalars.get("optimizer", {}) for scalars in told]
        kept = {"optimizer.param_groups": _groups(optimizers), "extra": told[0].get("extra")}
        for optimizer in reversed(optimizers):
            for parameter, state in optimizer.get("state", {}).items():
                kept |= {f"optimizer.state.{parameter}.{key}": value for key, value in state.items()}
        checkpoint.values |= {name: value for name, value in kept.items() if value and is_plain(value)}


def _groups(optimizers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first rank's groups, with the names of their parameters on all ranks where those say them."""
    groups: list[dict[str, Any]] = optimizers[0].get("groups", [])
    names = [optimizer.get("parameters", []) for optimizer in optimizers]
    if any(len(of) != len(groups) for of in names):
        return groups
    united = [dict.fromkeys(itertools.chain.from_iterable(of)) for of in zip(*names, strict=True)]
    return [group | {"params": [*of]} for group, of in zip(groups, united, strict=True)]


# Writing


def write(checkpoint: LogicalCheckpoint, out: Path, options: WriteOptions) -> None:
    """Add a run with one step to the directory ``out``.

    Raises:
        CheckpointError: the source lacks a tensor that a rank needs; ``out`` has no new run then.
    """
    tensors = dict(checkpoint.tensors)
    values = checkpoint.values
    if options.like is not None:
        like = read(options.like)
        tensors = _own(like, checkpoint) | tensors
        values = like.values
    kept = values.get(_SHAPE, {})
    sizes = {axis: getattr(options, axis) or kept.get(axis, 1) for axis in ("dp", "pp", "tp")}
    shape = MeshShape(**sizes)
    epoch = _epoch(checkpoint)
    plans = [_plan(tensors, shape, rank, checkpoint.path) for rank in range(shape.world_size)]
    config = DiskConfig(run=uuid7(), generation=_GENERATION, every=1, **sizes)
    target = WriteTarget(out, "imported", config)
    save.begin_step(target)
    try:
        for rank, (layout, plan) in enumerate(plans):
            slot = np.zeros(layout.nbytes, np.uint8)
            for spec in layout.tensors:
                tensor, first = plan[spec.name]
                region = tuple(slice(at, at + n) for at, n in zip(first, spec.shape, strict=True))
                spec.view(slot)[...] = tensor.read(region)
            save.write_image(target, (epoch, rank, _GENERATION), layout, slot)
        made = save.commit(target, epoch)
        assert made is not None  # every rank was just written
    except BaseException:  # boundary: after any failure, half a run must not stay
        shutil.rmtree(target.run.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            out.rmdir()
        raise


def _own(like: LogicalCheckpoint, checkpoint: LogicalCheckpoint) -> dict[str, LogicalTensor]:
    """What only the ranks of ``like`` have, with the hyperparameters of ``checkpoint`` where it says them."""
    own = {name: t for name, t in like.tensors.items() if dcp.own(RANK.sub("", name))}
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in checkpoint.values.get("optimizer.param_groups", [])
    ]
    for name, tensor in own.items():
        if name.endswith(dcp.BLOB):
            raw = tensor.read().view(np.uint8)
            scalars = msgspec.msgpack.decode(varlen_buffer.read_bytes(raw), type=dict[str, Any])
            optimizer = scalars.get("optimizer", {"groups": []})
            optimizer["absent"] = []  # the source has what an optimizer that has not stepped would lack
            if len(groups) == len(optimizer["groups"]):
                optimizer["groups"] = [old | new for old, new in zip(optimizer["groups"], groups, strict=True)]
            varlen_buffer.write_bytes(msgspec.msgpack.encode(scalars), raw)
            own[name] = replace(array_tensor(raw, "uint8"), name=name)
    return own


def _epoch(checkpoint: LogicalCheckpoint) -> int:
    if "step" in checkpoint.values:
        return checkpoint.step
    match = _STEP.search(checkpoint.path.resolve().name)
    if match is None:
        raise CheckpointError(
            f"{checkpoint.path} does not say its step: name it step-N, so that training continues from step N"
        )
    return int(match[1])


def _plan(
    tensors: dict[str, LogicalTensor], shape: MeshShape, rank: int, source: Path
) -> tuple[Layout, dict[str, tuple[LogicalTensor, Shape]]]:
    """The rank's slot; and of each name in it the tensor, and where the rank's slice of that begins."""
    own = f"rank{rank}."
    if own + LAYOUT not in tensors:
        raise CheckpointError(
            f"{source} lacks {own}{LAYOUT}: it is no step of a Mainstay job with {shape}; --like gives a step that is"
        )
    cut = own + SLICES in tensors
    try:
        layout = Layout.from_json(tensors[own + LAYOUT].read().tobytes())
        slices = global_slices.decode(tensors[own + SLICES].read().view(np.uint8)) if cut else {}
    except (ArenaError, ValueError) as error:
        raise CheckpointError(f"{source}: the layout of rank {rank}: {error}") from error
    named = shape.pp == 1 or MARK in layout.specs()
    role = dcp.prefix(shape, rank, model_names=named, sliced=cut)
    found: dict[str, tuple[LogicalTensor, Shape]] = {}
    for spec in layout.tensors:
        name = dcp.public_name(spec.name)
        tensor = tensors.get(own + name) or tensors.get(role + name)
        if tensor is None:
            raise CheckpointError(f"{source} lacks {role}{name}, which rank {rank} needs")
        place = slices.get(spec.name) or global_slices.whole(spec.shape)
        if (tensor.dtype, tensor.shape) != (spec.dtype, place.global_shape) or not place.fits(spec.shape):
            raise CheckpointError(
                f"{source}: {tensor.name} is {tensor.dtype}{list(tensor.shape)}, not as rank {rank} has it"
            )
        found[spec.name] = tensor, place.offsets
    return layout, found


FORMAT = Format("mainstay", detect, read, write)
