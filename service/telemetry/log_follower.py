"""Fills the memory of this process with the frames that other processes of the service accepted.

Each process of a service keeps the last minutes of the whole fleet, whichever process the frames reached: any of them
answers a chart, and one that takes detection over has what its detectors look at. The log that they share is the table
of blocks in PostgreSQL (``blocks_postgres``).
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass, field
from typing import Final

from mainstay.service.telemetry.blocks_postgres import Commit, PostgresBlockStore
from mainstay.service.telemetry.group_check import DeviceFrame, Payload, RelayedFrames
from mainstay.service.telemetry.ingest import Ingest

_log: Final = logging.getLogger(__name__)
INTERVAL: Final = 0.25
COMMITS: Final = 8
"""Commits of one process read at once: each has at most 4,096 frames, and at 10,000 nodes some hundreds."""
KEEP_SECONDS: Final = 3600.0
"""How long the order of commits is kept. A process that was stopped for longer fills its memory as after a start."""
UNSURE_SECONDS: Final = 10.0
"""How long a process reads its own commits after one of them failed: it may have happened, or happen yet."""
_BLOCKS: Final = 64
"""Blocks decoded at once: a bundle is a megabyte of readings."""


@dataclass
class LogFollower:
    """Reads the log of a service from the moment at which it is made. Make it before memory is filled from blocks.

    Args:
        ingest: whose memory it fills.
        store: the log.
    """

    ingest: Ingest
    store: PostgresBlockStore
    lag: float = field(default=0.0, init=False)
    """Seconds between a commit of another process and its arrival here: the longest of the last turn."""
    blocks: int = field(default=0, init=False)
    """Blocks that came from other processes."""
    _known: dict[int, int] = field(init=False)
    """Process → the last position that was read."""
    _read_at: float = field(init=False)
    _unsure_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._start_at_newest()

    def run_once(self) -> None:
        """Read what is new, until nothing is."""
        if time.monotonic() - self._read_at > KEEP_SECONDS / 2:
            _log.warning("this process stood still for long: it reads the telemetry of the last minutes again")
            self._start_at_newest()
            self.ingest.refill()
        self._follow_own()
        self.lag = 0.0
        while commits := self.store.commits_after(self._known, COMMITS):
            self._read(commits)
            self.lag = max(self.lag, *(commit.age for commit in commits))
        self._read_at = time.monotonic()

    def _follow_own(self) -> None:
        """A commit of which this process did not learn is not in its memory; its sender may turn to another process."""
        me, failed, now = self.store.writer, self.store.take_failed(), time.monotonic()
        if failed is not None:
            self._known[me], self._unsure_until = self._known.get(me, failed - 1), now + UNSURE_SECONDS
        elif now > self._unsure_until:
            self._known.pop(me, None)

    def _read(self, commits: list[Commit]) -> None:
        now, blocks = self.ingest.clock.now(), self.store.read_commits(commits)
        while group := list(itertools.islice(blocks, _BLOCKS)):
            for payload in self.ingest.restore(group, now):
                self._note_senders(payload, now)
            self.blocks += len(group)
        self._known |= {commit.writer: commit.position for commit in commits}

    def _note_senders(self, payload: Payload, now: float) -> None:
        """Its nodes reported just now: what is read is as new as its commit."""
        if isinstance(payload, RelayedFrames):
            self.ingest.seen.note_all(payload.names.subjects, now)
        elif isinstance(payload, DeviceFrame):
            self.ingest.seen.note(payload.frame.subject, now)

    def _start_at_newest(self) -> None:
        self._known, self._read_at = self.store.newest_commits(), time.monotonic()
