"""A slot becomes a part of a step; the last part to come makes the step whole.

A part is durable before its JSON reports it, and the manifest is written after the last of them: at any moment a reader
finds a whole step or none. Whoever finds all parts writes the manifest; two who do write the same.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from mainstay.probes.durable_files import sync_directory, write_durably
from mainstay.recovery.checkpoint import dcp
from mainstay.recovery.checkpoint.catalog import PartFile, RunDirectory
from mainstay.recovery.checkpoint.direct_file import DirectFile
from mainstay.recovery.checkpoint.manifest import (
    LAYOUT,
    MANIFEST,
    METADATA,
    CheckpointError,
    CheckpointPart,
    DiskConfig,
    Manifest,
    PartEntry,
    Return,
    RunInfo,
    TensorEntry,
    data_name,
    holds,
    part_name,
    read_checked,
    remove_file,
    run_name,
    write_checked,
)
from mainstay.recovery.checkpoint.torchfile import Archive
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.records import SlotRecord

ALL_BUT_DATA: Final = 4096
"""Bytes to reserve a tensor beyond its own: archive, padding, and its lines in the part."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Where to write."""

    directory: Path
    job: str
    config: DiskConfig

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory / self.config.run)


def begin_step(target: WriteTarget) -> None:
    """Make the run's directory, and write down what it has gone back from.

    Raises:
        OSError: the disk refused.
    """
    config, path = target.config, target.run.path
    path.mkdir(parents=True, exist_ok=True)
    info = RunInfo(
        run=config.run,
        job=target.job,
        generation=config.generation,
        dp=config.dp,
        pp=config.pp,
        tp=config.tp,
        depths=config.depths or msgspec.UNSET,
        returns=config.returns,
        resumed=config.resumed,
    )
    write_checked(path / run_name(config.generation), info)
    for generation in range(max(1, config.generation - 8), config.generation - 1):  # one before this stays, in case
        remove_file(path / run_name(generation))


def written(target: WriteTarget, record: SlotRecord, rank: int) -> bool:
    """Whether the part is there already. One of an older generation, be it equal, may count as given up."""
    parts = target.run.parts(record.epoch)
    return any(part.rank == rank and part.generation >= record.generation for part in parts)


def write_part(arena: Arena, record: SlotRecord, target: WriteTarget, *, direct: bool = True) -> CheckpointPart:
    """Write a verified slot durably; ``direct`` past the page cache.

    Raises:
        TornSlotError: overwritten meanwhile; nothing is left behind.
        CorruptArenaError: the bytes in memory are not those that were verified; likewise.
        OSError: the disk refused (or is too small: names the bytes); nothing is left behind.
    """
    data = arena.slot_bytes(record.slot)[: record.nbytes]
    place = (record.epoch, arena.header.rank, record.generation)
    return write_image(target, place, arena.layout, data, lambda: arena.check(record), direct=direct)


def write_image(
    target: WriteTarget,
    place: tuple[int, int, int],
    layout: Layout,
    data: Bytes,
    still: Callable[[], None] = lambda: None,
    *,
    direct: bool = True,
) -> CheckpointPart:
    """Write the bytes of a slot durably.

    Args:
        target: where.
        place: epoch, rank and generation.
        layout: of the slot.
        data: uint8 [layout.nbytes].
        still: raises if the bytes were not those of the slot all the time.
        direct: past the page cache.

    Raises:
        OSError: the disk refused; nothing is left behind. And what ``still`` raises.
    """
    begun = time.perf_counter()
    (epoch, rank, generation), config = place, target.config
    step = target.run.step(epoch)
    step.mkdir(parents=True, exist_ok=True)
    _require_room(step, layout.nbytes + ALL_BUT_DATA * len(layout.tensors))
    name = data_name(rank, generation)
    for stale in step.glob(f".{name}.*.new"):  # of a writer that was killed
        remove_file(stale)
    new = step / f".{name}.{os.getpid()}.new"
    try:
        with DirectFile(new, direct=direct) as file:
            tensors, described = _write_tensors(file, layout, data)
            still()
            file.finish()
        new.replace(step / name)
    finally:
        remove_file(new)
    sync_directory(step)
    part = CheckpointPart(
        run=config.run,
        job=target.job,
        rank=rank,
        epoch=epoch,
        generation=generation,
        dp=config.dp,
        pp=config.pp,
        tp=config.tp,
        depths=config.depths or msgspec.UNSET,
        file=name,
        nbytes=layout.nbytes,
        layout_digest=layout.digest,
        seconds=time.perf_counter() - begun,
        tensors=tuple(tensors),
        described=described,
    )
    return write_checked(step / part_name(rank, generation), part)


def _require_room(step: Path, nbytes: int) -> None:
    free = shutil.disk_usage(step).free
    if nbytes > free:
        raise OSError(f"{step} needs {nbytes} bytes, {free} are free")


def _write_tensors(file: DirectFile, layout: Layout, data: Bytes) -> tuple[list[TensorEntry], TensorEntry]:
    """The tensors, and behind them the layout, by which our slot can be made again from a state dict alone."""
    entries = [_write_tensor(file, spec, data[spec.offset : spec.offset + spec.nbytes]) for spec in layout.tensors]
    text = np.frombuffer(layout.to_json(), np.uint8)
    (spec,) = Layout.build({LAYOUT: ("uint8", (len(text),))}).tensors
    return entries, _write_tensor(file, spec, text)


def _write_tensor(file: DirectFile, spec: TensorSpec, data: Bytes) -> TensorEntry:
    file.pad()
    begin = file.size
    archive = Archive(spec, begin)
    file.append_bytes(archive.head())
    digest = file.append(data)
    file.append_bytes(archive.tail())
    nbytes = file.size - begin
    return TensorEntry(spec.name, spec.dtype, spec.shape, archive.data_at, spec.nbytes, digest, begin, nbytes)


# The step


def commit(target: WriteTarget, epoch: int, *, partial: bool = False) -> Manifest | None:
    """Write the manifest of ``epoch`` if the part of every rank that writes is there; None if not (yet).

    Args:
        target: where.
        epoch: the step.
        partial: one replica of each stage and slice is enough, if replicas are equal: no more will come.

    Raises:
        CheckpointError: a part is damaged.
        OSError: the disk refused.
    """
    run, shape = target.run, target.config.shape
    chosen = _newest(run.parts(epoch), target.config.returns)
    whole = target.config.writers() <= chosen.keys()
    if not whole and not (partial and shape.covered(chosen)):
        return None
    if _committed(run, epoch, chosen):
        return run.manifest(epoch)
    parts = [run.part(epoch, part.rank, part.generation) for part in chosen.values()]
    alike = dcp.replicated(parts)
    if not whole and not alike:
        raise CheckpointError(f"{run.step(epoch)} lacks ranks, and replicas that could stand for them differ")
    entries = tuple(PartEntry(rank=p.rank, generation=p.generation, nbytes=p.nbytes, check=p.check) for p in parts)
    manifest = Manifest(
        run=run.id, job=target.job, epoch=epoch, dp=shape.dp, pp=shape.pp, tp=shape.tp,
        depths=shape.depths or msgspec.UNSET, replicated=alike,
        time=time.time(), parts=entries, model_names=all(p.has_model_names for p in parts) or msgspec.UNSET,
    )  # fmt: skip
    write_durably(run.step(epoch) / METADATA, dcp.metadata(parts))
    return write_checked(run.step(epoch) / MANIFEST, manifest)


def _newest(parts: list[PartFile], returns: tuple[Return, ...]) -> dict[int, PartFile]:
    chosen: dict[int, PartFile] = {}
    for part in parts:  # in order of generation within a rank
        if holds(returns, part.epoch, part.generation):
            chosen[part.rank] = part
    return dict(sorted(chosen.items()))


def _committed(run: RunDirectory, epoch: int, chosen: dict[int, PartFile]) -> bool:
    """Whether a manifest of just these parts is there."""
    try:
        there = read_checked(run.step(epoch) / MANIFEST, Manifest)
    except CheckpointError:
        return False
    return {(p.rank, p.generation) for p in there.parts} == {(p.rank, p.generation) for p in chosen.values()}
