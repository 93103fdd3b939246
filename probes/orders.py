"""The node's control loop: it reports who it is, asks for orders by long poll, and carries them out.

A node only calls out. Whatever becomes of an order is posted: a validation that cannot be run is an error result (its
verdict is UNKNOWN), never silence, and results wait in a spool while the service is away.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from probes.decoding import UNREADABLE
from probes.identity import NodeReport
from probes.shipper import Shipper
from probes.spool import Entry, Spool
from probes.transport import Backoff, Later, Refused, Transport, TransportError

log = logging.getLogger(__name__)

_WAIT_S: Final = 20
_READ_S: Final = _WAIT_S + 10.0
_REPEAT_S: Final = 600.0
"""The report is repeated, in case the service was restored from an older state."""
_LONGEST_S: Final = 4 * 3600.0
"""No suite runs longer, whatever an order says."""
_NICENESS: Final = 10
_MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
VALIDATE: Final = (sys.executable, "-m", "mainstay", "validate")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /v1/nodes/{name}/orders``."""

    id: str
    kind: str
    deadline_at: float
    suite: str = ""
    validation_id: str = ""


class _Orders(msgspec.Struct, frozen=True):
    items: tuple[Order, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/validations/{id}/results``."""

    suite: str
    started_at: float
    finished_at: float
    benchmarks: list[dict[str, Any]]
    error: str | None


class _Posted(msgspec.Struct, frozen=True):
    validation_id: str
    result: Result


class ResultOutbox:
    """Results of validations on their way to the service; they wait on disk while it is away."""

    def __init__(self, spool: Spool, transport: Transport) -> None:
        self._spool = spool
        self._transport = transport
        self.shipper = Shipper(spool, self._deliver)

    def put(self, validation_id: str, result: Result) -> None:
        self._spool.append(msgspec.json.encode(_Posted(validation_id, result)))

    def _deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            posted = msgspec.json.decode(entry.payload, type=_Posted)
            try:
                self._transport.request("POST", f"/validations/{posted.validation_id}/results", posted.result)
            except Later as error:
                if error.status == 404 and error.slug:  # our service says so: nobody waits for this result
                    raise Refused(str(error), status=404, slug=error.slug) from error
                raise


class Validator:
    """Runs ``mainstay validate`` beside the daemon: niced, in a session of its own, ended at its deadline."""

    def __init__(self, command: Sequence[str] = VALIDATE, clock: Callable[[], float] = time.time) -> None:
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, order: Order) -> Result:
        """Carry out one order; a failure to run is a result with an error."""
        started = self._clock()
        benchmarks: list[dict[str, Any]] = []
        error: str | None = None
        try:
            benchmarks, error = self._measure(order, min(order.deadline_at - started, _LONGEST_S))
        except (OSError, ValueError) as failure:
            error = str(failure)
            log.warning("validation %s: %s", order.validation_id, error)
        return Result(
            suite=order.suite, started_at=started, finished_at=self._clock(), benchmarks=benchmarks, error=error
        )

    def stop(self) -> None:
        """End a run in progress, now and for good; its result says so."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _end(self._process)

    def _measure(self, order: Order, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        if seconds <= 0:
            raise ValueError("the deadline had passed before the validation could start")
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as complaints:
            command = [*self._command, "--suite", order.suite, "--json"]
            with self._lock:
                if self._stopped:
                    raise ValueError("the node daemon is stopping")
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints, start_new_session=True
                )
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)
            self._wait(self._process, seconds)
            output.seek(0)
            complaints.seek(0)
            return _parse(output.read(_MAX_OUTPUT_BYTES), complaints.read(_MAX_OUTPUT_BYTES), self._process.returncode)

    def _wait(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            raise ValueError(f"the validation did not end within its {seconds:.0f} s and was killed") from None
        if self._stopped:
            raise ValueError("the node daemon was stopped during the validation")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(5)


def _parse(output: bytes, complaints: bytes, status: int) -> tuple[list[dict[str, Any]], str | None]:
    """Benchmarks, and what went wrong, in what ``validate --json`` printed.

    The exit status of a command that printed a result is its verdict's business, not ours.
    """
    try:
        document = msgspec.json.decode(output)
    except UNREADABLE:
        last = complaints.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise ValueError(f"mainstay validate ended with status {status} and no result: {last[0]}") from None
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list) or not all(isinstance(b, dict) for b in benchmarks):
        raise ValueError("mainstay validate printed a result without benchmarks")
    error = document.get("error")
    if not benchmarks:
        raise ValueError(error or "mainstay validate printed a result without benchmarks")
    return benchmarks, error


class ControlLoop:
    """A thread: report first, then orders, for ever."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        validator: Validator,
        results: ResultOutbox,
        *,
        enrol: Callable[[], str] | None = None,
    ) -> None:
        self.name = name
        self.reported = threading.Event()
        """Set when the service has this node's current report."""
        self._transport = transport
        self._validator = validator
        self._results = results
        self._enrol = enrol
        self._report: NodeReport | None = None
        self._reported_at = 0.0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._backoff = Backoff(base=0.5, cap=15.0)
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop taking orders; a long poll in flight is left to end by itself."""
        self._stopping.set()
        self._validator.stop()
        with self._changed:
            self._changed.notify_all()

    def report(self, report: NodeReport) -> None:
        """Tell the service who we are, soon; the newest report wins."""
        with self._changed:
            self._report = report
            self.reported.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._report is not None or self._stopping.is_set())
        while not self._stopping.is_set():
            try:
                self._turn()
                self._recovered()
            except TransportError as error:
                self._pause(error)

    def _turn(self) -> None:
        if self._enrol is not None:
            self._transport.token, self._enrol = self._enrol(), None
        if not self.reported.is_set() or time.monotonic() - self._reported_at > _REPEAT_S:
            self._put_report()
        answer = self._transport.json("GET", f"/nodes/{self.name}/orders?wait={_WAIT_S}", read_s=_READ_S)
        try:
            orders = msgspec.convert(answer, _Orders).items
        except msgspec.ValidationError as error:
            raise Later(f"orders that cannot be read: {error}") from error
        for order in orders:
            self._obey(order)

    def _put_report(self) -> None:
        report = self._report
        self._transport.request("PUT", f"/nodes/{self.name}", report)
        self._reported_at = time.monotonic()
        with self._changed:
            if report is self._report:
                self.reported.set()

    def _obey(self, order: Order) -> None:
        if order.kind != "validate":
            log.warning("order %s of kind %r is not known to this version and was ignored", order.id, order.kind)
            return
        log.info("validating with suite %s", order.suite)
        self._results.put(order.validation_id, self._validator.run(order))

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._trouble:
            log.info("control: the service answers again")
        self._trouble = ""

    def _pause(self, error: TransportError) -> None:
        if error.status == 404:
            self.reported.clear()  # the service does not know us (any more)
        if str(error) != self._trouble:
            log.warning("control: %s", error)
        self._trouble = str(error)
        self._stopping.wait(max(self._backoff.next(), error.retry_after))
