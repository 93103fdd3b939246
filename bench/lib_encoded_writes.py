"""Steps of a training job, each written in full and encoded, by the process that writes in a job."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from bench.lib_checkpoint_models import Job, layout_of, slot_of
from mainstay.recovery.agent.checkpoint_writer import WriterProcess
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import DiskConfig, StepEncoding
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import SlotOrder, WriteRequest
from mainstay.recovery.memory.arena import Arena


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """A step on disk."""

    nbytes: int
    seconds: float
    """To write it, with fsync."""
    read: int
    """Bytes that the process read for it, from disk or page cache."""
    is_full: bool


class EncodedWrites:
    """The slots of a rank that trains ``job``, and a process that writes for each encoding."""

    def __init__(self, job: Job) -> None:
        self._job, self.layout = job, layout_of(job)
        self._memory, self._disk = tempfile.TemporaryDirectory(dir="/dev/shm"), tempfile.TemporaryDirectory()
        path = Path(self._memory.name) / "rank-0.arena"
        self._arena = Arena.create(path, rank=0, layout=self.layout, slots=2)
        self._writers: dict[StepEncoding, WriterProcess] = {"full": WriterProcess(), "exact": WriterProcess()}
        for encoding in self._writers:
            self._submit(encoding, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.stop()
        self._arena.close()
        self._memory.cleanup()
        self._disk.cleanup()

    def write(self, epoch: int) -> dict[StepEncoding, WrittenStep]:
        """Write the state of the job as step ``epoch``; the encoded one is restored and compared."""
        slot, place = slot_of(self._job, self.layout), self._arena.choose().slot
        self._arena.begin_write(place, 1)[: self.layout.nbytes] = slot
        self._arena.verify(self._arena.commit(place, epoch, 1))
        order = SlotOrder(arena=str(self._arena.path), rank=0, epoch=epoch)
        found: dict[StepEncoding, WrittenStep] = {}
        for encoding in self._writers:
            read = self._bytes_read(encoding)
            seconds = self._submit(encoding, (order,))
            part = self._run(encoding).part(epoch, 0, 1)
            found[encoding] = WrittenStep(
                self._run(encoding).parts(epoch)[0].nbytes, seconds, self._bytes_read(encoding) - read,
                is_full=not part.is_encoded,
            )  # fmt: skip
        run, out = self._run("exact"), np.empty(self.layout.nbytes, np.uint8)
        run.manifest(epoch)
        read_slot(run, run.part(epoch, 0, 1), self.layout, out)
        if not np.array_equal(out, slot):
            raise RuntimeError(f"step {epoch} does not restore the same bits")
        return found

    def _bytes_read(self, encoding: StepEncoding) -> int:
        process = self._writers[encoding]._process  # noqa: SLF001 - its reads are measured from outside
        assert process is not None
        return int(Path(f"/proc/{process.pid}/io").read_text().split()[1])

    def _run(self, encoding: StepEncoding) -> RunDirectory:
        return RunDirectory(Path(self._disk.name) / encoding / "run-1")

    def _submit(self, encoding: StepEncoding, slots: tuple[SlotOrder, ...]) -> float:
        order = WriteRequest(
            directory=str(self._run(encoding).path.parent), job="bench", keep=RetentionPolicy(), slots=slots,
            config=DiskConfig(run="run-1", generation=1, every=1, dp=1, pp=1, tp=1, encoding=encoding),
        )  # fmt: skip
        result = self._writers[encoding].submit(order)
        problem = result.problem or "".join(slot.problem for slot in result.slots)
        if problem:
            raise RuntimeError(problem)
        return result.seconds
