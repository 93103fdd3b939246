"""What the coordinator tells the world: a file that anyone can follow, and the service, when there is one.

Everything happens on threads of its own; ``event``, ``step`` and ``job`` only put something into a queue. A service
that is away, slow or broken costs neither training nor recovery anything: what it has not taken waits on disk.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from probes.ids import uuid7
from probes.outbox import EventOutbox
from probes.shipper import FrameSender
from probes.spool import Spool
from probes.transport import Backoff, Later, Refused, Transport
from probes.words import Event, EventKind
from recovery.launcher.messages import StepRecord
from recovery.launcher.options import RunOptions
from recovery.launcher.steps import StepFrames

log = logging.getLogger("mainstay.report")

JOB_SECONDS: Final = 1.0
"""A job is reported when it changes, and at least this often."""
_DRAIN_SECONDS: Final = 5.0
"""How long the end of a job waits for a service that is there to take the last words."""


class Reporter:
    """Events, step frames and the job's state, on their way out."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        directory = options.state_dir
        directory.mkdir(parents=True, exist_ok=True)
        self._events_file = (directory / "events.jsonl").open("ab", buffering=0)
        self._job_path = directory / "job.json"
        self._job_path.unlink(missing_ok=True)  # of a run of the same name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._frames = StepFrames(options.job, options.world_size)
        self._service = _Service(options) if options.service else None
        self._thread = threading.Thread(target=self._run, name="mainstay-report", daemon=True)
        self._thread.start()

    def event(
        self,
        kind: EventKind,
        *,
        time_: float | None = None,
        node: str | None = None,
        rank: int | None = None,
        generation: int | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Something happened: at once to the file and to the spool."""
        event = Event(
            id=uuid7(),
            time=time.time() if time_ is None else time_,
            kind=kind,
            node=node,
            job=self._options.job,
            rank=rank,
            generation=generation,
            data=data or {},
        )
        self._queue.put(lambda: self._write_event(event))

    def step(self, rank: int, record: StepRecord) -> None:
        """One rank committed one step."""
        self._queue.put(lambda: self._frames.add(rank, record))

    def job(self, report: dict[str, Any]) -> None:
        """The job's present state, as ``PUT /v1/jobs/{id}`` wants it."""
        self._queue.put(lambda: self._write_job(report))

    def close(self) -> None:
        """Write what is queued; give the service a few seconds for what it has not taken."""
        self._queue.put(None)
        self._thread.join(_DRAIN_SECONDS)
        if self._service is not None:
            self._service.close(_DRAIN_SECONDS)

    # The reporting thread

    def _run(self) -> None:
        while True:
            try:
                work = self._queue.get(timeout=self._frames.due_in())
            except queue.Empty:
                self._send_frame()
                continue
            if work is None:
                self._send_frame()
                self._events_file.close()
                return
            try:
                work()
            except OSError as error:  # a full disk must not end the job that it reports on
                log.warning("a report was lost: %s", error)
            if self._frames.due_in() <= 0.0:
                self._send_frame()

    def _write_event(self, event: Event) -> None:
        self._events_file.write(msgspec.json.encode(event) + b"\n")
        if self._service is not None:
            self._service.outbox.put(event)

    def _write_job(self, report: dict[str, Any]) -> None:
        new = self._job_path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode({"id": self._options.job, **report}))
        new.replace(self._job_path)
        if self._service is not None:
            self._service.put_job(report)

    def _send_frame(self) -> None:
        frame = self._frames.cut()
        if frame is not None and self._service is not None:
            try:
                self._service.frames.put(**frame)
            except OSError as error:
                log.warning("step records were lost: %s", error)


class _Service:
    """The three ways to the service: spooled events, spooled frames, and the newest job report."""

    def __init__(self, options: RunOptions) -> None:
        assert options.service is not None
        self._job = options.job
        transport = Transport(options.service, options.service_token)
        spools = options.state_dir / "spool"
        self._event_spool = _spool(spools / "events")
        self._frame_spool = _spool(spools / "frames")
        self.outbox = EventOutbox(self._event_spool, transport).start()
        self.frames = FrameSender(self._frame_spool, transport).start()
        self._transport = transport
        self._newest: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._put_jobs, name="mainstay-job", daemon=True)
        self._thread.start()

    def put_job(self, report: dict[str, Any]) -> None:
        """Replace what is to be told about the job: only the newest state is worth telling."""
        with self._wake:
            self._newest = report
            self._wake.notify()

    def close(self, seconds: float) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(seconds)
        for sender in (self.outbox, self.frames):
            if not sender.stop(seconds):
                log.warning("the service did not take everything; the rest waits in the spool for the next run")
        self._event_spool.close()
        self._frame_spool.close()
        self._transport.close()

    def _put_jobs(self) -> None:
        backoff = Backoff(base=0.1, cap=5.0)
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._newest is not None or self._closing)
                report, self._newest = self._newest, None
            if report is None:
                return
            try:
                self._transport.json("PUT", f"/jobs/{self._job}", report)
                backoff.reset()
            except Refused as error:
                log.warning("the service refuses the job report: %s", error)
            except Later:
                self._try_again(report, backoff.next())

    def _try_again(self, report: dict[str, Any], seconds: float) -> None:
        with self._wake:
            if self._newest is None and not self._closing:
                self._newest = report
            self._wake.wait_for(lambda: self._closing, seconds)


def _spool(directory: Path) -> Spool:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Spool(directory)
