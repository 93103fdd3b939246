"""Background work of the sources: scraping."""

from __future__ import annotations

import asyncio

from mainstay.service.common.loops import Loop
from mainstay.service.services import Services
from mainstay.service.sources.dcgm.poller import Poller

INTERVAL = 0.5
WAKER = "dcgm"
"""Woken when a target is added, so that its first scrape does not wait for the next turn."""


def make(services: Services) -> list[Loop]:
    """Called on the running event loop: frames that are scraped are accepted there."""
    loop = Loop("dcgm-scrape", INTERVAL, Poller(services, asyncio.get_running_loop()).run_once)
    services.wakers.listen(WAKER, loop.wake)
    return [loop]
