"""What lies in a checkpoint directory: runs, steps, parts; which step is whole, and what may go.

Nothing here trusts a pointer: the newest step is found by looking at the manifests. Files of different runs never meet,
because each run has a directory of its own, named after an id that sorts by the time of its start.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstay.probes.decoding import read_if_whole
from mainstay.probes.durable_files import sync_directory
from mainstay.recovery.checkpoint.file_errors import refusal
from mainstay.recovery.checkpoint.listed_files import PartFile, entries_of, file_bytes, named_parts_of, numbered
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    CheckpointPart,
    Manifest,
    Return,
    RunInfo,
    data_name,
    encoded_name,
    holds,
    parity_names,
    part_name,
    read_checked,
    remove_file,
    step_name,
)
from mainstay.recovery.checkpoint.retention import CompleteStep, RetentionPolicy, steps_to_keep
from mainstay.recovery.checkpoint.upload_state import UPLOAD, UPLOAD_STALE_SECONDS, UploadState

log = logging.getLogger("mainstay.checkpoint")

_STEP: Final = re.compile(r"^step-(\d{8,18})$")
_PART: Final = re.compile(r"^rank-(\d{1,9})\.g(\d{1,18})\.json$")
_PARITY: Final = re.compile(r"^parity-(\d{1,9})\.g(\d{1,18})\.json$")
_DATA: Final = re.compile(r"^__(\d{1,9})_(\d{1,18})\.(?:distcp|encoded)$")
_RUN: Final = re.compile(r"^run\.g(\d{1,18})\.json$")
Age = tuple[str, int]  # run and epoch of a step: both rise
PartName = tuple[int, int]  # rank and generation of a part
LATEST: Final = "latest"
DOWNLOADS: Final = ".download"
"""Beside the runs: a directory of steps from the upload level, of which only the parts are here that were needed."""
PINNED: Final = "pinned"
"""An empty file in a step that no retention policy removes."""


class IncompleteStepError(CheckpointError):
    """Parts of the step are missing, or its manifest."""


class GivenUpStepError(CheckpointError):
    """The job has gone back behind the step."""


class RunDirectory:
    """The directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def info(self) -> RunInfo:
        """The run as its newest generation wrote it down.

        Raises:
            CheckpointError: there is none that is whole, or the disk refuses to say (see ``refusal``).
        """
        problem = CheckpointError(f"{self.path} is no run: it has no run.gN.json")
        for _, path in sorted(numbered(self.path, _RUN, strict=True), reverse=True):
            try:
                return read_checked(path, RunInfo)
            except CheckpointError as error:
                if refusal(error):
                    raise  # an older one may not know the newest return
                problem = error
        raise problem

    def returns(self) -> tuple[Return, ...]:
        """What the run has gone back from; none if nothing there says it.

        Raises:
            CheckpointError: the disk refuses to say (see ``refusal``): a step that was given up is not to count.
        """
        try:
            return self.info().returns
        except CheckpointError as error:
            if refusal(error):
                raise
            return ()

    def data_file(self, part: CheckpointPart) -> Path:
        return self.step(part.epoch) / part.file

    def steps(self) -> list[int]:
        """Epochs that have a directory, complete or not, in order."""
        return [epoch for epoch, _ in sorted(numbered(self.path, _STEP))]

    def step(self, epoch: int) -> Path:
        return self.path / step_name(epoch)

    def parts(self, epoch: int) -> list[PartFile]:
        """Durable parts of ``epoch``, by rank and generation."""
        entries = entries_of(self.step(epoch))
        data, described = named_parts_of(entries, _DATA), named_parts_of(entries, _PART)
        names = sorted(data.keys() & described.keys())
        return [PartFile(rank, epoch, file_bytes(data[rank, generation]), generation) for rank, generation in names]

    def manifest(self, epoch: int) -> Manifest:
        """The manifest of ``epoch``.

        Raises:
            CheckpointError: the step or one that it refers to is not whole, or was given up when the job went back.
        """
        path = self.step(epoch) / MANIFEST
        try:
            manifest = read_checked(path, Manifest)
        except CheckpointError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise IncompleteStepError(f"{path.parent} is not complete: {self._missing(epoch)}") from error.__cause__
        if (manifest.run, manifest.epoch) != (self.id, epoch):
            raise CheckpointError(f"{path} speaks of run {manifest.run} step {manifest.epoch}")
        returns = self.returns()
        if not all(holds(returns, epoch, part.generation) for part in manifest.parts):
            raise GivenUpStepError(f"{path.parent} is of a future that the job has gone back from")
        lost = next((base for base in bases_of(manifest) if not (self.step(base) / MANIFEST).exists()), None)
        if lost is not None:
            raise IncompleteStepError(f"{path.parent} is not complete: it refers to step {lost}, which is not complete")
        return manifest

    def named_parts(self, epoch: int) -> set[PartName]:
        """Parts that the manifest of ``epoch`` names, even if it does not hold any more; none: it cannot be read."""
        with contextlib.suppress(CheckpointError):
            return set(read_checked(self.step(epoch) / MANIFEST, Manifest).checks)
        return set()

    def _missing(self, epoch: int) -> str:
        try:
            size = self.info().shape.world_size
        except CheckpointError as error:
            return str(error)
        missing = sorted(set(range(size)) - {part.rank for part in self.parts(epoch)})
        return f"parts of ranks {missing[:8]} are missing" if missing else "its manifest was not written"

    def part(self, epoch: int, rank: int, generation: int, *, parity: bool = False) -> CheckpointPart:
        """The part of ``rank``, or the description of the parity rows that it keeps.

        Raises:
            CheckpointError: missing, damaged, or another rank's.
        """
        path = self.step(epoch) / (parity_names(rank, generation)[1] if parity else part_name(rank, generation))
        part = read_checked(path, CheckpointPart)
        if (part.run, part.rank, part.epoch, part.generation) != (self.id, rank, epoch, generation):
            raise CheckpointError(f"{path} holds rank {part.rank} step {part.epoch} of run {part.run}")
        return part

    def parity(self, epoch: int) -> Iterator[CheckpointPart]:
        """Parity of ``epoch``, as far as its descriptions are whole."""
        for rank, generation in self.parity_files(epoch):
            with contextlib.suppress(CheckpointError):
                yield self.part(epoch, rank, generation, parity=True)

    def parity_files(self, epoch: int) -> list[PartName]:
        """Names of the parity of ``epoch``, as the names of its descriptions say."""
        return sorted(named_parts_of(entries_of(self.step(epoch)), _PARITY))

    def parity_bytes(self, epoch: int) -> int:
        """Size of the files that hold parity of ``epoch``."""
        return sum(file_bytes(self.step(epoch) / parity_names(*key)[0]) for key in self.parity_files(epoch))

    def complete(self) -> Iterator[Manifest]:
        """Manifests of the steps that are whole and hold, newest first; a warning names each that cannot be read.

        Raises:
            CheckpointError: the disk refuses to read the run (see ``refusal``): that is no run without steps.
        """
        self.returns()
        for epoch in reversed(self.steps()):
            try:
                yield self.manifest(epoch)
            except (IncompleteStepError, GivenUpStepError):
                continue
            except CheckpointError as error:
                log.warning("step %d of run %s is passed over, older steps are looked for: %s", epoch, self.id, error)

    # What may go

    def prune(self, policy: RetentionPolicy, returns: tuple[Return, ...], common: Collection[int] = ()) -> None:
        """Remove complete steps that ``policy`` does not keep, older incomplete ones, and parts that were given up.

        On a disk of the node's own, where no step is ever whole, parts are counted instead, and ``common`` stay (see
        ``next_common``). While a manifest cannot be read, no complete step goes.
        """
        self._remove_given_up(returns)
        with contextlib.suppress(OSError):
            for epoch in self.removable(policy, common):
                remove_step(self.step(epoch))
                shutil.rmtree(self.path.parent / DOWNLOADS, ignore_errors=True)  # this run has steps of its own

    def removable(self, policy: RetentionPolicy, common: Collection[int] = ()) -> list[int]:
        """Steps that ``policy`` does not keep, and incomplete ones older than its newest. See ``prune``.

        Raises:
            OSError: a manifest cannot be read at present.
        """
        parts = self._steps_of_parts()
        keep, limit = {e for state in parts if state.epoch in common for e in (state.epoch, *state.bases)}, 0
        for counted in (self._whole_steps(), parts):
            keep |= steps_to_keep(counted, policy)
            limit = max(limit, counted[-policy.last].epoch if len(counted) > policy.last else 0)
        return [epoch for epoch in self.steps() if epoch < limit and epoch not in keep]

    def counted_steps(self) -> list[CompleteStep]:
        """Complete steps, in order, and later ones with parts where none becomes complete: on a disk of the node's own.

        Raises as ``removable``.
        """
        return self._whole_steps() + self._steps_of_parts()

    def _whole_steps(self) -> list[CompleteStep]:
        return [state for epoch in self.steps() if (state := self.complete_step(epoch)) is not None]

    def _steps_of_parts(self) -> list[CompleteStep]:
        """What is older than a step that is complete at the upload level waits for no upload any more.

        A disk of the node's own has complete steps of a time at which the ranks of all other nodes were away.
        """
        steps = self.steps()
        whole = next((epoch for epoch in reversed(steps) if (self.step(epoch) / MANIFEST).exists()), -1)
        if whole >= 0 and self._has_all_writers(whole):
            return []
        states = {epoch: self.upload_state(epoch) for epoch in steps if epoch > whole and self.parts(epoch)}
        done = max((epoch for epoch, state in states.items() if state is not None and state.check), default=-1)
        bases = {state.epoch: state.bases for state in self._whole_steps()}
        for epoch in states:
            direct = self._bases_of_parts(epoch)
            bases[epoch] = direct.union(*(bases.get(base, ()) for base in direct))
        return [self._counted(epoch, bases=bases[epoch], uploaded=epoch <= done) for epoch in states]

    def _bases_of_parts(self, epoch: int) -> frozenset[int]:
        found = set()
        for file in self.parts(epoch):
            if (self.step(epoch) / encoded_name(file.rank, file.generation)).exists():
                try:
                    base = self.part(epoch, file.rank, file.generation).base
                except CheckpointError as error:
                    if cause := refusal(error):
                        raise cause from error
                else:
                    found |= {base[0]} if base else set()
        return frozenset(found)

    def _has_all_writers(self, epoch: int) -> bool:
        """Whether the manifest of a step names parts of all ranks that write at present."""
        with contextlib.suppress(CheckpointError):
            info = self.info()
            ranks = {rank for rank, _ in self.named_parts(epoch)}
            return not ranks or ranks.issuperset({*range(info.shape.world_size)}.difference(info.away or ()))
        return True

    def complete_step(self, epoch: int) -> CompleteStep | None:
        """``epoch`` as retention sees it; None: it is not complete.

        Raises:
            OSError: its manifest cannot be read at present.
        """
        try:
            manifest = self.manifest(epoch)
        except CheckpointError as error:
            if cause := refusal(error):
                raise cause from error
            return None
        return self._counted(epoch, manifest.time, bases_of(manifest), uploaded=self.is_uploaded(manifest))

    def _counted(self, epoch: int, at: float = 0.0, bases: Iterable[int] = (), *, uploaded: bool) -> CompleteStep:
        pinned, uploading = (self.step(epoch) / PINNED).exists(), not uploaded and self.is_uploading(epoch)
        return CompleteStep(
            epoch=epoch, time=at, bases=frozenset(bases), pinned=pinned, uploaded=uploaded, uploading=uploading
        )

    def upload_state(self, epoch: int) -> UploadState | None:
        """Where ``epoch`` has been uploaded to; None: nowhere."""
        return read_if_whole(self.step(epoch) / UPLOAD, UploadState)

    def is_uploaded(self, manifest: Manifest) -> bool:
        """Whether the upload level holds the step that ``manifest`` makes whole."""
        state = self.upload_state(manifest.epoch)
        return state is not None and state.check == manifest.check

    def is_uploading(self, epoch: int) -> bool:
        """Whether a process has touched the state of the upload lately."""
        with contextlib.suppress(OSError):
            return time.time() - (self.step(epoch) / UPLOAD).stat().st_mtime < UPLOAD_STALE_SECONDS
        return False

    def _remove_given_up(self, returns: tuple[Return, ...]) -> None:
        """Remove parts of steps that the job has gone back behind."""
        for epoch in self.steps():
            parts = self.parts(epoch)
            gone = [part for part in parts if not holds(returns, epoch, part.generation)]
            if not gone:
                continue
            if len(gone) == len(parts):
                remove_step(self.step(epoch))
            named, kept = self.named_parts(epoch), {(p.rank, p.generation) for p in parts if p not in gone}
            if not (named and named <= kept):
                remove_file(self.step(epoch) / MANIFEST)  # whoever completes the step writes another
                remove_file(self.step(epoch) / UPLOAD)
            for part in gone:
                for name in (part_name, data_name, encoded_name):
                    remove_file(self.step(epoch) / name(part.rank, part.generation))


def bases_of(manifest: Manifest) -> list[int]:
    """Epochs of all steps of the same run that ``manifest`` refers to, in order."""
    return sorted(int(match[1]) for name in manifest.bases or () if (match := _STEP.match(name)))


def is_upload_level(step: Path) -> bool:
    """Whether a step lies at an upload level, where files have other names and are listed."""
    return any(entry.name.startswith("files-") for entry in entries_of(step))


def remove_step(step: Path) -> None:
    """Remove a step; its manifest first, so that what is left of it if this is interrupted claims nothing."""
    remove_file(step / MANIFEST)
    with contextlib.suppress(OSError):
        sync_directory(step)
    shutil.rmtree(step, ignore_errors=True)


def runs(directory: Path) -> list[RunDirectory]:
    """The runs in ``directory``, in the order in which they began.

    Raises:
        CheckpointError: there is no such directory, or the disk refuses to read it (see ``refusal``).
    """
    paths = sorted(entries_of(directory, strict=True))
    if not (paths or directory.is_dir()):
        raise CheckpointError(f"{directory} is not a directory")
    return [RunDirectory(path) for path in paths if _is_run(path)]


def _is_run(path: Path) -> bool:
    """Whether ``path`` is a run, or the disk refuses to say: who reads it learns that."""
    try:
        return any(numbered(path, _RUN, strict=True))
    except CheckpointError as error:
        return not isinstance(error.__cause__, PermissionError)  # lost+found


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """A whole step to continue from."""

    directory: Path
    manifest: Manifest

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory / self.manifest.run)


def find(directory: Path, run: str = LATEST, step: int | None = None, before: Age | None = None) -> ResumeSource:
    """The newest whole step of the run called ``run``; of the newest run that has one for ``latest``.

    Args:
        directory: that holds the runs.
        run: its id, or ``latest``.
        step: only this one; None: any.
        before: only older ones; None: any.

    Raises:
        CheckpointError: there is none, or ``step`` is not whole; says what there is.
    """
    known = runs(directory)
    wanted = known if run == LATEST else [found for found in known if found.id == run]
    if not wanted:
        there = ", ".join(found.id for found in known[-4:]) or "none"
        what = "no runs" if run == LATEST else f"no run {run!r}; runs there: {there}"
        raise CheckpointError(f"{directory} has {what}")
    for found in reversed(wanted):
        complete = found.complete() if step is None else (found.manifest(n) for n in found.steps() if n == step)
        for manifest in (m for m in complete if before is None or (m.run, m.epoch) < before):
            if is_upload_level(found.step(manifest.epoch)):
                raise CheckpointError(f"{directory} is an upload level: mainstay checkpoint download reads it")
            return ResumeSource(directory, manifest)
    what = f"step {step}" if step is not None else "older complete step" if before else "complete step"
    raise CheckpointError(f"{directory} has no {what} of {'any run' if run == LATEST else f'run {run}'}")
