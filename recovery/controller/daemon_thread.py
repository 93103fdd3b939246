"""Calls that may hang, as those to a shared directory: in a thread that the end of the job does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """What ``work`` returns. It must not raise; where it hangs, so does whoever awaits it."""
    loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def set_result(result: T) -> None:
        if not found.done():
            found.set_result(result)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the job has ended meanwhile, and its loop with it
            loop.call_soon_threadsafe(set_result, work())

    threading.Thread(target=run, name=name, daemon=True).start()
    result: T = await found
    return result
