"""The agent stays reachable: a caller that hangs up too early, or too many at once, block no other caller."""

from __future__ import annotations

import errno
import logging
import socket
import threading

from mainstay.recovery.agent import server
from mainstay.recovery.agent.server import AgentServer


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


def test_an_error_of_accept_closes_the_endpoint_to_nobody_else(monkeypatch, caplog, eventually):
    monkeypatch.setattr(server, "REFUSED_SECONDS", 0.0)
    served: list[socket.socket] = []
    election_endpoint = AgentServer(service=None)
    monkeypatch.setattr(election_endpoint, "_authenticate", lambda sock, _: served.append(sock))
    with socket.create_server(("127.0.0.1", 0)) as inner, caplog.at_level(logging.WARNING):
        election_endpoint.listen(_Listener(inner, failures=3))
        with socket.create_connection(inner.getsockname()[:2], timeout=10):
            eventually(lambda: served)
    [said] = [record.message for record in caplog.records]  # once, not three times
    assert said.startswith("a connection could not be accepted ([Errno 103]")
    assert said.endswith("the agent rejects callers (1 so far)")
    served[0].close()


def test_a_caller_for_whom_there_is_no_thread_closes_the_endpoint_to_nobody_else(monkeypatch, caplog, eventually):
    served: list[socket.socket] = []
    agent = AgentServer(service=None)
    monkeypatch.setattr(agent, "_authenticate", lambda sock, _: served.append(sock))
    start, refused = threading.Thread.start, []

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "mainstay-connection" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    with socket.create_server(("127.0.0.1", 0)) as inner, caplog.at_level(logging.WARNING):
        agent.listen(inner)
        with socket.create_connection(inner.getsockname()[:2], timeout=10) as first:
            assert first.recv(1) == b""
        with socket.create_connection(inner.getsockname()[:2], timeout=10):
            eventually(lambda: served)
    assert "a connection got no thread (can't start new thread)" in caplog.text
    served[0].close()
