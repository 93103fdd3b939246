"""Calls that may hang, as those to a shared directory: in a thread that the end of the job does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """What ``work`` returns. It must not raise; where it hangs, so does whoever awaits it."""
    found = Future[T]()
    found.set_running_or_notify_cancel()  # whoever stops waiting cannot take it away from the thread
    threading.Thread(target=lambda: found.set_result(work()), name=name, daemon=True).start()
    return await asyncio.wrap_future(found)
