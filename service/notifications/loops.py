"""Background work of notifications: one loop decides what to send, one sends. One process at a time runs each."""

from __future__ import annotations

from typing import Final

from mainstay.service.common.loops import Loop
from mainstay.service.notifications.delivery import Sender
from mainstay.service.notifications.planner import DELIVERY, NAME, Planner
from mainstay.service.services import Services

_PLAN_SECONDS: Final = 0.25
_SEND_SECONDS: Final = 0.5


def make(services: Services) -> list[Loop]:
    planning = Loop(NAME, _PLAN_SECONDS, services.leases.elect(NAME, lambda: Planner(services).run_once))
    sending = Loop(DELIVERY, _SEND_SECONDS, services.leases.elect(DELIVERY, lambda: Sender(services).run_once))
    services.wakers.listen(DELIVERY, sending.wake)
    return [planning, sending]
