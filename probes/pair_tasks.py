"""Pairs on this node: each order in a process beside the daemon, at once, since its peer has its own at that moment.

Invariant: the runner submits one report for every task before its deadline. A process that dies,
hangs or prints nothing is a result with the reason. At most ``MOST`` run at a time, and none beside a validation, which
would be measured along with the network; a rejected task is an error result, which is no evidence.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from mainstay.probes.benchmarks.pair import MARGIN_SECONDS, failed
from mainstay.probes.benchmarks.pair_protocol import PairReport, PairTask
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.probes.child_process import kill_session, last_line
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.recent import Recent

log = logging.getLogger(__name__)

PAIR_COMMAND: Final = (sys.executable, "-m", "mainstay.probes.benchmarks.pair")
MOST: Final = 16
"""Pairs at a time: a machine with so many NICs and GPUs to tell apart is a large one."""
_LONGEST_SECONDS: Final = 3600.0
_KILL_SECONDS: Final = MARGIN_SECONDS / 2
"""How long before the deadline the runner kills a process that should have exited already."""
_STOP_SECONDS: Final = 3.0
_REMEMBERED: Final = 1000

Done = Callable[[str, PairReport], None]
"""Takes an order's id and its report; must not raise."""


class PairTaskRunner:
    """Carries out orders of kind ``pair``; ``take`` returns at once.

    Args:
        node: this node's name.
        done: called from the order's own thread.
        command: of the process, given the node's name.
        busy: why nothing can be measured now; empty: nothing speaks against it.
        clock: Unix seconds.
    """

    def __init__(
        self,
        node: str,
        done: Done,
        *,
        command: Sequence[str] = PAIR_COMMAND,
        busy: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._done = done
        self._command = command
        self._busy = busy
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Recent[str, None] = Recent(_REMEMBERED)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._threads: set[threading.Thread] = set()
        self._stopped = False

    def submit(self, order: PairTask) -> None:
        """Begin an order; one that came before (its delivery may be repeated) is left aside."""
        with self._lock:
            if order.id in self._seen or self._stopped:
                return
            self._seen[order.id] = None
            full = len(self._threads) >= MOST
            if not full:
                thread = threading.Thread(target=self._work, args=(order,), name="pair", daemon=True)
                self._threads.add(thread)
                thread.start()
        if full:
            self._refuse(order, f"{MOST} pairs are being measured here already")

    def stop(self) -> None:
        """End the running tasks; submit a result with this reason for each before the return."""
        with self._lock:
            self._stopped = True
            running, threads = list(self._running), list(self._threads)
        for process in running:
            kill_session(process)
        until = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self, order: PairTask) -> None:
        try:
            if why := self._busy():
                self._refuse(order, why)
                return
            log.info("measuring with %s", order.peer)
            started = self._clock()
            result = self._measured(order)
            self._done(order.id, PairReport(started_at=started, finished_at=self._clock(), result=result))
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _refuse(self, order: PairTask, why: str) -> None:
        now = self._clock()
        result = failed(order, BenchmarkState.ERROR, why)
        self._done(order.id, PairReport(started_at=now, finished_at=now, result=result))

    def _measured(self, order: PairTask) -> BenchmarkResult:
        left = min(order.deadline_at - _KILL_SECONDS - self._clock(), _LONGEST_SECONDS)
        begun = time.monotonic()
        try:
            with self._lock:
                if left <= 0 or self._stopped:
                    why = "the node daemon is stopping" if self._stopped else "the deadline had passed before it began"
                    return failed(order, BenchmarkState.ERROR, why)
                process = subprocess.Popen(
                    [*self._command, self._node],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                self._running.add(process)
        except OSError as error:
            return failed(order, BenchmarkState.ERROR, f"cannot measure: {error}")
        try:
            said, complaints = process.communicate(msgspec.json.encode(order), timeout=left)
        except subprocess.TimeoutExpired:
            words = f"the transfer with {order.peer} did not end within {left:.0f} s"
            return failed(order, BenchmarkState.TIMEOUT, words, time.monotonic() - begun)
        finally:
            self._over(process)
        return self._read(order, process.returncode, said, complaints)

    def _over(self, process: subprocess.Popen[bytes]) -> None:
        kill_session(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with self._lock:
            self._running.discard(process)

    def _read(self, order: PairTask, status: int, said: bytes, complaints: bytes) -> BenchmarkResult:
        if self._stopped:
            return failed(order, BenchmarkState.ERROR, "the node daemon was stopped during the measurement")
        try:
            return msgspec.json.decode(said, type=BenchmarkResult)
        except UNREADABLE:
            reason = f"its process ended with status {status} and no result: {last_line(complaints)}"
            return failed(order, BenchmarkState.ERROR, reason)
