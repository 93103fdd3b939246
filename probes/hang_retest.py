"""Fresh processes that try what hangs in the sampler child, before the child is replaced for its sake.

A call that hangs in one process may succeed in another, or hang there too and take the good cards with it. So a trial
comes first: it reads the one channel and ends. Only when it succeeded is the child worth replacing.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mainstay.probes.transport import Backoff

log = logging.getLogger(__name__)

_BENCH_S: Final = 60.0
"""What hangs is tried again after about this long, then after twice as long, and so on: the driver may have recovered,
but every process that hangs in it is one more that cannot be killed."""
_TRIAL_S: Final = 20.0
"""Loading a driver for many cards takes up to fifteen seconds."""
_MAX_HUNG: Final = 2
"""Retests that could not be killed; with more, only a channel that returns without a retest counts as working."""
_KILL_WAIT_S: Final = 0.5


@dataclass(slots=True)
class _Trial:
    channel: str
    process: subprocess.Popen[bytes]
    until: float


@dataclass(slots=True)
class HangRetester:
    """At most one trial at a time. ``command`` runs a sampler process; times are seconds on the caller's clock."""

    command: Sequence[str]
    _trial: _Trial | None = None
    _hung: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _due: dict[str, float] = field(default_factory=dict)
    _patience: dict[str, Backoff] = field(default_factory=dict)

    def poll(self, stuck: Mapping[str, float], now: float) -> str | None:
        """Return a channel that a new process can read, if any. ``stuck``: channel to since when it hangs."""
        self._hung = [process for process in self._hung if process.poll() is None]
        for channel in [channel for channel in self._due if channel not in stuck]:
            del self._due[channel]
        for channel in stuck:
            if channel not in self._due:
                self._due[channel] = now + self._wait(channel)
        if self._trial is not None:
            return self._judge(self._trial, now)
        due = [channel for channel, at in self._due.items() if at <= now]
        if due and len(self._hung) < _MAX_HUNG:
            self._start(due[0], now)
        return None

    def close(self) -> None:
        """End a trial that is under way."""
        if self._trial is not None:
            self._trial.process.kill()
            self._hung.append(self._trial.process)
            self._trial = None
        for process in self._hung:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT_S)

    def _wait(self, channel: str) -> float:
        return self._patience.setdefault(channel, Backoff(base=_BENCH_S, cap=64 * _BENCH_S)).next()

    def _start(self, channel: str, now: float) -> None:
        log.info("trying %s in a fresh process", channel)
        command = [*self.command, "--try", channel]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._trial = _Trial(channel, process, now + _TRIAL_S)
        self._due[channel] = now + self._wait(channel)

    def _judge(self, trial: _Trial, now: float) -> str | None:
        code = trial.process.poll()
        if code is None and now < trial.until:
            return None
        self._trial = None
        if code is None:
            trial.process.kill()
            self._hung.append(trial.process)
            log.warning("%s hangs in a fresh process too", trial.channel)
        return trial.channel if code == 0 else None
