"""Checks that fail as real ones do on broken hardware. Run as a program, this is the process that knows them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from mainstay.recovery.accept_gpu import process
from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckFigure, CheckResult, CheckSettings


def uuid() -> str:
    """The UUID of a device, as NVML gives it."""
    return "GPU-01234567-89ab-cdef-0123-456789abcdef"


class Scripted(AcceptanceCheck):
    """Does what ``act`` does, and passes if that returns."""

    proves: ClassVar[str] = "nothing"
    deadline_seconds: ClassVar[float] = 60.0
    act: ClassVar[Callable[[], None]]

    def run(self, settings: CheckSettings) -> CheckResult:
        type(self).act()
        assert Path(settings.folder).is_dir()
        evidence = f"{uuid()} of {socket.gethostname()} is {settings.device.kind}"
        return self.result((), evidence, (CheckFigure("speed", 2e9, "B/s"),), {"device": uuid()})


class Good(Scripted):
    name: ClassVar[str] = "good"
    act = staticmethod(lambda: None)


class Killed(Scripted):
    name: ClassVar[str] = "killed"
    act = staticmethod(lambda: os.kill(os.getpid(), signal.SIGKILL))


class Hung(Scripted):
    """Deaf to everything but SIGKILL."""

    name: ClassVar[str] = "hung"
    deadline_seconds: ClassVar[float] = 0.5

    @staticmethod
    def act() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)


class Raising(Scripted):
    name: ClassVar[str] = "raising"

    @staticmethod
    def act() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with more checks.")


CHECKS = {check.name: check for check in (Good, Killed, Hung, Raising)}

if __name__ == "__main__":
    process.serve(CHECKS)
