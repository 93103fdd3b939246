"""The command's own server in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mainstay.service.app import create_app
from mainstay.service.server import bind, make_server
from mainstay.service.settings import Settings


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    """The command's own server, in a thread; its port."""
    sock = bind(settings)
    app = create_app(settings)
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
