"""Wake-up calls between the processes on one PostgreSQL, by LISTEN and NOTIFY.

One thread and one connection a process. It sends outside of transactions: PostgreSQL commits only one at a time of
those that notify. A call may be lost while the connection is away.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from typing import Any, Final, Self

import psycopg

from mainstay.service.common.db import CONNECT, Database
from mainstay.service.common.wakeups import WakeupRegistry

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = "mainstay_wakeups"
TOGETHER_SECONDS: Final = 0.05
"""Calls of one name within it are sent once: a burst of events costs twenty notifications a second."""
_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds between attempts to connect: the first, and the most, after twice as long each time."""
_OPTIONS: Final[dict[str, Any]] = {"autocommit": True, "application_name": CHANNEL, **CONNECT}


class SharedWakeups:
    """Shares the calls of ``registry`` with other processes while it is entered; on SQLite there are none."""

    def __init__(self, database: Database, registry: WakeupRegistry) -> None:
        self._url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._registry, self._names, self._lock = registry, set[str](), threading.Lock()
        self._stopping, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        self._inner, self._outer = socket.socketpair()
        self._shares = not database.is_sqlite

    def __enter__(self) -> Self:
        if self._shares:
            self._registry.forward = self._forward
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._stopping.set()
            self._outer.close()  # which ends the thread's wait
        if self._shares:
            self._thread.join(10.0)
        self._inner.close()

    def _forward(self, name: str) -> None:
        with self._lock:
            if not self._names and not self._stopping.is_set():
                self._outer.send(b"\0")  # never more than one is on the way
            self._names.add(name)

    def _run(self) -> None:
        pause = _PAUSE
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._url, **_OPTIONS) as connection:
                    connection.execute(f"LISTEN {CHANNEL}".encode())
                    pause = _PAUSE
                    self._relay(connection)
            except psycopg.Error as error:
                _log.warning("no wake-ups from other processes, trying again in %.1f s: %s", pause, error)
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _relay(self, connection: psycopg.Connection) -> None:
        with selectors.DefaultSelector() as ready:
            for source in (connection, self._inner):
                ready.register(source, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for call in connection.notifies(timeout=0):
                    if call.pid != connection.info.backend_pid:
                        self._registry.wake_here(call.payload)
                if any(key.fileobj is self._inner for key, _ in ready.select()) and self._inner.recv(1):
                    self._send(connection)

    def _send(self, connection: psycopg.Connection) -> None:
        with self._lock:
            names, self._names = self._names, set()
        for name in names:
            connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, name))
        self._stopping.wait(TOGETHER_SECONDS)
