"""Calls that may hang, each in a thread of its own: asked, waited for within a budget, reported when they are silent.

A thread that hangs cannot be ended, only left alone. So nothing here ever waits for an answer without a limit, and an
answer carries the ticket under which it was asked for: one that comes late frees its thread and is thrown away, because
readings of one second must never stand in the row of another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.probes.samplers.base import SourceEvent, Tell

log = logging.getLogger(__name__)

_IN_VAIN: Final = 3
"""Rows in a row that a channel spoils by answering too late or with an error before it is reported: one may be
chance."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """What a call raised, in words."""

    reason: str


class RunningTime:
    """Seconds in which this process ran as it meant to.

    Whoever was suspended, stopped or starved of its processor knows nothing about how long others took: of a wait that
    lasted longer than was asked for, only what was asked for counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self.total = 0.0

    def passed(self, at_most: float) -> float:
        """Count the time since the last call, at most what we meant to let pass, and return the total."""
        now = self._clock()
        self.total += min(max(0.0, now - self._last), at_most)
        self._last = now
        return self.total


class CallThread:
    """A thread that makes one call after another; ``ticket`` is the round of the one under way, None when idle."""

    def __init__(self, name: str, answers: SimpleQueue[tuple[CallThread, int, Any]]) -> None:
        self.name = name
        self.ticket: int | None = None
        self._answers = answers
        self._calls: SimpleQueue[tuple[int, Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start_call(self, ticket: int, call: Callable[[], Any]) -> None:
        """Let the thread make the call. Only while it is idle."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        self.ticket = ticket
        self._calls.put((ticket, call))

    def dismiss(self) -> None:
        """Let the thread end once its call has returned, if it ever does."""
        self._calls.put(None)

    def _run(self) -> None:
        while (order := self._calls.get()) is not None:
            ticket, call = order
            try:
                answer = call()
            except Exception as error:  # named boundary: what one source raises must not cost the others their readings
                log.debug("%s failed", self.name, exc_info=True)
                answer = CallFailure(f"{type(error).__name__}: {error}")
            self._answers.put((self, ticket, answer))


@dataclass(slots=True, eq=False)
class MonitoredChannel:
    """One thing that is asked again and again, and whether it still answers."""

    name: str
    sampler: str
    devices: tuple[str | None, ...]
    """Whom its silence concerns; (None,) is the node."""
    deadline: float
    """Seconds after which a call that has not returned is reported."""
    punctual: bool
    """Whether an answer is good for the row of its own round only; else it is good whenever it comes."""
    caller: CallThread
    answer: Any = None
    """What was answered and not yet fetched."""
    asked: float = 0.0
    """Running time when the call was made that is under way."""
    vain: int = 0
    silent: bool = False
    hung: bool = False
    """Why it is silent: its call does not return (else it returns nothing)."""
    greeted: bool = False
    """Whether it has answered once; a new process reports it, because an earlier process may have reported a
    timeout."""

    @property
    def busy(self) -> bool:
        return self.caller.ticket is not None

    def fetch(self) -> Any:
        """The answer, once; ``CallFailure`` is an answer too, None is none."""
        answer, self.answer = self.answer, None
        return answer


@dataclass(slots=True)
class ChannelSupervisor:
    """Asks, collects and reports, round by round. Used from one thread; ``tell`` gets what is to be said.

    A round is ``begin``, ``ask`` and ``collect`` (as often as wanted), ``close``. ``interval`` is the time between two
    rounds in seconds: what passes beyond it between them was not ours.
    """

    tell: Tell
    interval: float
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _answers: SimpleQueue[tuple[CallThread, int, Any]] = field(default_factory=SimpleQueue)
    _round: int = 0
    _open: bool = False
    """The row of this round has not been written yet."""
    _watched: dict[CallThread, MonitoredChannel] = field(default_factory=dict)
    _running: RunningTime = field(init=False)

    def __post_init__(self) -> None:
        self._running = RunningTime(self.clock)

    def watch(
        self, name: str, sampler: str, devices: Iterable[str | None], deadline: float, *, punctual: bool
    ) -> MonitoredChannel:
        """A new thing to ask."""
        caller = CallThread(name, self._answers)
        watched = self._watched[caller] = MonitoredChannel(name, sampler, tuple(devices), deadline, punctual, caller)
        return watched

    def forget(self, watched: MonitoredChannel) -> None:
        """Stop reading this channel. A thread that hangs stays behind."""
        if watched.silent:
            self._say(watched, {"cleared": True, "gone": True})
        del self._watched[watched.caller]
        watched.caller.dismiss()

    def start_round(self) -> None:
        """Start a new round."""
        self._running.passed(self.interval)
        self._drain()
        self._round += 1
        self._open = True

    def start_call(self, watched: MonitoredChannel, call: Callable[[], Any]) -> None:
        """Make the call, unless the one before has not returned."""
        if not watched.busy:
            watched.asked = self._running.total
            watched.caller.start_call(self._round, call)

    def collect(self, wanted: Iterable[MonitoredChannel], budget: float) -> None:
        """Wait until all that were asked in this round have answered, at most ``budget`` seconds."""
        waiting = [w for w in wanted if w.caller.ticket == self._round]
        end = self.clock() + budget
        while any(w.busy for w in waiting) and (left := end - self.clock()) > 0:
            self._take(left)
        self._drain()

    def close(self, until: float) -> None:
        """The row is written: report who has been silent for too long, waiting at most ``until`` seconds for that.

        A call that hangs is reported when its time is over, not only in the next round.
        """
        self._open = False
        end = self.clock() + until
        while awaited := [watched for watched in self._watched.values() if self._hopes(watched)]:
            soonest = min(map(self._left, awaited))
            if soonest <= 0:
                self._report()
            elif end - self.clock() < soonest:
                return
            else:
                self._take(soonest)

    def _hopes(self, watched: MonitoredChannel) -> bool:
        return watched.busy and not watched.silent

    def _left(self, watched: MonitoredChannel) -> float:
        return watched.asked + watched.deadline - self._running.total

    def _drain(self) -> None:
        while self._take(0.0):
            pass

    def _take(self, timeout: float) -> bool:
        """Take one answer in; False when none came within ``timeout`` seconds."""
        try:
            caller, ticket, answer = self._answers.get(timeout=timeout) if timeout > 0 else self._answers.get_nowait()
        except Empty:
            return False
        finally:
            self._running.passed(timeout)
        caller.ticket = None
        watched = self._watched.get(caller)
        if watched is not None:
            late = watched.punctual and not (self._open and ticket == self._round)
            watched.answer = None if late else answer
            self._judge(watched, answer, late=late)
        return True

    def _judge(self, watched: MonitoredChannel, answer: Any, *, late: bool) -> None:
        in_vain = isinstance(answer, CallFailure) or (late and not watched.hung)
        if not in_vain:
            watched.vain = 0
            if watched.silent or not watched.greeted:
                watched.silent, watched.hung, watched.greeted = False, False, True
                self._say(watched, {"cleared": True})
            return
        watched.vain += 1
        if watched.vain >= _IN_VAIN and not watched.silent:
            took = self._running.total - watched.asked
            late_reason = f"answers after {took:.1f} s, too late for its row"
            self._silence(watched, answer.reason if isinstance(answer, CallFailure) else late_reason, took)

    def _report(self) -> None:
        for watched in list(self._watched.values()):
            if self._hopes(watched) and self._left(watched) <= 0:
                waited = self._running.total - watched.asked
                watched.hung = True
                self._silence(watched, f"has not answered for {waited:.1f} s", waited)

    def _silence(self, watched: MonitoredChannel, reason: str, seconds: float) -> None:
        log.error("%s: %s", watched.name, reason)
        watched.silent = True
        self._say(watched, {"reason": reason, "seconds": round(seconds, 3), "hung": watched.hung})

    def _say(self, watched: MonitoredChannel, data: dict[str, Any]) -> None:
        about = {"sampler": watched.sampler, "channel": watched.name}
        for device in watched.devices:
            self.tell(SourceEvent(kind=EventKind.PROBE_UNRESPONSIVE, t=self.now(), device=device, data=about | data))
