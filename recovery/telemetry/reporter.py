"""What the coordinator tells the world: a file that its owner can follow, and the service, when there is one.

Everything happens on threads of its own; ``event``, ``step`` and ``job`` only put something into a queue. A service
that is away, slow or broken costs neither training nor recovery anything: what it has not taken waits on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.data_dir import private_directory
from mainstay.probes.durable_files import write_json
from mainstay.probes.ids import uuid7
from mainstay.probes.outbox import EventOutbox
from mainstay.probes.shipper import FrameSender
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers
from mainstay.recovery.telemetry.progress import ProgressFrames, ProgressSample
from mainstay.recovery.telemetry.step_frames import PairFrames, StepFrames

log = logging.getLogger("mainstay.report")

JOB_SECONDS: Final = 1.0
"""A job is reported when it changes, and at least this often."""
_DRAIN_SECONDS: Final = 5.0
"""How long the end of a job waits for a service that is there to take the last words."""
_LAST_SECONDS: Final = 0.5
"""Between attempts to send the last report of a job."""
_PROGRESS_BYTES: Final = 32 * 1024 * 1024
"""Progress is worth little once it is over; an entry may take a quarter, and the largest frame has 8 MiB."""
_REFUSALS: Final = 3
"""Frames of a kind refused without one taken: this service does not know the kind, and gets no more of it."""


class Reporter:
    """Events, step frames and the job's state, on their way out."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        directory = options.state_dir
        private_directory(directory)
        self._events_file = (directory / "events.jsonl").open("ab", buffering=0)
        self._job_path = directory / "job.json"
        self._job_path.unlink(missing_ok=True)  # of a run of the same name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._steps = StepFrames(options.job, options.world_size)
        self._pairs = PairFrames(options.job, options.world_size)
        self._progress = ProgressFrames(options.job, options.world_size)
        self._listeners: list[Callable[[Any], None]] = []
        self._service = _Service(options, self._hand_on) if options.service else None
        self._thread = threading.Thread(target=self._run, name="mainstay-report", daemon=True)
        self._thread.start()

    def event(self, kind: EventKind, data: dict[str, Any], *, time_: float | None = None, **about: Any) -> None:
        """Something happened: at once to the file and to the spool. ``about`` are its node, rank, and generation."""
        at = time.time() if time_ is None else time_
        event = Event(id=uuid7(), time=at, kind=kind, job=self._options.job, data=data, **about)
        self._queue.put(lambda: self._write_event(event))

    def step(self, rank: int, record: StepRecord) -> None:
        """One rank committed one step."""
        self._queue.put(lambda: self._steps.add_record(rank, record))

    def transfers(self, rank: int, message: Transfers) -> None:
        """What one rank received from its peers in a step."""
        self._queue.put(lambda: self._pairs.add_transfers(rank, message))

    def progress(self, sample: ProgressSample) -> None:
        """What all ranks are doing."""
        self._queue.put(lambda: self._progress.add_sample(sample))

    def job(self, report: dict[str, Any]) -> None:
        """The job's present state, as ``PUT /v1/jobs/{id}`` wants it."""
        self._queue.put(lambda: self._write_job(report))

    def listen(self, hear: Callable[[Any], None]) -> None:
        """Have ``hear`` called with the service's answer to each job report, in the event loop that runs now."""
        loop = asyncio.get_running_loop()

        def hand_over(answer: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the reporter
                loop.call_soon_threadsafe(hear, answer)

        self._listeners.append(hand_over)

    def _hand_on(self, answer: Any) -> None:
        for hear in self._listeners:
            hear(answer)

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
                work = self._queue.get(timeout=min(self._steps.due_in(), self._pairs.due_in()))
            except queue.Empty:
                self._send_frames(everything=True)
                continue
            if work is None:
                self._send_frames(everything=True)
                self._events_file.close()
                return
            try:
                work()
            except OSError as error:  # a full disk must not end the job that it reports on
                log.warning("a report was lost: %s", error)
            self._send_frames(everything=False)

    def _write_event(self, event: Event) -> None:
        self._events_file.write(msgspec.json.encode(event) + b"\n")
        if self._service is not None:
            self._service.outbox.put(event)

    def _write_job(self, report: dict[str, Any]) -> None:
        write_json(self._job_path, {"id": self._options.job, **report})
        if self._service is not None:
            self._service.put_job(report)

    def _send_frames(self, *, everything: bool) -> None:
        """Frames that are due, or all that there is to send."""
        if everything or self._steps.due_in() <= 0.0:
            self._send("steps", self._steps.cut())
        if everything or self._pairs.due_in() <= 0.0:
            for pairs in self._pairs.cut():
                self._send("pairs", pairs)
        while (everything or self._progress.due) and (frame := self._progress.cut()) is not None:
            self._send("progress", frame)

    def _send(self, what: str, frame: dict[str, Any] | None) -> None:
        if frame is None or self._service is None:
            return
        try:
            self._service.put_frame(what, frame)
        except (OSError, ValueError) as error:  # a full disk, or more than a spool takes
            log.warning("%s were lost: %s", what, error)


class _Service:
    """The ways to the service: spooled events, spooled frames of each kind, and the newest job report.

    Each kind of frame has a spool of its own, so that a service which does not know one still gets the others.
    """

    def __init__(self, options: RunOptions, answered: Callable[[Any], None]) -> None:
        assert options.service is not None
        self._answered = answered
        self._job = options.job
        transport = Transport(options.service, options.service_token)
        # Connections of their own: what is large and much must not be in the way of events and of the job's state.
        bulk = self._bulk = Transport(options.service, options.service_token)
        spools = options.state_dir / "spool"
        self.outbox = EventOutbox(Spool(spools / "events"), transport).start()
        self._senders = {
            "steps": FrameSender(Spool(spools / "frames"), bulk).start(),
            "pairs": FrameSender(Spool(spools / "pairs", _PROGRESS_BYTES), bulk).start(),
            "progress": FrameSender(Spool(spools / "progress", _PROGRESS_BYTES), bulk).start(),
        }
        self._unwanted: set[str] = set()
        self._transport = transport
        self._newest: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._until = math.inf
        """Monotonic seconds at which reports about the job are given up: it has ended."""
        self._thread = threading.Thread(target=self._put_jobs, name="mainstay-job", daemon=True)
        self._thread.start()

    def put_job(self, report: dict[str, Any]) -> None:
        """Replace the pending report about the job: of each field, only the newest state is worth sending."""
        with self._wake:
            self._newest = {**(self._newest or {}), **report}
            self._wake.notify()

    def put_frame(self, what: str, frame: dict[str, Any]) -> None:
        """Queue a frame, unless this service has shown that it does not know the kind.

        Raises:
            OSError: the disk refuses.
            ValueError: larger than a spool takes.
        """
        if what in self._unwanted:
            return
        sender = self._senders[what]
        if sender.spool.rejected >= _REFUSALS and not sender.delivered:
            log.warning("the service takes no frames of %s: none are sent any more", what)
            self._unwanted.add(what)
            return
        sender.put(**frame)

    def close(self, seconds: float) -> None:
        with self._wake:
            self._until = time.monotonic() + seconds
            self._wake.notify()
        self._thread.join(seconds)
        until = time.monotonic() + seconds
        for shipper in (self.outbox, *self._senders.values()):
            if not shipper.stop(max(0.1, until - time.monotonic())):
                log.warning("the service did not take everything; the rest waits in the spool for the next run")
            shipper.spool.close()
        self._transport.close()
        self._bulk.close()

    def _put_jobs(self) -> None:
        backoff = Backoff(base=0.1, cap=5.0)
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._newest is not None or self._until < math.inf)
                report, self._newest = self._newest, None
            if report is None:
                return
            try:
                self._answered(self._transport.json("PUT", f"/jobs/{self._job}", report))
                backoff.reset()
            except RejectedError as error:
                log.warning("the service refuses the job report: %s", error)
            except RetryableError:
                self._try_again(report, backoff.next())

    def _try_again(self, report: dict[str, Any], seconds: float) -> None:
        """After ``seconds``; sooner once the job has ended, since nothing newer follows."""
        with self._wake:
            until = self._until
            wait = seconds if until == math.inf else min(seconds, _LAST_SECONDS)
            self._wake.wait_for(lambda: self._until != until, wait)
            if time.monotonic() < self._until:
                self._newest = {**report, **(self._newest or {})}
