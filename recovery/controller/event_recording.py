"""A recording of a job: every event that changed its state, with the effects; one JSON value a line.

The first line says with what the job began. A coordinator that takes over begins a file of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.ids import uuid7
from mainstay.recovery.controller.state.effects import Effect
from mainstay.recovery.controller.state.events import JobEvent
from mainstay.recovery.controller.state.job_state import FIELDS, JobState
from mainstay.recovery.membership.members import Members
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy

log = logging.getLogger("mainstay.coordinator")

FORMAT: Final = 3


class RecordingError(ValueError):
    """A file is no recording, or is damaged; the message says where."""


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the state of the job was before its first event."""

    format: int
    job: str
    term: int
    """How many coordinators the job has had."""
    nnodes: int
    nproc: int
    spare_nodes: int
    started_at: float
    run: str
    disk_every: int
    parity_every: int
    on_loss: LossPolicy
    dp: int
    pp: int
    tp: int = 0

    def state(self) -> JobState:
        known = {name: getattr(self, name) for name in FIELDS.intersection(self.__struct_fields__)}
        return JobState(Members(self.nnodes, self.nproc, self.spare_nodes), **known)


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event as it was applied."""

    at: float
    """Unix seconds."""
    event: JobEvent
    effects: list[Effect]


class EventRecorder:
    """Writes the recording of one coordinator to ``DIRECTORY/JOB-TERM-ID.jsonl``; each line is there at once.

    A disk that is full ends the recording, and not the job.

    Raises:
        OSError: the directory cannot be written.
    """

    def __init__(self, directory: Path, options: RunOptions, term: int, state: JobState) -> None:
        known = {name: getattr(state, name) for name in FIELDS.intersection(RecordingHeader.__struct_fields__)}
        header = RecordingHeader(
            format=FORMAT, job=options.job, term=term, nnodes=options.nnodes, nproc=options.nproc,
            spare_nodes=options.spare_nodes, **known,
        )  # fmt: skip
        self.path = directory / f"{options.job}-{term}-{uuid7()}.jsonl"
        self._encoder = msgspec.json.Encoder()
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.touch(mode=0o600, exist_ok=False)  # private from its first byte
            self._file: BinaryIO = self.path.open("ab", buffering=0)
        except OSError as error:
            raise OSError(f"--record-events {directory}: {error}") from error
        self._file.write(self._encoder.encode(header) + b"\n")

    def record(self, event: JobEvent, effects: list[Effect]) -> None:
        """Keep one event."""
        if self._file.closed:
            return
        line = self._encoder.encode(RecordedEvent(at=time.time(), event=event, effects=effects)) + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            log.warning("DEGRADED the recording %s ends here: %s", self.path, error)
            self.close()

    def close(self) -> None:
        self._file.close()


def read_recording(path: Path) -> tuple[RecordingHeader, Iterator[RecordedEvent]]:
    """The header of a recording, and its events as they are read.

    A last line that is cut short is left out: its coordinator was killed as it wrote.

    Raises:
        OSError: the file cannot be read.
        RecordingError: it is no recording; or, from the iterator, a line is damaged.
    """
    with path.open("rb") as file:
        first = file.readline()
    try:
        header = msgspec.json.decode(first, type=RecordingHeader)
    except UNREADABLE as error:
        raise RecordingError(f"{path} is no recording of a job: {error}") from error
    if header.format != FORMAT:
        raise RecordingError(f"{path} has format {header.format}; this version of Mainstay reads format {FORMAT}")
    return header, _events(path)


def _events(path: Path) -> Iterator[RecordedEvent]:
    decoder = msgspec.json.Decoder(RecordedEvent)
    with path.open("rb") as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except UNREADABLE as error:
                raise RecordingError(f"{path}, line {number}: {error}") from error
