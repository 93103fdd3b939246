"""What the service does for a limited time ends at once when none of it is left, and does not spin."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainstay.service.demo.processes import Children
from mainstay.service.demo.stack import Stack
from mainstay.service.sources.dcgm.fetch import FetchError, fetch
from mainstay.service.stream.endpoints import _stream

pytestmark = pytest.mark.timeout(60)
SPENT = [0.0, -1.0, -60.0]


@pytest.mark.parametrize("seconds", SPENT)
def test_a_stream_whose_life_is_over_greets_and_ends(seconds: float) -> None:
    services: Any = SimpleNamespace(
        settings=SimpleNamespace(stream=SimpleNamespace(max_lifetime_seconds=seconds, keep_alive=seconds)),
        hub=SimpleNamespace(join=lambda _watcher: 0, leave=lambda _watcher: None),
    )

    async def listen() -> list[bytes]:
        return [part async for part in _stream(services, frozenset(), None)]

    assert len(asyncio.run(listen())) == 1


def test_an_exporter_is_not_read_without_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(FetchError, match="no whole answer within"):
        fetch(f"http://127.0.0.1:{server.getsockname()[1]}/metrics", seconds=0.0, max_bytes=1000)


@pytest.mark.processes
@pytest.mark.parametrize("seconds", SPENT)
def test_the_demo_waits_for_nothing_and_ends_who_does_not_listen(tmp_path: Path, seconds: float) -> None:
    stack: Any = SimpleNamespace(children=Children(tmp_path), _check=lambda _vital: None)
    with pytest.raises(TimeoutError, match="a miracle did not come"):
        Stack.until(stack, lambda: False, seconds, "a miracle")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    stack.children.start("deaf", [sys.executable, "-c", deaf])
    stack.children.stop_all(seconds)
    assert stack.children.exit_code("deaf") is not None
