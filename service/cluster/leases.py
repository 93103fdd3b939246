"""Leases: work that one process of a service does at a time, whoever that is.

On SQLite there is one process, and it holds every lease. On PostgreSQL a lease is a row with an epoch that grows with
each holder. A holder renews it a few times within its time; another process takes it over when it expires. All times
are those of the database, so that the clocks of hosts do not matter.

Some leases are spread: each process holds its share of them. A process takes over what has expired up to its share, and
gives up what is beyond it when that has lasted for some seconds, so that one that joins gets its part.

Invariant: no transaction of an earlier holder commits after a later one took over. ``fenced`` reads the row of the
lease ``FOR KEY SHARE`` in each write transaction: the next holder's ``FOR UPDATE`` passes over a locked row, while
renewing, which changes no key, does not wait for it. A process that is stopped within a transaction cannot keep the
row: PostgreSQL ends a transaction that is idle for as long as a lease lasts (Gray and Cheriton, SOSP 1989, describe
leases; the epoch is what Lamport's and Chubby's fencing tokens are).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, text

from mainstay import __version__
from mainstay.service.common.db import Database, WriteSession, fenced

_log: Final = logging.getLogger(__name__)
RENEWALS: Final = 6
"""Renewals within the time of a lease: a holder that is late four times in a row keeps it."""
GIVE_UP_LEASES: Final = 5
"""Times of a lease for which a process holds more than its share before it gives up the rest: work does not move to and
fro when another was only slow."""
Turn = Callable[[], None]

_ADD: Final = text(
    "INSERT INTO leases (name, epoch, expires_at)"
    " SELECT name, 0, to_timestamp(0) FROM unnest(CAST(:names AS text[])) AS name ON CONFLICT DO NOTHING"
)
_RENEW: Final = text(
    "UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => :seconds)"
    " WHERE holder = :me AND name = ANY(:names) RETURNING name, epoch"
)
_TAKE: Final = text(
    "UPDATE leases SET holder = :me, epoch = epoch + 1,"
    " expires_at = clock_timestamp() + make_interval(secs => :seconds) WHERE name IN"
    " (SELECT name FROM leases WHERE name = ANY(:names) AND expires_at < clock_timestamp()"
    " ORDER BY name LIMIT :most FOR UPDATE SKIP LOCKED)"
    " RETURNING name, epoch"
)
_RELEASE: Final = text("UPDATE leases SET expires_at = to_timestamp(0) WHERE holder = :me")
_GIVE_UP: Final = text(
    "UPDATE leases SET holder = NULL, expires_at = to_timestamp(0) WHERE holder = :me AND name = ANY(:names)"
)
_WORKING: Final = text(
    "SELECT count(*) FROM processes WHERE role <> 'gateway' AND NOT stopped"
    " AND seen_at > clock_timestamp() - make_interval(secs => :seconds)"
)
_SHARE: Final = text("UPDATE leases SET shared = :shared WHERE name = :name AND holder = :me AND epoch = :epoch")
_SHARED: Final = text("SELECT shared FROM leases WHERE name = :name")
_FENCE: Final = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :idle, true) FROM leases"
    " WHERE name = :name AND epoch = :epoch FOR KEY SHARE"
)
_REPORT: Final = text(
    "INSERT INTO processes (id, host, pid, url, version, role, started_at, seen_at, pending, lag, stopped)"
    " VALUES (:id, :host, :pid, :url, :version, :role, clock_timestamp(), clock_timestamp(), :pending, :lag, :stopped)"
    " ON CONFLICT (id) DO UPDATE"
    " SET seen_at = excluded.seen_at, pending = excluded.pending, lag = excluded.lag, stopped = excluded.stopped"
)


class LeaseLostError(Exception):
    """Another process holds the lease now: the transaction must not commit."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """This process, as others see it."""

    url: str
    started_at: float
    """Unix seconds."""
    id: int = field(default_factory=lambda: secrets.randbits(62))
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    version: str = __version__
    role: str = "all"


@dataclass
class Leases:
    """The leases that this process holds or waits for.

    Args:
        database: whose clock and rows decide.
        process: this one.
        seconds: for how long a lease is good after each renewal.
    """

    database: Database
    process: Process
    seconds: float
    _wanted: set[str] = field(default_factory=set, init=False)
    _spread: set[str] = field(default_factory=set, init=False)
    _beyond_since: float | None = field(default=None, init=False)
    """``time.monotonic()`` since when this process holds more than its share; None while it does not."""
    _held: dict[str, tuple[int, float]] = field(default_factory=dict, init=False)
    """Name → epoch, and the ``time.monotonic()`` until which it surely holds."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def elect(self, name: str, make: Callable[[], Turn], *, spread: bool = False) -> Turn:
        """The turn of a loop that works only while this process holds the lease ``name``; a gateway never does.

        Args:
            name: of the lease; several loops may share one.
            make: makes the turn that works. It is called again in each term, since what an earlier term remembers may
                be wrong by now.
            spread: whether each process holds its share of all leases that are spread.
        """
        if self.process.role != "gateway":
            self._wanted.add(name)
            if spread:
                self._spread.add(name)
        return _ElectedTurn(self, name, make)

    def names(self) -> list[str]:
        """The leases that this process works under when it holds them."""
        return sorted(self._wanted)

    def epoch(self, name: str) -> int | None:
        """The epoch under which this process holds the lease; None while it does not."""
        if self.database.is_sqlite:
            return 0
        with self._lock:
            epoch, until = self._held.get(name, (0, -1.0))
        return epoch if time.monotonic() < until else None

    def is_lost(self, name: str) -> bool:
        """Whether another process may hold the lease: this one was not only late to renew it."""
        with self._lock:
            return name not in self._held and not self.database.is_sqlite

    def renew(self, *, pending: int = 0, lag: float = 0.0) -> list[str]:
        """Report this process, renew what it holds, and take over what has expired; what it took over.

        Args:
            pending: frames that wait for a commit.
            lag: seconds by which the commits of other processes are late in this one's memory.
        """
        if self.database.is_sqlite:
            return []
        began, names = time.monotonic(), self.names()
        given = {"me": self.process.id, "seconds": self.seconds}
        with self._autocommit() as connection:
            self._report(connection, pending=pending, lag=lag)
            held = _pairs(connection, _RENEW, given | {"names": names})
            share = self._share(connection)
            surplus = self._surplus(held, share, began)
            for name in surplus:
                del held[name]
            taken = self._take(connection, held, 0 if surplus else share)
            with self._lock:
                self._held = {name: (epoch, began + self.seconds) for name, epoch in {**held, **taken}.items()}
            if surplus:  # after this process has stopped that work
                connection.execute(_GIVE_UP, {"me": self.process.id, "names": surplus})
        for name, epoch in taken.items():
            _log.info("this process holds the lease %s now (epoch %d)", name, epoch)
        return list(taken)

    def _take(self, connection: Connection, held: dict[str, int], share: int) -> dict[str, int]:
        """Take over leases that have expired: of those that are spread, up to ``share``."""
        given = {"me": self.process.id, "seconds": self.seconds}
        single = [name for name in self._wanted - self._spread if name not in held]
        spread = [name for name in self._spread if name not in held]
        room = share - (len(self._spread) - len(spread))
        taken = _pairs(connection, _TAKE, given | {"names": single, "most": len(single)}) if single else {}
        if spread and room > 0:
            taken |= _pairs(connection, _TAKE, given | {"names": spread, "most": room})
        if (single or spread) and not taken:
            connection.execute(_ADD, {"names": self.names()})
        return taken

    def _surplus(self, held: dict[str, int], share: int, now: float) -> list[str]:
        """The spread leases to give up: those beyond ``share``, once that has lasted."""
        surplus = sorted(name for name in held if name in self._spread)[share:]
        if not surplus:
            self._beyond_since = None
            return []
        if self._beyond_since is None:
            self._beyond_since = now
        return surplus if now - self._beyond_since >= GIVE_UP_LEASES * self.seconds else []

    def _share(self, connection: Connection) -> int:
        """How many of the spread leases this process holds at most: its part, rounded up."""
        if not self._spread:
            return 0
        working: int = connection.scalar(_WORKING, {"seconds": self.seconds}) or 1
        return -(-len(self._spread) // working)

    def release(self) -> None:
        """Give up all leases when the process ends: another takes them over at once."""
        if self.database.is_sqlite:
            return
        with self._lock:
            self._held = {}
        with self._autocommit() as connection:
            connection.execute(_RELEASE, {"me": self.process.id})
            self._report(connection, stopped=True)

    def share(self, name: str, shared: bytes) -> None:
        """Share bytes with the other processes, if this process holds the lease ``name``."""
        if (epoch := self.epoch(name)) is not None and not self.database.is_sqlite:
            with self._autocommit() as connection:
                connection.execute(_SHARE, {"shared": shared, "name": name, "me": self.process.id, "epoch": epoch})

    def shared(self, name: str) -> bytes | None:
        """What the holder of the lease ``name`` shared last."""
        with self._autocommit() as connection:
            shared: bytes | None = connection.scalar(_SHARED, {"name": name})
            return shared

    def check(self, session: WriteSession, name: str, epoch: int) -> None:
        """Hold the lease until ``session`` ends.

        Raises:
            LeaseLostError: another process took it over.
        """
        given = {"name": name, "epoch": epoch, "idle": f"{int(self.seconds * 1000)}ms"}
        if session.execute(_FENCE, given).first() is None:
            raise LeaseLostError(f"another process holds the lease {name}")

    def _report(self, connection: Connection, *, pending: int = 0, lag: float = 0.0, stopped: bool = False) -> None:
        process = self.process
        row: dict[str, Any] = {"id": process.id, "host": process.host, "pid": process.pid, "url": process.url}
        row |= {"version": process.version, "role": process.role, "pending": pending, "lag": lag, "stopped": stopped}
        connection.execute(_REPORT, row)

    def _autocommit(self) -> Connection:
        """Each statement is a transaction: a process that is stopped in between holds no row."""
        return self.database.engine.execution_options(isolation_level="AUTOCOMMIT").connect()


@dataclass
class _ElectedTurn:
    leases: Leases
    name: str
    make: Callable[[], Turn]
    _turn: Turn | None = field(default=None, init=False)
    _epoch: int = field(default=-1, init=False)

    def __call__(self) -> None:
        epoch = self.leases.epoch(self.name)
        if epoch is None:
            if self.leases.is_lost(self.name):
                self._turn = None  # what it remembers may be large
            return
        if self._turn is None or epoch != self._epoch:  # the same epoch: no other process worked meanwhile
            self._turn, self._epoch = self.make(), epoch
        if self.leases.database.is_sqlite:
            self._turn()
            return
        try:
            with fenced(lambda session: self.leases.check(session, self.name, epoch)):
                self._turn()
        except LeaseLostError as error:
            _log.warning("%s: this process stops its part", error)
            self._turn = None


def _pairs(connection: Connection, statement: Any, given: dict[str, Any]) -> dict[str, int]:
    return {row.name: row.epoch for row in connection.execute(statement, given)}
