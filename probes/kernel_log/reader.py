"""Follows the kernel log in a thread of the daemon and tells what its lines mean.

The reader reports every fact that is logged while the daemon runs. Of earlier facts, it reports only those that still
hold (a card that fell off the bus stays off until the next boot), once, with their own old time: ``mark`` remembers how
far it had come in this boot. A source that breaks is opened again; one that cannot be opened is asked again now and
then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import read_if_whole
from mainstay.probes.durable_files import write_json
from mainstay.probes.kernel_log.parse import Fact, parse
from mainstay.probes.kernel_log.records import Record
from mainstay.probes.kernel_log.sources import KernelLogSource, PlainFile, SourceError, open_source
from mainstay.probes.samplers.base import SourceEvent, Tell

log = logging.getLogger(__name__)

_WAIT_S: Final = 0.5
"""How long a stop may have to wait for the thread."""
_LOOK_S: Final = 0.25
"""How often a plain file is looked at: its kernel gives no sign when it grows."""
_REOPEN_S: Final = 10.0
_BROKEN_S: Final = 1.0
"""Pause before a log that broke is opened again: journald is restarted in less, and what was logged is still there."""
_KEEP_S: Final = 1.0
"""The mark is written at most this often: a killed daemon may tell the last second again."""
_JOINED: Final = 8
"""Records that continue one line; more are not one line."""


class _Mark(msgspec.Struct, frozen=True):
    """Everything up to here was told, in seconds since this boot."""

    boot_id: str
    boot_seconds: float


@dataclass(slots=True)
class BootClock:
    """The times that a reader needs, in seconds: ``unix``, ``boot`` (the clock of the log), and this boot's name."""

    boot_id: str
    unix: Callable[[], float] = time.time
    boot: Callable[[], float] = time.monotonic


class KernelLog:
    """Reads ``where`` (``auto``, ``off`` or a path) until ``stop``; ``reason`` says why nothing is read."""

    def __init__(
        self,
        where: str,
        tell: Tell,
        mark: Path,
        clock: BootClock,
        opener: Callable[[str], KernelLogSource] = open_source,
    ) -> None:
        self.where = where
        self.reason = "switched off" if where == "off" else ""
        self.reading = False
        self.lost = 0
        """Records that were overwritten before they could be read."""
        self._tell = tell
        self._path = mark
        self._clock = clock
        self._opener = opener
        self._told_until = self._skip_until = self._load()
        self._began = clock.boot()
        self._sequence: int | None = None
        self._pending: list[str] = []
        self._kept, self._kept_until = 0.0, self._told_until
        self._drain_until = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-log", daemon=True)

    def start(self) -> None:
        """Open the log and start; report a log that cannot be read once."""
        if self.where != "off":
            self._thread.start()

    def stop(self) -> None:
        """End the thread and remember how far it came."""
        self._drain_until = time.monotonic() + _WAIT_S
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(4 * _WAIT_S)
        self._keep(at_once=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            source = self._open()
            if source is None:
                self._stopping.wait(_REOPEN_S)
                continue
            try:
                self._follow(source)
            except OSError as error:
                self.reading, self.reason = False, f"{source.name}: {error}"
                log.warning("kernel log: %s; opening it again", self.reason)
                self._stopping.wait(_BROKEN_S)
            source.close()
            self._skip_until = self._told_until

    def _open(self) -> KernelLogSource | None:
        try:
            source = self._opener(self.where)
        except SourceError as error:
            if self.reason != str(error):
                self.reason = str(error)
                log.warning("the kernel log cannot be read: %s", error)
            return None
        if not self.reading:
            log.info("reading the kernel log from %s", source.name)
        self.reading, self.reason = True, ""
        return source

    def _follow(self, source: KernelLogSource) -> None:
        """Read until the stop, and then what is there already, if that ends."""
        while True:
            stopping, read = self._stopping.is_set(), 0
            for record in source.read(0.0 if stopping else _WAIT_S):
                read += 1
                self._take(record)
            self._keep()
            if stopping and (not read or time.monotonic() > self._drain_until):
                return
            if isinstance(source, PlainFile) and source.idle:
                self._stopping.wait(_LOOK_S)

    def _take(self, record: Record) -> None:
        self._count(record)
        text = self._join(record)
        at = record.boot_seconds
        if at is not None and at <= self._skip_until:
            return  # told by the daemon before this one, or before the source was opened again
        if (fact := parse(" ".join(text.split("\n")))) is not None:  # a driver may break its sentence over lines
            self._say(fact, at)
        if at is not None:  # processors stamp their records each by its own clock: times may step back a little
            self._told_until = max(self._told_until, at)

    def _count(self, record: Record) -> None:
        """Numbers that are missing are records that the buffer had no room for."""
        if record.sequence is None:
            return
        if self._sequence is not None and record.sequence > self._sequence + 1:
            gap = record.sequence - self._sequence - 1
            self.lost += gap
            log.warning("kernel log: %d records were overwritten before they could be read", gap)
        self._sequence = record.sequence

    def _join(self, record: Record) -> str:
        """The line so far: a driver may write one in several records."""
        if not record.continues:
            self._pending = [record.text] if record.begins else []
            return record.text
        self._pending = [*self._pending, record.text][-_JOINED:]
        return "".join(self._pending)

    def _say(self, fact: Fact, at: float | None) -> None:
        old = at is not None and at < self._began
        if old and not fact.catch_up:
            return
        t = self._clock.unix() - (0.0 if at is None else max(0.0, self._clock.boot() - at))
        data = fact.data | ({"before_start": True} if old else {})
        self._tell(SourceEvent(kind=fact.kind, t=t, data=data))

    def _load(self) -> float:
        mark = read_if_whole(self._path, _Mark)
        return mark.boot_seconds if mark is not None and mark.boot_id == self._clock.boot_id else -1.0

    def _keep(self, *, at_once: bool = False) -> None:
        now = self._clock.boot()
        due = at_once or now - self._kept >= _KEEP_S
        if self._told_until < 0 or not due or self._told_until == self._kept_until:
            return
        self._kept, self._kept_until = now, self._told_until
        try:
            write_json(self._path, _Mark(self._clock.boot_id, self._told_until))
        except OSError as error:
            log.warning("kernel log: how far it was read cannot be kept: %s", error)
