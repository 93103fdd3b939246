"""Background work of remediation: one loop, woken when a person moves a node."""

from __future__ import annotations

from service.kit.loops import Loop
from service.remediation import turn
from service.services import Services


def make(services: Services) -> list[Loop]:
    loop = Loop("remediation", services.settings.remediation.interval, lambda: turn.run(services))
    services.wakers.listen("remediation", loop.wake)
    return [loop]
