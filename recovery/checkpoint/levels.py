"""The upload level as a reader sees it: which steps are there, and the files of one of them in the local directory.

JSON of runs and steps is mirrored into a temporary directory, so that ``catalog`` answers for both levels alike. Data
is read in ranges, several at a time, and checked against the digest that was noted when it was uploaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import new_file, write_durably
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import (
    DOWNLOADS,
    LATEST,
    PINNED,
    Age,
    PartName,
    ResumeSource,
    RunDirectory,
    bases_of,
    find,
    remove_step,
)
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    DamagedError,
    Manifest,
    PartEntry,
    data_name,
    part_name,
    read_checked,
    remove_file,
    step_name,
)
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.storage import PART_BYTES, CheckpointStorage, StorageError, StoredFile

logger = logging.getLogger("mainstay.checkpoint")

AUTO: Final = "auto"
REQUESTS_AT_ONCE: Final = 8
"""Ranges of 8 MiB of one file, or small objects."""
_RUN_INFO: Final = re.compile(r"^run\.g\d{1,18}\.json$")
_FILES: Final = msgspec.json.Decoder(dict[str, StoredFile])
"""Made while there is one thread: msgspec 0.22 crashes where several threads are the first to decode a type."""
_NAME: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")

_PART_FILES: Final = re.compile(r"^files-(\d{1,9})\.g(\d{1,18})\.([0-9a-f]{16})\.json$")


def files_name(rank: int, generation: int, check: str) -> str:
    """The object that lists the files of a part whose checksum is ``check``."""
    return f"files-{rank}.g{generation}.{check}.json"


def object_name(name: str, check: str) -> str:
    """The object that holds the file ``name`` of a part. None is ever replaced by one with other bytes."""
    return f"{name}.{check}"


@contextlib.contextmanager
def open_level(url: str, **options: float) -> Iterator[UploadLevel]:
    """The upload level at ``url``; see ``CheckpointStorage`` for what this raises, and for ``options``."""
    with tempfile.TemporaryDirectory(prefix="mainstay-") as mirror:
        yield UploadLevel(CheckpointStorage(url, **options), Path(mirror))


class UploadLevel:
    """One place that holds checkpoints; ``mirror`` takes JSON of what is there, as ``catalog`` reads it."""

    def __init__(self, storage: CheckpointStorage, mirror: Path) -> None:
        self.storage, self._mirror = storage, mirror
        self._sent: dict[str, bytes] = {}

    # What is there

    def run_ids(self) -> list[str]:
        """Runs, in the order in which they began.

        Raises:
            StorageError: the place does not answer. So do all methods.
        """
        return sorted(name for name in self.storage.children()[0] if _NAME.match(name))

    def open_run(self, run_id: str) -> RunDirectory:
        """What the place says of a run, and the numbers of its steps; see ``read_manifests``."""
        if not _NAME.match(run_id):
            raise CheckpointError(f"{run_id!r} is no run")
        run = RunDirectory(self._mirror / run_id)
        run.path.mkdir(exist_ok=True)
        steps, files = self.storage.children(run_id)
        for name in filter(_RUN_INFO.match, files):
            (run.path / name).write_bytes(self.storage.read(f"{run_id}/{name}"))
        for epoch in run.steps():
            if step_name(epoch) not in steps:
                remove_step(run.step(epoch))
        for name in filter(_NAME.match, steps):
            (run.path / name).mkdir(exist_ok=True)
        return run

    def read_manifests(self, run: RunDirectory, epochs: Collection[int]) -> None:
        """Read the manifests of ``epochs``, and which steps are pinned."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(lambda epoch: self._read_manifest(run, epoch), epochs))

    def _read_manifest(self, run: RunDirectory, epoch: int) -> None:
        place, here = f"{run.id}/{step_name(epoch)}", run.step(epoch)
        files = self.storage.children(place)[1]
        for name in (MANIFEST, PINNED):
            if name in files:
                (here / name).write_bytes(self.storage.read(f"{place}/{name}"))
            else:
                remove_file(here / name)

    def find(self, run: str = LATEST, step: int | None = None, before: Age | None = None) -> ResumeSource:
        """The newest complete step at the place; see ``catalog.find``.

        Raises:
            CheckpointError: there is none.
        """
        for run_id in reversed(self.run_ids()) if run == LATEST else [run]:
            opened = self.open_run(run_id)
            for epoch in reversed(opened.steps()):
                if step in {None, epoch} and (before is None or (run_id, epoch) < before):
                    self._read_manifest(opened, epoch)
                    with contextlib.suppress(CheckpointError):
                        self.read_manifests(opened, bases_of(read_checked(opened.step(epoch) / MANIFEST, Manifest)))
                        return ResumeSource(self._mirror, opened.manifest(epoch))
        what = f"{'older ' if before else ''}complete step{'' if step is None else f' {step}'}"
        raise CheckpointError(f"{self.storage.url} has no {what} of {'any run' if run == LATEST else f'run {run}'}")

    # From there

    def fetch(self, directory: Path, source: ResumeSource, parts: Collection[PartName] | None = None) -> int:
        """Download a step into ``directory``, with the steps that it refers to; bytes read.

        Args:
            directory: of checkpoints. Other processes of this node may do the same at the same time.
            source: as ``find`` gave it.
            parts: read only these, and what these were written in shares with; None: all.

        Raises:
            CheckpointError: the place lost a file, or holds other bytes; what was checked stays.
            OSError: the disk refused.
        """
        wanted = None if parts is None else _with_shares(source.manifest, parts)
        ranks, count = None if wanted is None else {rank for rank, _ in wanted}, 0
        for epoch in bases_of(source.manifest):
            base = self.find(source.manifest.run, epoch)
            older = {(p.rank, p.generation) for p in base.manifest.parts if ranks is None or p.rank in ranks}
            count += self._fetch_step(directory, base, None if wanted is None else older)
        return count + self._fetch_step(directory, source, wanted)

    def _fetch_step(self, directory: Path, source: ResumeSource, wanted: set[PartName] | None) -> int:
        manifest, count = source.manifest, 0
        run, place = RunDirectory(directory / manifest.run), f"{manifest.run}/{step_name(manifest.epoch)}"
        step = run.step(manifest.epoch)
        step.mkdir(parents=True, exist_ok=True)
        with _lock(step):
            for entry in manifest.parts:
                if wanted is None or (entry.rank, entry.generation) in wanted:
                    for name, stored in self._files(entry, place).items():
                        count += self._fetch_file(f"{place}/{object_name(name, entry.check)}", step / name, stored)
            for info in source.run.path.glob("run.g*.json"):
                if not (run.path / info.name).exists():
                    write_durably(run.path / info.name, info.read_bytes())
            if wanted is None:
                parts = [run.part(manifest.epoch, entry.rank, entry.generation) for entry in manifest.parts]
                save.write_metadata(run, manifest.epoch, parts)
                if (source.run.step(manifest.epoch) / PINNED).exists():
                    (step / PINNED).touch()
            if wanted is None or directory.name == DOWNLOADS:
                write_durably(step / MANIFEST, (source.run.step(manifest.epoch) / MANIFEST).read_bytes())
        return count

    def _files(self, entry: PartEntry, place: str) -> dict[str, StoredFile]:
        path = f"{place}/{files_name(entry.rank, entry.generation, entry.check)}"
        try:
            files = _FILES.decode(self.storage.read(path))
        except UNREADABLE as error:
            raise DamagedError(f"{self.storage.url}: {path} is damaged: {error}") from error
        bad = [name for name in files if not _NAME.match(name)]
        if bad:
            raise CheckpointError(f"{self.storage.url}: {path} lists {bad[0]!r}, which is no file of a step")
        return files

    def _fetch_file(self, path: str, target: Path, stored: StoredFile) -> int:
        """Bytes read: none if the file is here already."""
        with contextlib.suppress(OSError):
            if target.stat().st_size == stored.nbytes and digest_of(target) == stored.digest:
                return 0
        with new_file(target) as file:
            descriptor = file.fileno()
            if stored.nbytes:
                os.posix_fallocate(descriptor, 0, stored.nbytes)

            def copy(start: int) -> None:
                data = self.storage.read_range(path, start, min(PART_BYTES, stored.nbytes - start))
                while data:
                    count = os.pwrite(descriptor, data, start)
                    data, start = data[count:], start + count

            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                list(pool.map(copy, range(0, stored.nbytes, PART_BYTES)))
            if digest_of(Path(file.name)) != stored.digest:
                raise DamagedError(f"{self.storage.url}: {path} does not hold the bytes that were uploaded")
        return stored.nbytes

    # To there

    def put_run_info(self, run: RunDirectory) -> None:
        """Upload what is known of the run where it is news."""
        for path in sorted(run.path.glob("run.g*.json")):
            content = path.read_bytes()
            if _RUN_INFO.match(path.name) and self._sent.get(f"{run.id}/{path.name}") != content:
                self.storage.put_bytes(f"{run.id}/{path.name}", content)
                self._sent[f"{run.id}/{path.name}"] = content

    def parts(
        self, run_id: str, epoch: int, own: Mapping[PartName, str] | None = None
    ) -> tuple[dict[PartName, str], bool]:
        """Parts of a step whose files are all there, with their checksums; and whether a manifest is.

        Of a part that was written again, or by two nodes, the checksum is that in ``own`` if that one is there.
        """
        names = self.storage.children(f"{run_id}/{step_name(epoch)}")[1]
        found = sorted(match.groups() for name in names if (match := _PART_FILES.match(name)))
        there = {(int(rank), int(generation)): check for rank, generation, check in found}
        mine = {part: check for part, check in (own or {}).items() if files_name(*part, check) in names}
        return there | mine, MANIFEST in names

    def commit(self, run_id: str, epoch: int, parts: Mapping[PartName, str], *, partial: bool) -> bytes | None:
        """The manifest of a step, if ``parts`` are enough for ``save.commit``; None: not (yet).

        Args:
            run_id: of the run. It is read after ``parts``: what the job went back from is sent before what it did then.
            epoch: the step.
            parts: as ``parts`` gave them.
            partial: see ``save.commit``.

        Raises:
            StorageError: also if the parts cannot be those of one step.
        """
        run = self.open_run(run_id)
        step, place = run.step(epoch), f"{run_id}/{step_name(epoch)}"
        remove_step(step)
        step.mkdir()

        def read(part: PartFile) -> None:
            name, data = part_name(part.rank, part.generation), data_name(part.rank, part.generation)
            check = parts[part.rank, part.generation]
            (step / name).write_bytes(self.storage.read(f"{place}/{object_name(name, check)}"))
            (step / data).touch()  # its name is enough

        try:
            target = save.target_of(run)
            chosen = save.complete_parts(target.config, part_files(epoch, parts), partial=partial)
            if chosen is None or any(part.generation > target.config.generation for part in chosen.values()):
                return None
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
                list(pool.map(read, chosen.values()))
            made = save.commit(target, epoch, partial=partial)
        except CheckpointError as error:
            raise StorageError(f"{self.storage.url}: {error}") from error
        return None if made is None else (step / MANIFEST).read_bytes()

    def settle(self, made: Manifest, older: Mapping[PartName, str]) -> bool:
        """Whether all that a manifest names is there once it is: a step that was deleted meanwhile does not come back.

        Lists of parts that were written again since they were named in an ``older`` one are deleted.
        """
        place, there = f"{made.run}/{step_name(made.epoch)}", self.parts(made.run, made.epoch, made.checks)[0]
        if not made.checks.items() <= there.items():
            self.storage.delete([f"{place}/{MANIFEST}"])  # other nodes were faster by several steps
            return False
        replaced = [(*part, check) for part, check in older.items() if made.checks.get(part, check) != check]
        self.storage.delete([f"{place}/{files_name(*part)}" for part in replaced])
        return True

    def prune(self, local: RunDirectory, policy: RetentionPolicy | None) -> list[Manifest]:
        """Delete steps of a run that ``policy`` does not keep (None: it keeps all); the complete ones that stay.

        See ``RunDirectory.prune``. What is in the local directory and is not uploaded may be on its way: it stays.
        """
        run = self.open_run(local.id)
        self.read_manifests(run, run.steps())
        here = {state.epoch: state.uploaded for state in local.counted_steps()}
        for epoch in run.removable(policy) if policy else []:
            if here.get(epoch, not local.step(epoch).exists()):
                self._delete_step(f"{run.id}/{step_name(epoch)}")
                remove_step(run.step(epoch))
        return list(run.complete())

    def _delete_step(self, place: str) -> None:
        """Its manifest first: at no time may a step claim to be whole and not be. A slow node may write one again."""
        self.storage.delete([f"{place}/{MANIFEST}"])
        self.storage.delete_below(place)
        self.storage.delete([f"{place}/{MANIFEST}"])


def part_files(epoch: int, parts: Collection[PartName]) -> list[PartFile]:
    """``parts`` of a step, in order, as ``RunDirectory.parts`` gives those that are here."""
    return [PartFile(rank, epoch, 0, generation) for rank, generation in sorted(parts)]


def digest_of(path: Path) -> str:
    """xxh3_64 of a file."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


def named_run(resume: str | None) -> str | None:
    """The run that ``--resume`` names; None: any."""
    return None if resume in {AUTO, LATEST} else resume


def find_nearest(directory: Path, url: str | None, run: str = LATEST, before: Age | None = None) -> ResumeSource:
    """The newest complete step of both levels; the local copy of one that is at both. See ``catalog.find``.

    The manifest is all that is read of a step at the upload level. Its source is ``directory / DOWNLOADS``, to which
    ``fetch_parts`` brings what a rank needs.

    Raises:
        CheckpointError: there is none at either level.
        StorageError: there is none here, and the upload level does not answer.
    """
    if url is None:
        return find(directory, run, before=before)
    local: ResumeSource | None = None
    with contextlib.suppress(CheckpointError):
        local = find(directory, run, before=before)
    try:
        with open_level(url) as level:
            there = replace(level.find(run, before=before), directory=directory / DOWNLOADS)
    except (CheckpointError, StorageError) as error:
        if local is None:
            raise
        if isinstance(error, StorageError):
            logger.warning("%s; the newest step in %s counts", error, directory)
        return local
    age = (there.manifest.run, there.manifest.epoch)
    return there if local is None or age > (local.manifest.run, local.manifest.epoch) else local


def fetch_parts(directory: Path, url: str, run: str, epoch: int, parts: Collection[PartName]) -> int:
    """Download parts of a step (see ``UploadLevel.fetch``); bytes read.

    Of a part whose generation is 0, the manifest says which one it is.

    Raises:
        CheckpointError: the upload level does not have them, or they are damaged.
        OSError: the disk refused, or the upload level does not answer (``StorageError``).
    """
    with open_level(url) as level:
        source = level.find(run, epoch)
        made = {part.rank: part.generation for part in source.manifest.parts}
        missing = [rank for rank, generation in parts if generation not in {0, made.get(rank)} or rank not in made]
        if missing:
            raise CheckpointError(f"step {epoch} of run {run} at {url} does not hold rank {missing[0]}")
        return level.fetch(directory, source, [(rank, made[rank]) for rank, _ in parts])


def _with_shares(manifest: Manifest, parts: Collection[PartName]) -> set[PartName]:
    """``parts`` and, where replicas have divided the writing, those of the other replicas."""
    made = {part.rank: part.generation for part in manifest.parts}
    peers = (peer for rank, _ in parts for peer in manifest.shape.dp_peers(rank) if peer in made)
    return {*parts, *((peer, made[peer]) for peer in peers if manifest.shares is True)}


@contextlib.contextmanager
def _lock(step: Path) -> Iterator[None]:
    """One process of the node at a time; where the file system has no locks, all read the same."""
    with (step / ".lock").open("wb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
