"""Run the checks one after the other, each in a process of its own under a deadline, and make the report.

Invariant: every chosen check is in the report, also one that crashes or hangs, and this process never imports torch nor
touches a driver.
"""

from __future__ import annotations

import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from mainstay import __version__
from mainstay.probes.benchmarks.base import Device, Kind
from mainstay.probes.benchmarks.cancellation import CancelSignal
from mainstay.probes.benchmarks.isolation import BenchmarkForkServer, BenchmarkForkServerError, CallOutcome
from mainstay.probes.benchmarks.runner import DESCRIBE_SECONDS
from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckResult, CheckSettings, CheckStatus
from mainstay.recovery.accept_gpu.registry import CHECKS

COMMAND: Final = (sys.executable, "-P", "-m", "mainstay.recovery.accept_gpu.process")
FEWEST_GPUS: Final = 2
_SHM: Final = Path("/dev/shm")  # noqa: S108 - where snapshots live, not a scratch file
_LEAST_SECONDS: Final = 5.0
"""A check does not begin when less than this is left."""
_UUID: Final = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]{36}\b")


class CannotStartError(RuntimeError):
    """What the checks need is missing; the message is one line."""


class AcceptanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``mainstay accept-gpu`` writes. It names neither the host nor a device, unless that was asked for."""

    format: int = 1
    mainstay: str = __version__
    started_at: str
    """ISO 8601, UTC."""
    seconds: float
    software: str
    """torch's version and CUDA's."""
    device: str
    devices: int
    host: str = ""
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; one that was skipped did not."""
        return all(check.status is CheckStatus.PASSED for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceRun:
    """What to run and for how long."""

    names: Sequence[str]
    kind: Kind = "cuda"
    minutes: float = 30.0
    seconds: float = 5.0
    """See ``CheckSettings``."""
    with_names: bool = False
    checks: Mapping[str, type[AcceptanceCheck]] = field(default_factory=lambda: CHECKS)
    command: Sequence[str] = COMMAND
    interrupt: CancelSignal | None = None
    watcher: Callable[[str], None] = lambda _: None
    """Told the name of each check before it begins."""

    def run(self) -> AcceptanceReport:
        """Run all checks.

        Raises:
            CannotStartError: torch is missing, or sees too few devices.
        """
        started_at, begun = datetime.now(UTC), time.monotonic()
        with BenchmarkForkServer(self.command, self.interrupt) as processes:
            device = self._find_device(processes)
            end = begun + self.minutes * 60.0
            results = tuple(self._run_one(name, device, processes, end) for name in self.names)
        report = AcceptanceReport(
            started_at=started_at.isoformat(timespec="seconds"),
            seconds=time.monotonic() - begun,
            software=device.software,
            device=device.model,
            devices=device.count,
            host=socket.gethostname() if self.with_names else "",
            checks=results,
        )
        return report if self.with_names else without_names(report)

    def _find_device(self, processes: BenchmarkForkServer) -> Device:
        try:
            outcome = processes.call({"check": None, "device": self.kind}, DESCRIBE_SECONDS)
        except BenchmarkForkServerError as error:
            raise CannotStartError(f"torch cannot be imported: {error}") from error
        if outcome.answer is None:
            raise CannotStartError(f"torch finds no usable GPU: {outcome.reason}. Install torch with CUDA.")
        device = msgspec.convert(outcome.answer, Device)
        if self.kind == "cuda" and device.count < FEWEST_GPUS:
            raise CannotStartError(f"torch sees {device.count} GPU. Use a node with {FEWEST_GPUS} or more GPUs.")
        return device

    def _run_one(self, name: str, device: Device, processes: BenchmarkForkServer, end: float) -> CheckResult:
        left = end - time.monotonic()
        if left < _LEAST_SECONDS:
            return CheckResult(name=name, status=CheckStatus.SKIPPED, evidence="No time was left; raise --minutes.")
        self.watcher(name)
        begun = time.monotonic()
        memory = _SHM if _SHM.is_dir() else None
        # What a killed check leaves behind may still be written to while it is removed.
        with tempfile.TemporaryDirectory(prefix="mainstay-accept-", dir=memory, ignore_cleanup_errors=True) as folder:
            settings = CheckSettings(device=device, folder=folder, seconds=self.seconds, with_names=self.with_names)
            order = {"check": name, "settings": msgspec.to_builtins(settings)}
            try:
                outcome = processes.call(order, min(self.checks[name].deadline_seconds, left))
            except BenchmarkForkServerError as error:
                outcome = CallOutcome(reason=str(error))
        return _result(name, outcome, time.monotonic() - begun)


def _result(name: str, outcome: CallOutcome, seconds: float) -> CheckResult:
    if outcome.answer is not None:
        return msgspec.convert(outcome.answer, CheckResult)
    status = CheckStatus.SKIPPED if outcome.interrupted else CheckStatus.FAILED
    return CheckResult(name=name, status=status, evidence=outcome.reason or "no reason given", seconds=seconds)


def without_names(report: AcceptanceReport) -> AcceptanceReport:
    """The report without the name of the host, the home directory, and the UUIDs of devices in its texts."""
    host = socket.gethostname()
    names = [re.escape(name) for name in (str(Path.home()), host, host.partition(".")[0]) if len(name) > 1]
    private = re.compile(rf"{_UUID.pattern}|(?<!\w)(?:{'|'.join(names)})(?!\w)")

    def clean(text: str) -> str:
        return private.sub("<name>", text)

    checks = (
        msgspec.structs.replace(
            check, evidence=clean(check.evidence), facts={key: clean(fact) for key, fact in check.facts.items()}
        )
        for check in report.checks
    )
    return msgspec.structs.replace(report, checks=tuple(checks))
