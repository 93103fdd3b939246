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
    running = asyncio.get_running_loop()
    turn = services.leases.elect("scraping", lambda: Poller(services, running).run_once)
    loop = Loop("dcgm-scrape", INTERVAL, turn)
    services.wakers.listen(WAKER, loop.wake)
    return [loop]
