"""The parent's side of the sampler child: read with a deadline, report silence, abandon, replace.

The parent never touches a driver and never waits for a child that does: a process in uninterruptible sleep cannot be
killed, so it is left behind and reaped if it ever ends. The sampler that it hung in stays out of its replacements
until the hung process is gone and a while has passed, so one dead GPU does not blind the node to everything else.
When only one channel hangs, the child continues without it. It is replaced once a new process has read that channel.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mainstay.probes.core_types import EventKind
from mainstay.probes.hang_retest import HangRetester
from mainstay.probes.samplers.base import SourceEvent
from mainstay.probes.samplers.protocol import Message, SampleRow, SourceEntered, Unpacker
from mainstay.probes.transport import Backoff

log = logging.getLogger(__name__)

_HEALTHY_S: Final = 60.0
"""A child that delivered this long is forgiven its predecessors' faults."""
_BENCH_S: Final = 60.0
"""A sampler that hung is tried again after about this long, after twice as long when it hangs again, and so on."""
_MAX_ABANDONED: Final = 4
"""Processes that cannot be killed; more of them would only pile up on the same dead driver."""
_KILL_WAIT_S: Final = 0.5
_OVERSLEPT_S: Final = 1.0
"""We ourselves did not run (suspended, stopped, starved): the child's silence proves nothing."""


@dataclass(frozen=True, slots=True)
class SamplerTimeout:
    """A child from which nothing comes any more: the data of a ``probe_unresponsive`` event."""

    pid: int
    reason: str
    seconds: float
    sampler: str
    """The source that it had entered and not left; empty when it hung outside a source."""
    killed: bool
    """False when it could not be killed and was left behind."""
    retry_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerProcessConfig:
    """How a sampler child is run. Seconds."""

    interval: float = 1.0
    deadline: float = 3.0
    """The longest silence between two rows; never less than three intervals."""
    boot_grace: float = 15.0
    """Until the first row: loading a driver for many cards takes seconds."""
    command: Sequence[str] = (sys.executable, "-m", "mainstay.probes.sampler_process")

    @property
    def silence(self) -> float:
        return max(self.deadline, 3 * self.interval)


class SamplerProcess:
    """One life of a sampler process."""

    def __init__(self, config: SamplerProcessConfig, without: Sequence[str], now: float) -> None:
        command = [*config.command, "--interval", str(config.interval)]
        command += [word for name in without for word in ("--without", name)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0, env=_frugal(os.environ)
        )
        assert self.process.stdout is not None
        self.pipe = self.process.stdout
        self.without = tuple(without)
        self.started = self.heard = now
        self.deadline = now + max(config.boot_grace, config.silence)
        self.doing = ""
        self.stuck: dict[str, float] = {}
        """Channels that hang in this process, and since when."""
        self._unpacker = Unpacker()

    def receive(self, config: SamplerProcessConfig, now: float) -> list[Message] | None:
        """Messages that are ready; None when the pipe was closed."""
        data = os.read(self.pipe.fileno(), 1 << 16)
        if not data:
            return None
        messages = self._unpacker.feed(data)
        for message in messages:
            if isinstance(message, SourceEntered):
                self.doing = message.sampler
            elif isinstance(message, SampleRow):
                self.heard, self.deadline, self.doing = now, now + config.silence, ""
            elif isinstance(message, SourceEvent) and message.kind is EventKind.PROBE_UNRESPONSIVE:
                self._note(message, now)
        return [message for message in messages if not isinstance(message, SourceEntered)]

    def _note(self, happened: SourceEvent, now: float) -> None:
        channel = str(happened.data.get("channel", ""))
        if happened.data.get("hung"):
            self.stuck.setdefault(channel, now)
        elif happened.data.get("cleared"):
            self.stuck.pop(channel, None)

    def reap(self) -> None:
        """The pipe is closed: let the process tell how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILL_WAIT_S)

    def kill(self, wait: float) -> bool:
        """End the process; False when it does not die."""
        self.process.kill()
        self.pipe.close()
        try:
            self.process.wait(wait)
        except subprocess.TimeoutExpired:
            return False
        return True


@dataclass(slots=True)
class _Benched:
    """A sampler kept out of the children: until a time, and while the process that hung in it lives."""

    until: float
    culprit: subprocess.Popen[bytes] | None = None

    def over(self, now: float) -> bool:
        return now >= self.until and (self.culprit is None or self.culprit.poll() is not None)


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


@dataclass
class SamplerSupervisor:
    """Keeps one sampler child at work. Used from one thread; ``wake`` may be called from anywhere."""

    config: SamplerProcessConfig
    on_silence: Callable[[SamplerTimeout], None]
    clock: Callable[[], float] = time.monotonic
    child: SamplerProcess | None = None
    _abandoned: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _benched: dict[str, _Benched] = field(default_factory=dict)
    _patience: dict[str, Backoff] = field(default_factory=dict)
    _backoff: Backoff = field(default_factory=lambda: Backoff(base=1.0, cap=60.0))
    _next_start: float = 0.0
    _closed: bool = False
    _trials: HangRetester = field(init=False)
    _wake: tuple[int, int] = field(default_factory=_pipe)

    def __post_init__(self) -> None:
        self._trials = HangRetester(self.config.command)

    def poll(self, timeout: float) -> list[Message]:
        """Wait at most ``timeout`` seconds for messages; start, judge and replace the child as needed."""
        now = self.clock()
        self._unbench(now)
        self._retry(now)
        if self.child is None and not self._start(now):
            self._select(None, min(timeout, self._next_start - now if now < self._next_start else 1.0))
            return []
        assert self.child is not None
        asked = min(timeout, max(0.0, self.child.deadline - now))
        ready = self._select(self.child, asked)
        return self._judge(self.child, ready=ready, overslept=self.clock() - now - asked > _OVERSLEPT_S)

    def wake(self) -> None:
        """Let ``poll`` return now; safe in a signal handler."""
        with suppress(BlockingIOError):  # full: it is awake already
            if not self._closed:
                os.write(self._wake[1], b"!")

    def close(self) -> None:
        """End the child and leave nothing behind that can be ended."""
        if self.child is not None and not self.child.kill(_KILL_WAIT_S):
            log.error("sampler child %d cannot be killed and is left behind", self.child.process.pid)
        self._trials.close()
        self.child, self._closed = None, True
        for descriptor in self._wake:
            os.close(descriptor)

    def _select(self, child: SamplerProcess | None, timeout: float) -> bool:
        watched = [self._wake[0]] if child is None else [self._wake[0], child.pipe.fileno()]
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._wake[0] in ready:
            os.read(self._wake[0], 64)
        return child is not None and child.pipe.fileno() in ready

    def _judge(self, child: SamplerProcess, *, ready: bool, overslept: bool) -> list[Message]:
        now = self.clock()
        if ready:
            return self._listen(child, now)
        if overslept:
            child.deadline = max(child.deadline, now + self.config.silence)
        elif now >= child.deadline:
            self._give_up(child, f"no sample for {now - child.heard:.1f} s", now)
        return []

    def _listen(self, child: SamplerProcess, now: float) -> list[Message]:
        try:
            messages = child.receive(self.config, now)
        except ValueError as error:  # msgspec's decoding errors are ValueErrors too
            self._give_up(child, f"unreadable: {error}", now)
            return []
        if messages is None:
            child.reap()
            self._give_up(child, "", now)
            return []
        if now - child.started > _HEALTHY_S:
            self._backoff.reset()
        return messages

    def _start(self, now: float) -> bool:
        self._abandoned = [process for process in self._abandoned if process.poll() is None]
        if now < self._next_start or len(self._abandoned) >= _MAX_ABANDONED:
            return False
        self.child = SamplerProcess(self.config, sorted(self._benched), now)
        return True

    def _give_up(self, child: SamplerProcess, reason: str, now: float) -> None:
        hung = bool(reason)
        dead = child.kill(_KILL_WAIT_S)
        self.child = None
        delay = self._backoff.next()
        self._next_start = now + delay
        if not dead:
            self._abandoned.append(child.process)
        if hung and child.doing:
            patience = self._patience.setdefault(child.doing, Backoff(base=_BENCH_S, cap=16 * _BENCH_S))
            self._benched[child.doing] = _Benched(now + patience.next(), None if dead else child.process)
        silence = SamplerTimeout(
            pid=child.process.pid,
            reason=reason or _epitaph(child.process.returncode),
            seconds=now - child.heard,
            sampler=child.doing,
            killed=dead,
            retry_seconds=delay,
        )
        log.error("sampler child %d: %s (in %s)", silence.pid, silence.reason, silence.sampler or "no source")
        self.on_silence(silence)

    def _retry(self, now: float) -> None:
        """Replace the child when a fresh process can read what hangs in it."""
        if self.child is None:
            return
        channel = self._trials.poll(self.child.stuck, now)
        if channel is not None and channel in self.child.stuck and len(self._abandoned) < _MAX_ABANDONED - 1:
            log.info("%s works in a fresh process: replacing child %d", channel, self.child.process.pid)
            if not self.child.kill(_KILL_WAIT_S):
                self._abandoned.append(self.child.process)
            self.child = None

    def _unbench(self, now: float) -> None:
        """When a sampler may come back, replace the healthy child that works without it."""
        back = [name for name, benched in self._benched.items() if benched.over(now)]
        for name in back:
            del self._benched[name]
        if self.child is not None and set(back) & set(self.child.without):
            log.info("trying sampler %s again", ", ".join(back))
            self.child.kill(_KILL_WAIT_S)
            self.child = None


def _frugal(environment: Mapping[str, str]) -> dict[str, str]:
    """One heap for all threads of the child: with one each a dozen of them cost megabytes, and they hardly allocate."""
    return {"MALLOC_ARENA_MAX": "1", **environment}


def _epitaph(returncode: int | None) -> str:
    if returncode is None:
        return "closed its pipe and lives on"
    if returncode < 0:
        return f"killed by {signal.Signals(-returncode).name}"
    return f"exited with status {returncode}"
