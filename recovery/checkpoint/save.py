"""A slot becomes a part of a step; the last part to come makes the step whole.

A part is durable before its JSON reports it, and the manifest is written after the last of them: at any moment a reader
finds a whole step or none. Whoever finds all parts writes the manifest; two who do write the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.durable_files import sync_directory, write_durably
from mainstay.recovery.checkpoint import dcp
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.direct_file import DirectFile
from mainstay.recovery.checkpoint.division import is_covered, weights_of
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.load import needed_steps
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    METADATA,
    QUANTIZED,
    CheckpointError,
    CheckpointPart,
    DiskConfig,
    Manifest,
    PartEntry,
    Return,
    RunInfo,
    TensorEntry,
    data_name,
    encoded_name,
    holds,
    parity_names,
    part_name,
    read_checked,
    remove_file,
    run_name,
    write_checked,
)
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.checkpoint.slot_tensors import write_tensors
from mainstay.recovery.checkpoint.upload_state import CLAIM, LEFT, UPLOAD
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotRecord
from mainstay.recovery.memory.shard import SHARED

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


def target_of(run: RunDirectory) -> WriteTarget:
    """What the writers of a run were told, as far as the run says it: enough to ``commit`` its steps.

    Raises:
        CheckpointError: the run does not say it.
    """
    info = run.info()
    return WriteTarget(run.path.parent, info.job, DiskConfig(every=0, **_shared(info, DiskConfig)))


def _shared(record: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Fields that records of ``kind`` have too; what is empty is left out."""
    fields = msgspec.structs.asdict(record)
    return {name: fields[name] for name in kind.__struct_fields__ if fields.get(name)}


def begin_step(target: WriteTarget) -> None:
    """Make the run's directory, and write down what it has gone back from.

    Raises:
        OSError: the disk refused.
    """
    config, path = target.config, target.run.path
    path.mkdir(parents=True, exist_ok=True)
    write_checked(path / run_name(config.generation), RunInfo(job=target.job, **_shared(config, RunInfo)))
    for generation in range(max(1, config.generation - 8), config.generation - 1):  # one before this stays, in case
        remove_file(path / run_name(generation))


def written(target: WriteTarget, record: SlotRecord, rank: int, *, final: bool = False) -> bool:
    """Whether the part is there already. One of an older generation, be it equal, may count as given up.

    At the end (``final``) a share counts only in a whole step: perhaps no replica is left that writes the others. A
    quantized part does not: the last step of a job is exact.
    """
    run = target.run
    there = [p for p in run.parts(record.epoch) if p.rank == rank and p.generation >= record.generation]
    if not (there and final):
        return bool(there)
    part = run.part(record.epoch, rank, there[-1].generation)
    return part.quantized is msgspec.UNSET and ((run.step(record.epoch) / MANIFEST).exists() or not part.is_share)


def write_part(
    arena: Arena, record: SlotRecord, target: WriteTarget, *, direct: bool = True, final: bool = False
) -> CheckpointPart:
    """Write a verified slot durably, or the rank's share of it; ``direct`` past the page cache, ``final`` all of it.

    Raises:
        TornSlotError: overwritten meanwhile; nothing is left behind.
        CorruptArenaError: the bytes in memory are not those that were verified; likewise.
        OSError: the disk refused (or is too small: names the bytes); nothing is left behind.
    """
    data = arena.slot_bytes(record.slot)[: record.nbytes]
    epoch, rank, generation = record.epoch, arena.header.rank, record.generation
    share = None if final else target.config.share(rank)
    weights = weights_of(target.run, epoch, generation, target.config.sharers(rank)) if share else ()
    return write_image(
        target, (epoch, rank, generation), arena.layout, data, partial(arena.check, record), direct=direct,
        share=share, weights=weights,
    )  # fmt: skip


def write_image(
    target: WriteTarget,
    place: tuple[int, int, int],
    layout: Layout,
    data: Bytes,
    check: Callable[[int | None], None] | None = None,
    *,
    direct: bool = True,
    share: tuple[int, int] | None = None,
    weights: tuple[int, ...] = (),
    layouts: dict[int, str] | None = None,
    replaces: bool = False,
) -> CheckpointPart:
    """Write the bytes of a slot durably.

    Args:
        target: where.
        place: epoch, rank and generation.
        layout: of the slot.
        data: uint8 [layout.nbytes].
        check: is given the digest of the slot as it was written, or None if it was not written whole. Raises if the
            bytes were not those of the slot all the time.
        direct: past the page cache.
        share: (index, count): write only this replica's share of what replicas hold alike.
        weights: of all shares; empty: they are equal.
        layouts: by digest, of the slots that this is parity of.
        replaces: the same bits are there, encoded, and stay until this is durable.

    Raises:
        OSError: the disk refused; nothing is left behind. And what ``check`` raises.
    """
    begun = time.perf_counter()
    epoch, rank, generation = place
    step = target.run.step(epoch)
    name = data_name(rank, generation) if layouts is None else parity_names(rank, generation)[0]
    make_room(step, name, layout.nbytes + ALL_BUT_DATA * len(layout.tensors))
    part, encoded = step / part_name(rank, generation), step / encoded_name(rank, generation)
    # Of a process that was killed; or quantized: the step is incomplete now.
    if layouts is None and not replaces and encoded.exists():
        for stale in (step / MANIFEST, step / UPLOAD, part, encoded) if part.exists() else (encoded,):
            remove_file(stale)
    new = step / f".{name}.{os.getpid()}.new"
    try:
        with DirectFile(new, direct=direct) as file:
            tensors, described, found, alike = write_tensors(file, layout, data, share, weights)
            file.finish()
        if check is not None:  # not before: bytes go from the slot itself where the page cache copies
            check(found)
        _put_in_place(new, step / name, part, is_whole=layouts is None and share is None)
    finally:
        remove_file(new)
    sync_directory(step)
    report = report_part(
        target, place, layout, tensors, described, file=name, seconds=time.perf_counter() - begun,
        nbytes=layout.nbytes if share is None else sum(entry.nbytes for entry in tensors), share=share or msgspec.UNSET,
        weights=weights or msgspec.UNSET, alike_digest=alike, layouts=layouts or msgspec.UNSET,
    )  # fmt: skip
    if replaces:
        remove_file(encoded)
    return report


def _put_in_place(new: Path, path: Path, part: Path, *, is_whole: bool) -> None:
    """Rename ``new``; before a whole state takes the place of a share, ``part`` goes, which describes other bytes."""
    with contextlib.suppress(CheckpointError):  # none is there, or it is damaged
        if is_whole and read_checked(part, CheckpointPart).is_share:
            remove_file(part)
    new.replace(path)


def report_part(
    target: WriteTarget, place: tuple[int, int, int], layout: Layout, tensors: Iterable[TensorEntry],
    described: TensorEntry, **fields: Any,
) -> CheckpointPart:  # fmt: skip
    """Report that the file of a part is durable; ``fields`` are those of ``CheckpointPart`` that say how it is stored.

    Raises:
        OSError: the disk refused.
    """
    (epoch, rank, generation), config = place, target.config
    part = CheckpointPart(
        run=config.run, job=target.job, rank=rank, epoch=epoch, generation=generation,
        dp=config.dp, pp=config.pp, tp=config.tp, depths=config.depths or msgspec.UNSET,
        layout_digest=layout.digest,
        tensors=tuple(tensors),
        described=described,
        **fields,
    )  # fmt: skip
    name = part_name(rank, generation) if part.layouts is msgspec.UNSET else parity_names(rank, generation)[1]
    return write_checked(target.run.step(epoch) / name, part)


def make_room(step: Path, name: str, nbytes: int) -> None:
    """Make the directory, and remove what a writer that was killed has left of ``name``."""
    step.mkdir(parents=True, exist_ok=True)
    for stale in step.glob(f".{name}.*.new"):
        remove_file(stale)
    free = shutil.disk_usage(step).free
    if nbytes > free:
        raise OSError(f"{step} needs {nbytes} bytes, {free} are free")


# The step


def commit(target: WriteTarget, epoch: int, *, partial: bool = False) -> Manifest | None:
    """Write the manifest of ``epoch`` if the part of every rank that writes is there; None if not (yet).

    Args:
        target: where.
        epoch: the step.
        partial: one replica of each stage and slice is enough, if replicas are known to be equal: no more will come.

    Raises:
        CheckpointError: a part is damaged.
        OSError: the disk refused.
    """
    run, shape = target.run, target.config.shape
    chosen = complete_parts(target.config, run.parts(epoch), partial=partial)
    if chosen is None:
        return None
    names = {(part.rank, part.generation) for part in chosen.values()}
    if not (partial and target.config.encoding in QUANTIZED) and run.named_parts(epoch) == names:
        return run.manifest(epoch)
    complete = target.config.writers() <= chosen.keys()
    parts = [run.part(epoch, part.rank, part.generation) for part in chosen.values()]
    if any(part.shape != shape for part in parts):
        return None  # the job has another shape since
    useful = [part for members in dcp.roles(parts) if is_covered(run.step(epoch), members) for part in members]
    if len(useful) < len(parts) if complete else not shape.covered({part.rank for part in useful}):
        return None  # a share is nowhere: who was to write it is away
    parts = sorted(useful, key=lambda part: part.rank)
    alike = dcp.replicated(parts)
    if not complete and not alike:
        raise CheckpointError(f"{run.step(epoch)} lacks ranks, and replicas that could stand for them differ")
    bases = needed_steps(run, parts)
    if bases is None:
        return None
    entries = tuple(
        PartEntry(
            rank=p.rank, generation=p.generation, nbytes=p.encoded or p.nbytes, check=p.check,
            seconds=p.seconds if p.is_share else msgspec.UNSET,
        )
        for p in parts
    )  # fmt: skip
    named = all(p.has_model_names for p in parts)
    whole_model = named and not alike and dcp.one_model(parts, SHARED)
    encoded = any(p.is_encoded for p in parts)
    manifest = Manifest(
        run=run.id, job=target.job, epoch=epoch, dp=shape.dp, pp=shape.pp, tp=shape.tp,
        depths=shape.depths or msgspec.UNSET, replicated=alike,
        time=time.time(), parts=entries, model_names=named or msgspec.UNSET,
        sliced=all(p.is_sliced for p in parts) or whole_model or msgspec.UNSET,
        shares=any(p.is_share for p in parts) or msgspec.UNSET, bases=bases or msgspec.UNSET,
        state_bytes=sum(p.nbytes for p in parts) if encoded else msgspec.UNSET,
        quantized=QuantizationBound.of_all(p.quantized for p in parts),
    )  # fmt: skip
    return _write_manifest(run, manifest, parts)


def _write_manifest(run: RunDirectory, manifest: Manifest, parts: list[CheckpointPart]) -> Manifest:
    """Write the manifest, and the metadata before it, unless one of the same parts is there: it keeps its time."""
    path = run.step(manifest.epoch) / MANIFEST
    with contextlib.suppress(CheckpointError):
        there = read_checked(path, Manifest)
        if msgspec.structs.replace(manifest, time=there.time, check=there.check) == there:
            return there
    write_metadata(run, manifest.epoch, parts)
    return write_checked(path, manifest)


def write_metadata(run: RunDirectory, epoch: int, parts: list[CheckpointPart]) -> None:
    """Write what ``torch.distributed.checkpoint`` needs to load the step, unless a part is encoded.

    Raises:
        OSError: the disk refused.
    """
    if any(part.is_encoded for part in parts):
        remove_file(run.step(epoch) / METADATA)  # of parts that were given up: dcp.load must find nothing
    else:
        write_durably(run.step(epoch) / METADATA, dcp.metadata(parts))


def complete_parts(config: DiskConfig, parts: list[PartFile], *, partial: bool = False) -> dict[int, PartFile] | None:
    """Rank -> its part that counts, if ``parts`` are enough for ``commit`` by their names alone; None: not (yet)."""
    chosen = newest_parts(parts, config.returns)
    if config.writers() <= chosen.keys() or (partial and config.replicated and config.shape.covered(set(chosen))):
        return chosen
    return None  # what is missing may be experts or shards that no other rank has


def leave_upload(step: Path, rank: int, generation: int) -> None:
    """Have another node upload a part that is still to be written here: this node does so only if that one is late.

    Raises:
        OSError: the disk refused.
    """
    step.mkdir(parents=True, exist_ok=True)
    (step / CLAIM.format(rank, generation)).write_text(LEFT)


def newest_parts(parts: list[PartFile], returns: tuple[Return, ...]) -> dict[int, PartFile]:
    """Rank -> its part that counts, of ``parts`` in the order of ``RunDirectory.parts``."""
    return {part.rank: part for part in parts if holds(returns, part.epoch, part.generation)}
