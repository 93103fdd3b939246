"""The agent's door stays open: a caller that hangs up too early, or too many at once, shut nobody else out."""

from __future__ import annotations

import errno
import logging
import socket

from recovery.agent import server
from recovery.agent.server import Server


class _Listener:
    """A real listening socket whose first calls of ``accept`` fail as the kernel's may."""

    def __init__(self, inner: socket.socket, failures: int) -> None:
        self.inner, self.failures, self.family = inner, failures, inner.family

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ECONNABORTED, "Software caused connection abort")
        return self.inner.accept()

    def fileno(self) -> int:
        return self.inner.fileno()


def test_an_error_of_accept_closes_the_door_to_nobody_else(monkeypatch, caplog, eventually):
    monkeypatch.setattr(server, "REFUSED_SECONDS", 0.0)
    served: list[socket.socket] = []
    door = Server(service=None)
    monkeypatch.setattr(door, "_serve", served.append)
    with socket.create_server(("127.0.0.1", 0)) as inner, caplog.at_level(logging.WARNING):
        door.listen(_Listener(inner, failures=3))
        with socket.create_connection(inner.getsockname()[:2], timeout=10):
            eventually(lambda: served)
    [said] = [record.message for record in caplog.records]  # once, not three times
    assert said.startswith("a connection could not be accepted ([Errno 103]")
    assert said.endswith("callers are turned away (1 so far)")
    served[0].close()
