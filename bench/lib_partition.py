"""A network that can be cut: every connection between node 0's launcher and the others goes through a proxy.

What is cut is silent: connections stay open and nothing arrives, as with a switch that drops packets.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

_TRIES = 200
"""Tenths of a second that a launcher may take to start."""
HOST = "127.0.0.2"
"""Another loopback address: a launcher listens at 127.0.0.1 and is known to the others at this one."""


class Cut:
    """Proxies for ``ports``: what connects to ``HOST:port`` reaches ``127.0.0.1:port``, until ``cut`` is called."""

    def __init__(self, *ports: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._ports = ports
        self._over = threading.Event()
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cut", daemon=True)

    def __enter__(self) -> Self:
        for port in self._ports:
            listener = socket.create_server((HOST, port), backlog=64)
            self._selector.register(listener, selectors.EVENT_READ, port)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def cut(self) -> None:
        """From now on nothing passes, and no process is notified."""
        self._cut.set()

    def _run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.05):
                if self._cut.is_set():
                    self._over.wait(0.05)  # what is readable stays unread
                    break
                assert isinstance(key.fileobj, socket.socket)
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)
                else:
                    self._pass_on(key.fileobj, key.data)

    def _accept(self, listener: socket.socket, port: int) -> None:
        near, _ = listener.accept()
        far = _reach(port)
        if far is None:
            near.close()
            return
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(65536)
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        for end in (source, target):
            self._selector.unregister(end)
            end.close()


def _reach(port: int) -> socket.socket | None:
    """A connection to the process that listens behind the proxy, perhaps only soon; None if none does."""
    for _ in range(_TRIES):
        try:
            return socket.create_connection(("127.0.0.1", port), 5.0)
        except OSError:
            time.sleep(0.1)
    return None
