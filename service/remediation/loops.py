"""Background work of remediation: one loop, woken when a person moves a node."""

from __future__ import annotations

from mainstay.service.common.loops import Loop
from mainstay.service.remediation import reconcile
from mainstay.service.services import Services


def make(services: Services) -> list[Loop]:
    loop = Loop("remediation", services.settings.remediation.interval_seconds, lambda: reconcile.reconcile(services))
    services.wakers.listen("remediation", loop.wake)
    return [loop]
