"""Background work of validation in the service's own process.

Orders may be made by another process (a Celery worker), so a loop looks for them; those made here wake it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mainstay.service.common.loops import Loop
from mainstay.service.services import Services
from mainstay.service.validation import node_tasks

MEMORY: Final = "memory://"


def make(services: Services) -> list[Loop]:
    """The loop that wakes waiting nodes; and, where workers are processes of their own, the way to wake them."""
    if not services.settings.celery.broker_url.startswith(MEMORY):
        from mainstay.service.celery_app import connect  # noqa: PLC0415 - Celery is loaded only where it is used

        connect(services)

    def with_orders(nodes: Sequence[str]) -> set[str]:
        with services.database.reading() as session:
            return node_tasks.nodes_with_orders(session, nodes, services.clock.now())

    loop = Loop(
        "orders", services.settings.validation.poll_interval_seconds, lambda: services.waiting.wake_nodes(with_orders)
    )
    services.wakers.listen("orders", loop.wake)
    return [loop]
