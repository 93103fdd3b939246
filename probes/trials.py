"""Fresh processes that try what hangs in the sampler child, before the child is replaced for its sake.

A call that hangs in one process may succeed in another, or hang there too and take the good cards with it. So a trial
comes first: it reads the one lane and ends. Only when it succeeded is the child worth replacing.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from probes.transport import Backoff

log = logging.getLogger(__name__)

_BENCH_S: Final = 60.0
"""What hangs is tried again after about this long, then after twice as long, and so on: the driver may have recovered,
but every process that hangs in it is one more that cannot be killed."""
_TRIAL_S: Final = 20.0
"""Loading a driver for many cards takes up to fifteen seconds."""
_MAX_HUNG: Final = 2
"""Trials that could not be killed; beyond these only the first lane that returns by itself is believed."""
_KILL_WAIT_S: Final = 0.5


@dataclass(slots=True)
class _Trial:
    lane: str
    process: subprocess.Popen[bytes]
    until: float


@dataclass(slots=True)
class Trials:
    """At most one trial at a time. ``command`` runs a sampler process; times are seconds on the caller's clock."""

    command: Sequence[str]
    _trial: _Trial | None = None
    _hung: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _due: dict[str, float] = field(default_factory=dict)
    _patience: dict[str, Backoff] = field(default_factory=dict)

    def poll(self, stuck: Mapping[str, float], now: float) -> str | None:
        """``stuck``: lane to since when it hangs. A lane that a fresh process can read, None while there is none."""
        self._hung = [process for process in self._hung if process.poll() is None]
        for lane in [lane for lane in self._due if lane not in stuck]:
            del self._due[lane]
        for lane in stuck:
            if lane not in self._due:
                self._due[lane] = now + self._wait(lane)
        if self._trial is not None:
            return self._judge(self._trial, now)
        due = [lane for lane, at in self._due.items() if at <= now]
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

    def _wait(self, lane: str) -> float:
        return self._patience.setdefault(lane, Backoff(base=_BENCH_S, cap=64 * _BENCH_S)).next()

    def _start(self, lane: str, now: float) -> None:
        log.info("trying %s in a fresh process", lane)
        command = [*self.command, "--try", lane]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._trial = _Trial(lane, process, now + _TRIAL_S)
        self._due[lane] = now + self._wait(lane)

    def _judge(self, trial: _Trial, now: float) -> str | None:
        code = trial.process.poll()
        if code is None and now < trial.until:
            return None
        self._trial = None
        if code is None:
            trial.process.kill()
            self._hung.append(trial.process)
            log.warning("%s hangs in a fresh process too", trial.lane)
        return trial.lane if code == 0 else None
