"""The steps of a run as people see them: where each one is, what it is built on, what a restore and a deletion cost.

``mainstay checkpoint ls`` prints it, and the coordinator reports it for the page of the job. Only names, sizes and
manifests are read: ``mainstay checkpoint verify`` reads the tensors.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import read_if_whole
from mainstay.probes.durable_files import write_durably
from mainstay.recovery.checkpoint.catalog import PINNED, GivenUpStepError, IncompleteStepError, RunDirectory, bases_of
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError, Manifest
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound

LISTED: Final = 64
"""Newest steps in a report, as many older pinned ones, and as many bases of each: no chain is longer."""
UPLOADED: Final = ".uploaded.json"
"""In a run: the steps of the upload level, as of the last upload."""
NAMED: Final = 16
"""Nodes that are named for one step."""
SETTLED_SECONDS: Final = 5.0
"""A step that has not changed for so long is not read again: a file system's clock ticks slower than files come."""
_PROBLEM_CHARACTERS: Final = 500


class StepState(StrEnum):
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Parts are missing, or a step that it is built on: it is being written, or was interrupted."""
    ON_NODES = "on_nodes"
    """Each node has the parts of its own ranks, in a directory of its own: for a recovery and ``--resume``."""
    GIVEN_UP = "given_up"
    """The job has gone back behind it."""
    DAMAGED = "damaged"


USABLE: Final = frozenset({StepState.COMPLETE, StepState.ON_NODES})
"""A job can go back to such a step."""


class CheckpointLevel(StrEnum):
    LOCAL = "local"
    UPLOAD = "upload"


class CheckpointStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run."""

    step: int
    state: StepState
    problem: str = ""
    """Why it is not complete, or only at the upload level; empty: nothing is wrong."""
    time: float | None = None
    """Unix seconds at which it became complete."""
    ranks: int
    """With a part of it."""
    disk_bytes: int
    """Of the files of these parts, and of parity."""
    parity_bytes: int = 0
    """Of ``disk_bytes``: parity that decodes lost parts."""
    full_bytes: int | None = None
    """Of the state that it restores; None: not known while it is not complete."""
    quantized: QuantizationBound | None = None
    """It restores values near those that were saved; None: the same bits, or not known while it is not complete."""
    read_bytes: int | None = None
    """The most that one rank reads to restore it, with the steps that it is built on."""
    levels: tuple[CheckpointLevel, ...] = (CheckpointLevel.LOCAL,)
    pinned: bool = False
    bases: tuple[int, ...] = ()
    """All steps that it is built on."""
    unreadable: tuple[int, ...] = ()
    """Later steps that cannot be read without it, the oldest first."""
    previous: int | None = None
    """The next older usable step, to which a job without this one goes back; None: it begins again. Where that step is
    quantized, only a new start with ``--resume --accept-quantized`` does."""
    serves_recovery: bool | None = None
    """A recovery of the running job may go back to it: not to one that only the upload level holds, nor to one of a run
    that writes quantized steps, unless the job continued from it. None: not known."""
    restore_seconds: float | None = None
    """Predicted time to read it, for the slowest rank; None: no node has measured its disk yet."""
    seconds_lost: float | None = None
    """Of training, to make it again from ``previous``; None: the time of a step is not known."""
    nodes: tuple[str, ...] = ()
    """Nodes whose directory shows parts of it."""
    node_count: int = 0
    survives: str = ""
    """Which losses it outlives, for people; empty: not known."""


def read_step(run: RunDirectory, epoch: int) -> CheckpointStep:
    """What the directory says of one step. What refers to other steps is still to come: ``link``."""
    parts, parity = run.parts(epoch), run.parity_bytes(epoch)
    found = CheckpointStep(
        step=epoch,
        state=StepState.INCOMPLETE,
        ranks=len({part.rank for part in parts}),
        disk_bytes=sum(part.nbytes for part in parts) + parity,
        parity_bytes=parity,
        pinned=(run.step(epoch) / PINNED).exists(),
    )
    try:
        return _completed(run, found, parts, run.manifest(epoch))
    except CheckpointError as error:
        states = {IncompleteStepError: StepState.INCOMPLETE, GivenUpStepError: StepState.GIVEN_UP}
        state = states.get(type(error), StepState.DAMAGED)
        problem = str(error).removeprefix(str(run.step(epoch))).lstrip("/ ")[:_PROBLEM_CHARACTERS]
        return msgspec.structs.replace(found, state=state, problem=problem)


def _completed(
    run: RunDirectory, found: CheckpointStep, parts: Sequence[PartFile], manifest: Manifest
) -> CheckpointStep:
    sizes = {(part.rank, part.generation): part.nbytes for part in parts}
    missing = [part.rank for part in manifest.parts if (part.rank, part.generation) not in sizes]
    if missing:
        raise CheckpointError(f"{run.step(found.step)} has lost the files of ranks {missing[:8]}")
    made = from_manifest(manifest, {part.rank: sizes[part.rank, part.generation] for part in manifest.parts})
    levels = (*found.levels, CheckpointLevel.UPLOAD) if run.is_uploaded(manifest) else found.levels
    parity, size = found.parity_bytes, made.disk_bytes + found.parity_bytes
    return msgspec.structs.replace(made, pinned=found.pinned, levels=levels, parity_bytes=parity, disk_bytes=size)


def from_manifest(manifest: Manifest, sizes: Mapping[int, int]) -> CheckpointStep:
    """A complete step.

    Args:
        manifest: of the step.
        sizes: rank -> bytes of its file.
    """
    read = sizes
    if manifest.shares is True:  # a rank also reads what its replicas have written for it
        read = {rank: sum(sizes.get(peer, 0) for peer in manifest.shape.dp_peers(rank)) for rank in sizes}
    return CheckpointStep(
        step=manifest.epoch,
        state=StepState.COMPLETE,
        time=manifest.time,
        ranks=len(manifest.parts),
        disk_bytes=sum(sizes.values()),
        full_bytes=manifest.state_bytes or sum(part.nbytes for part in manifest.parts),
        quantized=manifest.quantized or None,
        read_bytes=max(read.values(), default=0),
        bases=tuple(bases_of(manifest)),
    )


def note_uploaded(run: RunDirectory, manifests: Iterable[Manifest]) -> None:
    """Write down in the run's directory what the upload level holds now: who reads this needs no connection.

    Raises:
        OSError: the disk refused.
    """
    there = [uploaded_step(manifest, pinned=False) for manifest in manifests]
    write_durably(run.path / UPLOADED, msgspec.json.encode(there))


def uploaded_step(manifest: Manifest, *, pinned: bool) -> CheckpointStep:
    """A complete step that only the upload level is known to hold."""
    step = from_manifest(manifest, {part.rank: part.nbytes for part in manifest.parts})
    return msgspec.structs.replace(step, levels=(CheckpointLevel.UPLOAD,), pinned=pinned)


def link(steps: Iterable[CheckpointStep], begun_at: int = 0) -> tuple[CheckpointStep, ...]:
    """Relate steps to one another: chains, and what a deletion costs.

    Args:
        steps: of one run.
        begun_at: the step that the run continued from; 0: none.
    """
    needed_by: defaultdict[int, list[int]] = defaultdict(list)
    read: dict[int, int] = {}
    previous, linked = begun_at or None, list[CheckpointStep]()
    for step in sorted(steps, key=lambda step: step.step):  # a step is newer than those that it is built on
        missing = [base for base in step.bases if base not in read]
        if step.state not in USABLE:
            linked.append(step)
        elif missing:
            problem = f"step {missing[0]}, which it is built on, is not complete"
            linked.append(msgspec.structs.replace(step, state=StepState.INCOMPLETE, problem=problem, read_bytes=None))
        else:
            for base in step.bases:
                needed_by[base].append(step.step)
            read[step.step] = step.read_bytes or 0
            total = read[step.step] + sum(read[base] for base in step.bases)
            linked.append(msgspec.structs.replace(step, previous=previous, read_bytes=total or None))
            previous = step.step
    return tuple(msgspec.structs.replace(step, unreadable=tuple(needed_by[step.step])) for step in linked)


class RunReader:
    """The steps of one run, read again and again: what has not changed is not read twice."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._read: dict[tuple[int, int, object], CheckpointStep] = {}
        """By its number, when it changed, and what the run had gone back from."""

    def read(self) -> list[CheckpointStep]:
        """All steps, in order; what refers to other steps is still to come: ``link``."""
        returns, settled = self._run.returns(), time.time_ns() - int(SETTLED_SECONDS * 1e9)
        keys = [(epoch, _changed_at(self._run.step(epoch)), returns) for epoch in self._run.steps()]
        steps = {key: self._read.get(key) or read_step(self._run, key[0]) for key in keys}
        self._read = {key: step for key, step in steps.items() if key[1] < settled}
        uploaded = read_if_whole(self._run.path / UPLOADED, list[CheckpointStep]) or ()
        there = {step.step: step for step in uploaded}
        here = {step.step: self._with_upload(step, there.get(step.step)) for step in steps.values()}
        return sorted((there | here).values(), key=lambda step: step.step)

    def _with_upload(self, step: CheckpointStep, there: CheckpointStep | None) -> CheckpointStep:
        """The uploaded step where only it is whole: the one here is damaged, or nodes have their own directories."""
        if there is not None and step.state is StepState.DAMAGED:
            return msgspec.structs.replace(there, pinned=step.pinned, problem=f"in the directory: {step.problem}")
        upload = self._run.upload_state(step.step) if there and step.state is StepState.INCOMPLETE else None
        return there if there and upload and upload.check else step


def _changed_at(step: Path) -> int:
    """When its files or what its manifest says changed: a manifest that is damaged in place leaves the directory."""
    found = 0
    for path in (step, step / MANIFEST):
        with contextlib.suppress(OSError):
            found = max(found, path.stat().st_mtime_ns)
    return found


def newest(steps: Sequence[CheckpointStep]) -> tuple[CheckpointStep, ...]:
    """The steps that a report has room for, the newest first."""
    recent, older = steps[-LISTED:], steps[:-LISTED]
    pinned = [step for step in older if step.pinned][-LISTED:]
    return tuple(
        msgspec.structs.replace(step, bases=step.bases[-LISTED:], unreadable=step.unreadable[:LISTED])
        for step in reversed([*pinned, *recent])
    )
