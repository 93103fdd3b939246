"""Validations on this node: ``mainstay validate`` in a process beside the daemon, one task at a time.

Invariant: ``ValidationRunner`` submits one result for every task, with all that was measured until it
ended. A canceled run releases the GPUs within ``GIVE_BACK_S``.
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
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from mainstay.probes.benchmarks.progress import Progress, read_log
from mainstay.probes.benchmarks.result import BenchmarkResult
from mainstay.probes.child_process import kill_session, last_line
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.recent import Recent

log = logging.getLogger(__name__)

GIVE_BACK_S: Final = 5.0
"""From calling a run off until nothing of it is left: what a scheduler is promised."""
_RETRY_S: Final = 4.5
"""From SIGTERM until SIGKILL: ``validate`` ends what it runs and prints what it has in less."""
_LONGEST_S: Final = 4 * 3600.0
"""No suite runs longer, for any task."""
_LOOK_S: Final = 0.1
_TELL_S: Final = 1.0
"""Least time between two reports of progress."""
_NICENESS: Final = 10
_MAX_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_REMEMBERED: Final = 1000
VALIDATE: Final = (sys.executable, "-m", "mainstay", "validate")


class ValidationTask(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``GET /v1/nodes/{name}/tasks``."""

    id: str
    kind: str
    """``validate``: run a suite; ``cancel``: end the validation and give the machine back."""
    deadline_at: float = 0.0
    suite: str = ""
    benchmarks: tuple[str, ...] = ()
    """A part of the suite; empty: all of it."""
    validation_id: str = ""
    reason: str = ""
    remeasure: int = 0
    """How often to measure again what fails by the criteria; needs them."""
    criteria: dict[str, Any] | None = None
    """The content of a criteria file."""


class ValidationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/validations/{id}/results``."""

    suite: str
    started_at: float
    finished_at: float
    benchmarks: list[dict[str, Any]]
    error: str | None


class ValidationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/validations/{id}/progress``: how far a run is."""

    index: int
    """Runs of benchmarks that have ended."""
    total: int
    benchmark: str
    """In progress, or the last that ended."""
    device: str
    state: Literal["running", "done"]
    done: tuple[str, ...]
    """``benchmark on device: state`` of each that has ended, in order."""


Tell = Callable[[str, ValidationProgress], None]
"""Receives a validation's id and its progress; must not raise."""


def _untold(_id: str, _progress: ValidationProgress) -> None: ...


class ValidationProcess:
    """Runs one task: niced, in a session of its own, ended at its deadline or when canceled."""

    def __init__(
        self, command: Sequence[str] = VALIDATE, clock: Callable[[], float] = time.time, tell: Tell = _untold
    ) -> None:
        self.tell = tell
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._current = ""
        self._canceled: Recent[str, str] = Recent(_REMEMBERED)
        self._stopped = False

    def run(self, order: ValidationTask) -> ValidationReport:
        """Carry out one order; a failure to run is a result with an error."""
        started = self._clock()
        with tempfile.TemporaryDirectory(prefix="mainstay-validate-") as folder:
            running = _Run(order, Path(folder), self.tell)
            try:
                benchmarks, error = self._measure(running, min(order.deadline_at - started, _LONGEST_S))
            except (OSError, ValueError) as failure:
                benchmarks, error = running.measured(), str(failure)
                log.warning("validation %s: %s", order.validation_id, error)
        return ValidationReport(
            suite=order.suite, started_at=started, finished_at=self._clock(), benchmarks=benchmarks, error=error
        )

    def cancel(self, validation_id: str, reason: str) -> None:
        """Cancel a validation, whether it runs or not; what runs is asked first and then made to end."""
        with self._lock:
            self._canceled[validation_id] = reason or "canceled"
            if self._process is not None and self._current == validation_id and self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGTERM)

    def stop(self) -> None:
        """End a run in progress for good; its result has this reason."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                kill_session(self._process)

    def _measure(self, running: _Run, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
        if seconds <= 0:
            raise ValueError("the deadline had passed before the validation could start")
        with running.output.open("wb") as output, running.complaints.open("wb") as complaints:
            process = self._start(running, output.fileno(), complaints.fileno())
            self._wait(process, running, seconds)
        return running.parsed(process.returncode)

    def _start(self, running: _Run, output: int, complaints: int) -> subprocess.Popen[bytes]:
        order = running.order
        part = ("--benchmarks", ",".join(order.benchmarks)) if order.benchmarks else ()
        command = [
            *self._command,
            "--suite",
            order.suite,
            *part,
            *running.remeasure(),
            "--json",
            "--log",
            str(running.log),
        ]
        with self._lock:
            if self._stopped:
                raise ValueError("the node daemon is stopping")
            if why := self._canceled.get(order.validation_id):
                raise ValueError(f"canceled before it started: {why}")
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=complaints, start_new_session=True
            )
            self._current = order.validation_id
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)
            return self._process

    def _wait(self, process: subprocess.Popen[bytes], running: _Run, seconds: float) -> None:
        deadline, retry = time.monotonic() + seconds, None
        while not _ended(process, _LOOK_S):
            running.report()
            now = time.monotonic()
            why = self._canceled.get(running.order.validation_id)
            retry = retry or (now + _RETRY_S if why else None)
            if now > deadline or (retry is not None and now > retry):
                kill_session(process)
                said = f"canceled: {why}" if why else f"did not end within its {seconds:.0f} s"
                raise ValueError(f"the validation {said} and was killed")
        if self._stopped:
            raise ValueError("the node daemon was stopped during the validation")
        if why := self._canceled.get(running.order.validation_id):
            running.canceled = why


class _Run:
    """The files of one run, and what has been told of it."""

    def __init__(self, order: ValidationTask, folder: Path, tell: Tell) -> None:
        self.order = order
        names = ("output", "complaints", "log", "criteria.json")
        self.output, self.complaints, self.log, self._criteria = (folder / name for name in names)
        self.canceled = ""
        self._tell = tell
        self._told_at = -_TELL_S
        self._told_bytes = 0

    def remeasure(self) -> tuple[str, ...]:
        """What makes ``validate`` measure again what fails; the criteria go by file."""
        if not self.order.remeasure or self.order.criteria is None:
            return ()
        self._criteria.write_bytes(msgspec.json.encode(self.order.criteria))
        return ("--criteria", str(self._criteria), "--remeasure", str(self.order.remeasure))

    def steps(self) -> list[Progress]:
        try:
            return read_log(self.log.read_bytes())
        except (OSError, *UNREADABLE):
            return []

    def measured(self) -> list[dict[str, Any]]:
        """Return the results in the log, which survives the run. A repeated measurement keeps its first result."""
        first: dict[tuple[str, str], BenchmarkResult] = {}
        for step in self.steps():
            if step.result is not None:
                first.setdefault((step.benchmark, step.device), step.result)
        return [msgspec.to_builtins(one) for one in first.values()]

    def report(self) -> None:
        """Tell how far it is, if that has changed, once a second at most."""
        size = self.log.stat().st_size if self.log.exists() else 0
        now = time.monotonic()
        if size == self._told_bytes or now - self._told_at < _TELL_S:
            return
        self._told_bytes, self._told_at = size, now
        if steps := self.steps():
            self._tell(self.order.validation_id, _progress(steps))

    def parsed(self, status: int) -> tuple[list[dict[str, Any]], str | None]:
        """Benchmarks, and what went wrong, in what ``validate --json`` printed.

        The exit status of a command that printed a result is its verdict's business, not ours.
        """
        try:
            document = msgspec.json.decode(_read(self.output))
        except UNREADABLE:
            last = last_line(_read(self.complaints))
            raise ValueError(f"mainstay validate ended with status {status} and no result: {last}") from None
        benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
        if not isinstance(benchmarks, list) or not all(isinstance(b, dict) for b in benchmarks):
            raise ValueError("mainstay validate printed a result without benchmarks")
        error = f"canceled: {self.canceled}" if self.canceled else document.get("error")
        if not benchmarks:
            raise ValueError(error or "mainstay validate printed a result without benchmarks")
        return benchmarks, error


def _progress(steps: Sequence[Progress]) -> ValidationProgress:
    ended = [step for step in steps if step.result is not None]
    last = steps[-1]
    earlier = [before for before, after in pairwise(steps) if before.result is not None and after.index <= before.index]
    return ValidationProgress(
        index=len(ended),
        total=last.total + sum(step.total for step in earlier),
        benchmark=last.benchmark,
        device=last.device,
        state="done" if last.result is not None and last.index + 1 >= last.total else "running",
        done=tuple(f"{s.benchmark} on {s.device}: {s.result.state}" for s in ended if s.result is not None),
    )


def _read(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(_MAX_OUTPUT_BYTES)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


class ValidationRunner:
    """A thread that carries out validations in the order in which they came, so that the node can hear meanwhile.

    Args:
        validator: runs one order.
        done: takes a validation's id and its result; called from this thread.
    """

    def __init__(self, validator: ValidationProcess, done: Callable[[str, ValidationReport], None]) -> None:
        self._validator = validator
        self._done = done
        self._orders: OrderedDict[str, ValidationTask] = OrderedDict()
        self._seen: Recent[str, None] = Recent(_REMEMBERED)
        self._changed = threading.Condition()
        self._stopping = False
        self._current = ""
        self._thread = threading.Thread(target=self._work, name="validations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, order: ValidationTask) -> None:
        """Queue an order; one that came before (its delivery may be repeated) is left aside."""
        with self._changed:
            if order.validation_id in self._seen:
                return
            self._seen[order.validation_id] = None
            self._orders[order.validation_id] = order
            self._changed.notify_all()

    def cancel(self, order: ValidationTask) -> None:
        """Call a validation off: its result comes as soon as nothing of it is left."""
        self._validator.cancel(order.validation_id, order.reason)

    def busy(self) -> str:
        """What is being carried out or waits for it, in words; empty: nothing."""
        with self._changed:
            waiting = next(iter(self._orders), "")
        return f"validation {found} has this node" if (found := self._current or waiting) else ""

    def stop(self) -> None:
        """End what runs and take nothing more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._validator.stop()

    def _work(self) -> None:
        while (order := self._next()) is not None:
            log.info("validating with suite %s", order.suite)
            self._done(order.validation_id, self._validator.run(order))
            self._current = ""

    def _next(self) -> ValidationTask | None:
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._stopping)
            if self._stopping:
                return None
            self._current, order = self._orders.popitem(last=False)
            return order
