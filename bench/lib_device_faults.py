"""Every call of a writer, a reader, and an uploader on a checkpoint's files fails in turn, in each way a device fails.

They are real processes below ``tests/recovery/checkpoint/faulty_disk.c``. After each fault a look from outside: no step
may claim to be whole and not be, none that was whole may be gone, and whoever failed must report it in one line.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from bench.lib_checkpoint_job import KEEP, RANKS, Counts, Job, problem_of
from mainstay.recovery.checkpoint.catalog import ResumeSource, RunDirectory, find, runs
from mainstay.recovery.checkpoint.file_errors import problem_line
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadRequest
from mainstay.recovery.checkpoint.writer import WriteResult
from mainstay.recovery.memory.arena import Arena
from tests.recovery.checkpoint.faulty_disk import CHANGES, FOREVER, KILL, READS, SHORT, Calls, FaultyDisk

WRITER: Final = "mainstay.recovery.checkpoint.writer"


class Fault(msgspec.Struct, frozen=True):
    """One way in which calls fail."""

    name: str
    code: int
    calls: Calls = CHANGES
    forever: bool = True
    """From the n-th call on; otherwise only that one."""
    amount: int = 0


WRITER_FAULTS: Final = (
    Fault("EIO", errno.EIO),
    Fault("EIO once", errno.EIO, forever=False),
    Fault("ENOSPC", errno.ENOSPC, Calls.OPEN | Calls.WRITE | Calls.SYNC | Calls.MKDIR | Calls.RENAME | Calls.TRUNCATE),
    Fault("EROFS", errno.EROFS, CHANGES & ~Calls.SYNC),
    Fault("short writes", SHORT, Calls.WRITE, amount=1000),
    Fault("short writes of whole sectors", SHORT, Calls.WRITE, amount=8192),
    Fault("SIGKILL", KILL),
)
READER_FAULTS: Final = (Fault("EIO", errno.EIO, READS), Fault("EIO once", errno.EIO, READS, forever=False))
UPLOADER_FAULTS: Final = (
    Fault("EIO", errno.EIO, CHANGES | READS),
    Fault("EIO once", errno.EIO, CHANGES | READS, forever=False),
    Fault("ENOSPC", errno.ENOSPC, Calls.WRITE | Calls.SYNC | Calls.MKDIR | Calls.RENAME),
    Fault("EROFS", errno.EROFS, CHANGES & ~Calls.SYNC & ~Calls.OPEN),
    Fault("SIGKILL", KILL, CHANGES),
)


class DiskTask(msgspec.Struct, frozen=True):
    """What a process below the faulty disk is to do: read the newest step, or upload what waits."""

    directory: str
    arenas: tuple[str, ...] = ()
    """Of the ranks, for the layout of their slots."""
    url: str = ""


class Found(msgspec.Struct, frozen=True):
    """What came of it."""

    problem: str = ""
    epoch: int = 0
    slots: tuple[bytes, ...] = ()


class Process:
    """A program that answers each line of JSON with one; started again after it was killed."""

    def __init__(self, module: str, disk: FaultyDisk, answer: type[msgspec.Struct]) -> None:
        self._command = [sys.executable, "-m", module]
        self._environment, self._answer = disk.process_environment(), answer
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, order: msgspec.Struct) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()

    def receive(self) -> Any:
        """Its answer; None: it ended without one."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return msgspec.json.decode(line, type=self._answer)
        self.close()
        return None

    def request(self, order: msgspec.Struct) -> Any:
        self.send(order)
        return self.receive()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


def each_call(disk: FaultyDisk, faults: Sequence[Fault], counts: Counts, stride: int) -> Iterator[str]:
    """Each ``stride``-th call of what the caller does between two of these fails in turn, in the way of each fault."""
    for fault in faults:
        nth = 1
        while True:
            disk.fail(fault.calls, fault.code, nth, last=FOREVER if fault.forever else nth, amount=fault.amount)
            yield f"{fault.name} at call {nth}"
            counts.points += 1
            if not disk.struck:
                break
            counts.struck += 1
            nth += stride


def write_under(job: Job, disk: FaultyDisk, faults: Sequence[Fault], stride: int = 1) -> Counts:
    """A node writes a step while its disk fails, and once more when that is well."""
    counts, process = Counts(), Process(WRITER, disk, WriteResult)

    def write() -> str | None:
        for order in (job.begin_order(), job.order(*range(RANKS))):
            result = process.request(order)
            if result is None:
                return None
            problem = problem_of(result)
            if problem:
                return problem
        return ""

    with contextlib.closing(process):
        for where in each_call(disk, faults, counts, stride):
            job.step()
            before, told = job.whole(), write()
            disk.work_again()
            done = job.whole()[:1] == [job.epoch]
            if told == "" and not done:
                counts.silent.append(f"{where}: the step is not complete, and no problem was reported")
            counts.note(where, told, job, before)
            again = write()
            if again or job.whole()[:1] != [job.epoch]:
                counts.lost.append(f"{where}: not written when the disk was well: {again}")
    return counts


def read_under(job: Job, disk: FaultyDisk, faults: Sequence[Fault], stride: int = 1) -> Counts:
    """The newest step is found and read while its disk fails: the right bytes, or one line."""
    counts, process = Counts(), Process("bench.lib_device_faults", disk, Found)
    with contextlib.closing(process):
        for where in each_call(disk, faults, counts, stride):
            job.step()
            job.write(*range(RANKS))
            found = process.request(DiskTask(str(job.run.path.parent), tuple(str(arena.path) for arena in job.arenas)))
            disk.work_again()
            if found is None:
                counts.silent.append(f"{where}: the reader crashed")
            elif not found.problem and [*found.slots] != job.states.get(found.epoch):
                counts.false_whole.append(f"{where}: step {found.epoch} was read with other bytes")
            counts.note(where, found and found.problem, job, job.whole())
    return counts


def upload_under(job: Job, disk: FaultyDisk, faults: Sequence[Fault], stride: int = 1) -> Counts:
    """A step goes to a directory as its upload level while both disks fail, and once more when they are well."""
    counts, process, level = Counts(), Process("bench.lib_device_faults", disk, Found), job.disk / "level"
    task = DiskTask(str(job.run.path.parent), url=str(level))
    with contextlib.closing(process):
        for where in each_call(disk, faults, counts, stride):
            job.step()
            job.write(*range(RANKS))
            for staged in level.glob("*/*#*"):  # of writes that failed: obstore tries one name after the other
                staged.unlink()
            before, found = uploaded(level, job), process.request(task)
            disk.work_again()
            counts.note(where, found and found.problem, job, job.whole())
            _compare(where, before, level, job, counts)
            again = process.request(task)
            if again is None or again.problem or max(uploaded(level, job), default=0) != job.epoch:
                counts.lost.append(f"{where}: not uploaded when the disk was well: {again and again.problem}")
    return counts


def uploaded(level: Path, job: Job) -> list[int]:
    """Steps that claim to be complete there."""
    if not level.is_dir():
        return []
    with open_level(str(level)) as opened:
        run = opened.open_run(job.run.id)
        opened.read_manifests(run, run.steps())
        return [manifest.epoch for manifest in run.complete()]


def _compare(where: str, before: list[int], level: Path, job: Job, counts: Counts) -> None:
    """What claims to be complete at the upload level must come back to the bit; of two, the newer one must be there."""
    there = uploaded(level, job)
    gone = [epoch for epoch in before[:1] if epoch not in there]
    counts.lost += [f"{where}: step {epoch} is gone from the upload level" for epoch in gone]
    with tempfile.TemporaryDirectory(prefix="mainstay-bench-") as back, open_level(str(level)) as opened:
        for epoch in there:
            try:
                opened.fetch(Path(back), opened.find(job.run.id, epoch))
            except CheckpointError as error:
                counts.false_whole.append(f"{where}: {error}")
                continue
            wrong = [e for e in job.false_steps(RunDirectory(Path(back) / job.run.id)) if f"step {epoch} " in e]
            counts.false_whole += [f"{where}: uploaded {problem}" for problem in wrong]


# In the process below the disk


def _read(source: ResumeSource, arenas: Sequence[str]) -> Found:
    """The slots of the parts of a step."""
    epoch, slots = source.manifest.epoch, []
    for entry, path in zip(source.manifest.parts, arenas, strict=True):
        layout = Arena.attach(Path(path)).layout
        slot = np.empty(layout.nbytes, np.uint8)
        read_slot(source.run, source.run.part(epoch, entry.rank, entry.generation), layout, slot)
        slots.append(slot.tobytes())
    return Found(epoch=epoch, slots=tuple(slots))


def carry_out(task: DiskTask) -> Found:
    """Read or upload; a refusal is an answer too, any other error ends the process."""
    directory = Path(task.directory)
    try:
        if not task.url:
            return _read(find(directory), task.arenas)
        policy = RetentionPolicy(last=KEEP)
        with open_level(task.url, retry_seconds=1.0) as level:
            request = UploadRequest(directory=task.directory, url=task.url, job="bench", node="n", policy=policy)
            done = list(iter(Uploader(level, request).upload_next, None))
            for run in runs(directory):  # the last removal may have failed
                level.prune(run, policy)
        return Found(epoch=max((epoch for _, epoch in done), default=0))
    except CheckpointError as error:
        return Found(problem=str(error))
    except OSError as error:
        if task.url:  # as the process that uploads says it
            return Found(problem=problem_line(error, task.directory))
        raise


def main() -> int:
    """``python -m bench.lib_device_faults``: answers until stdin ends."""
    decoder = msgspec.json.Decoder(DiskTask)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(carry_out(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
