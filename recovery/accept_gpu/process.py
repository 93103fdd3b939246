"""The process that checks are forked from: ``python -m mainstay.recovery.accept_gpu.process``.

It is the benchmarks' fork server with other orders: it imports torch once, never touches a device, and forks one child
for each check, which may hang or die without harm to the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from mainstay.probes.benchmarks.fork_server import describe_device, serve_orders
from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckResult, CheckSettings, CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS


def serve(checks: Mapping[str, type[AcceptanceCheck]] = CHECKS) -> None:
    """Carry out orders until standard input ends; an order without a check asks for the devices."""

    def answer(order: dict[str, Any]) -> Any:
        if order["check"] is None:
            return msgspec.to_builtins(describe_device(order["device"]))
        settings = msgspec.convert(order["settings"], CheckSettings)
        return msgspec.to_builtins(run_check(checks[order["check"]](), settings))

    serve_orders(answer)


def run_check(check: AcceptanceCheck, settings: CheckSettings) -> CheckResult:
    """Run a check in this process; an error becomes ``failed`` with the reason."""
    begun = time.perf_counter()
    try:
        result = check.run(settings)
    except Exception as error:  # noqa: BLE001 - boundary: a check may fail in any way that torch or a driver can
        words = " ".join(f"{type(error).__name__}: {error}".split())
        result = CheckResult(name=check.name, status=CheckStatus.FAILED, evidence=words[:1000])
    return msgspec.structs.replace(result, seconds=time.perf_counter() - begun)


if __name__ == "__main__":
    serve()
