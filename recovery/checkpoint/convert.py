"""Steps as other tools want them, and theirs as ours. The only part of the disk level that needs torch.

What comes from outside is read without trust: ``.metadata`` as data (``opcodes``), tensors by ``torch.load`` with
``weights_only``, which builds nothing but tensors.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from mainstay.probes.core_types import validate_name
from mainstay.probes.durable_files import sync_directory, write_durably
from mainstay.probes.ids import uuid7
from mainstay.recovery.checkpoint import dcp, save
from mainstay.recovery.checkpoint.catalog import ResumeSource
from mainstay.recovery.checkpoint.load import part_file, verify_part
from mainstay.recovery.checkpoint.manifest import (
    LAYOUT,
    METADATA,
    CheckpointError,
    CheckpointPart,
    DiskConfig,
    Manifest,
)
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.model_names import MARK
from mainstay.recovery.mesh_shape import MeshShape

_GENERATION: Final = 1
_STEP: Final = re.compile(r"step-(\d{1,18})$")


# Out


def export_dcp(source: ResumeSource, out: Path) -> list[str]:
    """A directory of model and optimizer, each tensor once; the names in it.

    Raises:
        CheckpointError: a tensor does not match its digest; ``out`` is not there then.
    """
    parts = [_without_own(part) for part in _parts(source)]
    listed = dcp.keys(parts, plain=True)
    new = out.with_name(f".{out.name}.new")
    new.mkdir(parents=True)
    try:
        wanted = {rank for rank, _ in listed}
        for part in parts:
            if part.rank in wanted:
                verify_part(source.run, part)
                shutil.copyfile(source.run.step(part.epoch) / part.file, new / part.file)
        write_durably(new / METADATA, dcp.metadata(parts, plain=True))
        new.replace(out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    sync_directory(out.parent)
    return sorted(listed.values())


def export_torch(source: ResumeSource, out: Path) -> list[str]:
    """One file that ``torch.load(weights_only=True)`` reads as a flat dict; the names in it.

    Raises:
        CheckpointError: a tensor does not match its digest; ``out`` is not there then.
    """
    parts = {part.rank: _without_own(part) for part in _parts(source)}
    names = dcp.keys(list(parts.values()), plain=True)
    state = {name: _tensor(source, parts[rank], slot) for (rank, slot), name in names.items()}
    new = out.with_name(f".{out.name}.new")
    try:
        torch.save(state, new)
        new.replace(out)
    finally:
        new.unlink(missing_ok=True)
    return sorted(state)


def _parts(source: ResumeSource) -> list[CheckpointPart]:
    epoch = source.manifest.epoch
    return [source.run.part(epoch, entry.rank, entry.generation) for entry in source.manifest.parts]


def _without_own(part: CheckpointPart) -> CheckpointPart:
    """The part without what means nothing to other programs: random numbers, our scalars, our layout.

    The mark stays, without being listed: it says what the names are.
    """
    return msgspec.structs.replace(
        part, tensors=tuple(t for t in part.tensors if t.name == MARK or not dcp.own(t.name))
    )


def _tensor(source: ResumeSource, part: CheckpointPart, name: str) -> torch.Tensor:
    entry = next(tensor for tensor in part.tensors if tensor.name == name)
    raw = np.empty(entry.nbytes, np.uint8)
    with part_file(source.run, part) as read:
        read(entry, raw)
    return torch.from_numpy(raw).view(getattr(torch, entry.dtype)).reshape(entry.shape)


# In


def import_dcp(source: Path, directory: Path, *, dp: int, pp: int, tp: int) -> Manifest:
    """A step of a new run in ``directory``, out of what a Mainstay job kept in ``source``.

    Args:
        source: a ``torch.distributed.checkpoint`` directory, whoever wrote it last.
        directory: of checkpoints.
        dp: data-parallel size of the job whose state it is.
        pp: its pipeline stages.
        tp: its tensor slices.

    Raises:
        CheckpointError: not such a directory, or a rank's random numbers and scalars are not in it, without which no
            rank continues: a checkpoint of another program cannot be resumed from.
    """
    if min(dp, pp, tp) < 1:
        raise CheckpointError(f"a job of dp={dp} pp={pp} tp={tp} cannot be")
    epoch = _epoch(source)
    shape = MeshShape(dp=dp, pp=pp, tp=tp)
    tensors = {tensor.key: tensor for tensor in dcp.read_metadata(source)}
    plans = [_plan(tensors, shape, rank, source) for rank in range(shape.world_size)]
    config = DiskConfig(run=uuid7(), generation=_GENERATION, every=1, dp=dp, pp=pp, tp=tp)
    target = WriteTarget(directory, validate_name("imported", "job"), config)
    save.begin_step(target)
    try:
        for rank, plan in enumerate(plans):
            _write(target, epoch, rank, {name: _load(source, found) for name, found in plan.items()})
        made = save.commit(target, epoch)
        assert made is not None
    except BaseException:  # boundary: after any failure, half a run must not stay
        shutil.rmtree(target.run.path, ignore_errors=True)
        raise
    return made


def _epoch(source: Path) -> int:
    match = _STEP.search(source.resolve().name)
    if match is None:
        raise CheckpointError(f"{source} must be named step-N, so that training continues from step N")
    return int(match[1])


def _plan(
    tensors: dict[str, dcp.ForeignTensor], shape: MeshShape, rank: int, source: Path
) -> dict[str, dcp.ForeignTensor]:
    """Name in the slot -> tensor, in the order of the slot."""
    own = f"rank{rank}."
    if own + LAYOUT not in tensors:
        raise CheckpointError(f"{source} lacks {own}{LAYOUT}: it is no step of a Mainstay job with {shape}")
    text = _bytes(_load(source, tensors[own + LAYOUT])).tobytes()
    layout = Layout.from_json(text)
    role = dcp.prefix(shape, rank, model_names=shape.pp == 1 or MARK in layout.specs())
    found: dict[str, dcp.ForeignTensor] = {}
    for spec in layout.tensors:
        name = dcp.public_name(spec.name)
        tensor = tensors.get(own + name) or tensors.get(role + name)
        if tensor is None:
            raise CheckpointError(f"{source} lacks {role}{name}, which rank {rank} needs")
        if (tensor.dtype, tensor.shape) != (spec.dtype, spec.shape):
            raise CheckpointError(
                f"{source}: {tensor.key} is {tensor.dtype}{list(tensor.shape)}, not as rank {rank} has it"
            )
        found[spec.name] = tensor
    return found


def _load(source: Path, tensor: dcp.ForeignTensor) -> torch.Tensor:
    path = source / tensor.file
    try:
        with path.open("rb") as file:
            file.seek(tensor.at)
            raw = file.read(tensor.nbytes)
        loaded: Any = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise CheckpointError(f"{path}: tensor {tensor.key!r} cannot be read: {error}") from error
    except Exception as error:  # boundary: torch.load raises UnpicklingError, of a module that is not imported here
        raise CheckpointError(f"{path}: tensor {tensor.key!r} cannot be read: {type(error).__name__}") from error
    if not isinstance(loaded, torch.Tensor) or tuple(loaded.shape) != tensor.shape:
        raise CheckpointError(f"{path}: {tensor.key!r} is not the tensor that the metadata describes")
    return loaded


def _write(target: WriteTarget, epoch: int, rank: int, tensors: dict[str, torch.Tensor]) -> None:
    layout = Layout.build({name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()})
    slot = np.zeros(layout.nbytes, np.uint8)
    for spec in layout.tensors:
        slot[spec.offset : spec.offset + spec.nbytes] = _bytes(tensors[spec.name])
    save.write_image(target, (epoch, rank, _GENERATION), layout, slot)


def _bytes(tensor: torch.Tensor) -> Bytes:
    raw: Bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw
