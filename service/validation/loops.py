"""Background work of validation in the service's own process.

Orders may be made by another process (a Celery worker), so a loop looks for them; those made here wake it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.kit.loops import Loop
from service.services import Services
from service.validation import localisation, orders

MEMORY: Final = "memory://"


def make(services: Services) -> list[Loop]:
    """The loop that wakes waiting nodes; and, where workers are processes of their own, the way to wake them."""
    if not services.settings.celery.broker_url.startswith(MEMORY):
        from service.worker import connect  # noqa: PLC0415 - Celery is loaded only where it is used

        connect(services)

    def with_orders(nodes: Sequence[str]) -> set[str]:
        with services.database.reading() as session:
            now = services.clock.now()
            return orders.nodes_with_orders(session, nodes, now) | localisation.nodes_with_orders(session, nodes, now)

    loop = Loop("orders", services.settings.validation.poll_interval, lambda: services.waiting.look(with_orders))
    services.wakers.listen("orders", loop.wake)
    return [loop]
