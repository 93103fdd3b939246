"""The contract of an acceptance check, on one page.

A check says, without importing torch, what it is called, what it proves, and how long it may take. Only ``run`` touches
a device or starts a job, in a process of its own that may hang or die without harm.

Invariant: ``passed`` is stated only by a check that ran to its end. Every other outcome is ``failed`` or ``skipped``,
with the reason as evidence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from mainstay.probes.benchmarks.base import Device


class CheckStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckFigure(msgspec.Struct, frozen=True):
    """One measured value."""

    name: str
    value: float
    unit: str
    """``s``, ``B/s``, ``FLOP/s``, ``OP/s``, ``B``, or empty for a count: never prefixed."""


class CheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a check."""

    device: Device
    """The kind of device and how many there are: the checks are the same on GPUs and, for tests, on processors."""
    folder: str = ""
    """A directory in memory, of this check alone; it is removed afterward."""
    seconds: float = 5.0
    """How long to repeat what is repeated (NVML reads, snapshots)."""
    state_bytes: int = 256 << 20
    """Size of the tensor that snapshots are taken of."""
    with_names: bool = False
    """Whether UUIDs and serial numbers may be reported."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Torch's names of the devices."""
        return tuple(f"cuda:{index}" for index in range(self.device.count)) if self.on_gpu else ("cpu",)

    @property
    def on_gpu(self) -> bool:
        return self.device.kind == "cuda"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found."""

    name: str
    status: CheckStatus
    evidence: str
    """One sentence: what was seen, or why it failed or was skipped."""
    seconds: float = 0.0
    figures: tuple[CheckFigure, ...] = ()
    facts: dict[str, str] = {}
    """What is no number: versions, models, names of signals."""


class AcceptanceCheck(ABC):
    """One check. It keeps no state."""

    name: ClassVar[str]
    proves: ClassVar[str]
    """What it proves, in words."""
    deadline_seconds: ClassVar[float]
    """A check that takes longer is ended and has failed."""

    @abstractmethod
    def run(self, settings: CheckSettings) -> CheckResult:
        """Do the work. Every error propagates: the process around it is the boundary."""

    def result(
        self,
        problems: Iterable[str],
        evidence: str,
        figures: Iterable[CheckFigure] = (),
        facts: Mapping[str, str] | None = None,
    ) -> CheckResult:
        """``passed`` with the evidence, or ``failed`` with the problems if there are any."""
        text = "; ".join(problems)
        return CheckResult(
            name=self.name,
            status=CheckStatus.FAILED if text else CheckStatus.PASSED,
            evidence=text or evidence,
            figures=tuple(figures),
            facts=dict(facts or {}),
        )
