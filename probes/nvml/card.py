"""One GPU: which of its readings are due, how to read each, and whether it is lost.

A card outlives the opening of the library: what belongs to one opening (handle, which calls are still worth making) is
its ``Reader``, replaced as a whole, so that a thread that hangs in the old one and comes back harms nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.probes.nvml.batch import FieldBatch
from mainstay.probes.nvml.errors import GPU_IS_LOST, RESET_REQUIRED, GoneError, NeverError, call_driver
from mainstay.probes.nvml.fields import FAST, MINUTE, RECOVERY_ACTION, SLOW, STATIC, DriverCall, PollTier
from mainstay.probes.nvml.links import Links
from mainstay.probes.nvml.throttle import throttle_fields
from mainstay.probes.samplers.base import DeviceIdentity, Readings, SourceEvent, Tell

log = logging.getLogger(__name__)

_SPREAD: Final = 10
"""Cards are spread over this many seconds: no two of the first ten read a slow tier in the same one."""
REASONS: Final = {GPU_IS_LOST: "gpu_is_lost", RESET_REQUIRED: "reset_required"}


class TierReader:
    """One tier of one card."""

    def __init__(self, nvml: Any, tier: PollTier) -> None:
        self._nvml = nvml
        self._fields: dict[int, tuple[str, float]] = {}
        self._batch = FieldBatch(nvml, ())
        self._asks = [(ask_, list(ask_.ways)) for ask_ in tier.asks]
        self.add_fields(tier.fields)

    def add_fields(self, fields: Mapping[int, tuple[str, float]]) -> None:
        """Read these fields as well: number to (signal, factor)."""
        self._fields |= fields
        self._batch = FieldBatch(self._nvml, [*self._batch.keys, *((number, 0) for number in fields)])

    def read(self, handle: Any) -> dict[str, float]:
        """What the card answers now.

        Raises:
            StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
        """
        readings: dict[str, float] = {}
        for (number, _), value in self._batch.read(handle).items():
            signal, factor = self._fields[number]
            readings[signal] = value * factor
        for asked, ways in self._asks:
            if ways and not all(signal in readings for signal in asked.signals):
                self._read_call(handle, asked, ways, readings)
        return readings

    def _read_call(self, handle: Any, asked: DriverCall, ways: list[Any], readings: dict[str, float]) -> None:
        """Try the ways in turn; one that will never answer is not tried again."""
        while ways:
            way = ways[0]
            try:
                values = call_driver(self._nvml, lambda: way(self._nvml, handle))  # noqa: B023 - called before it changes
            except NeverError:
                ways.pop(0)
                continue
            for signal, value in zip(asked.signals, values or (), strict=False):
                if value is not None:
                    readings.setdefault(signal, float(value))
            return


class Reader:
    """A card through one opening of the library."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle
        self._tiers = {tier.period: TierReader(nvml, tier) for tier in (FAST, SLOW, MINUTE)}
        self._throttle_known = False
        self._links = Links(nvml)
        self._recovery = FieldBatch(nvml, [(RECOVERY_ACTION, 0)])
        self._static: dict[str, float] = {}

    def read(self, period: float, t: float) -> dict[str, float]:
        """One tier.

        Raises:
            StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
        """
        if not self._throttle_known and (fields := throttle_fields(self.nvml, self.handle)) is not None:
            self._throttle_known = True
            self._tiers[FAST.period].add_fields(fields)
        readings = self._tiers[period].read(self.handle)
        if period == SLOW.period:
            readings |= self._links.read(t, self.handle)
            self._static = {name: readings[name] for name in STATIC if name in readings}
        return self._static | readings

    def recovery_action(self) -> dict[str, float]:
        """Return the driver's recovery action for the card; {} where the driver reports none."""
        answers = self._recovery.read(self.handle)
        return dict.fromkeys(["gpu_recovery_action"], *answers.values()) if answers else {}


class NvmlGpu:
    """One GPU, for as long as this process lives. Read by one thread at a time."""

    def __init__(self, identity: DeviceIdentity, reader: Reader | None) -> None:
        self.identity = identity
        self.reader = reader
        self.lost: str | None = None
        """Why it does not answer; None when it does."""
        self.absent = ""
        """Why there is no reader, as far as the driver tells; nothing when it only did not answer in time."""
        self._lost_in = 0.0
        self._lock = threading.Lock()
        self._due: dict[float, float] = {}
        self._look = False

    def attach(self, identity: DeviceIdentity, reader: Reader) -> None:
        """Continue with a newly opened library: everything is read at once."""
        self.identity, self.reader = identity, reader
        self._due.clear()

    def request_recovery_action(self) -> None:
        """Something happened to it: read the recovery action with the next sample. From any thread."""
        self._look = True

    def sample(self, t: float, tell: Tell) -> Readings:
        """Every tier that is due; nothing at all when the card is lost.

        Raises:
            StaleError: the library must be reopened.
        """
        reader = self.reader
        if reader is None:
            if self.absent:
                self.lose(self.absent, t, tell)
            return {}
        readings: dict[str, float] = {}
        due = self._take_due(t)
        look, self._look = self._look, False
        for period in due:
            try:
                readings |= reader.read(period, t)
                if look and SLOW.period not in due:
                    readings |= reader.recovery_action()
            except GoneError as error:
                self._lost_in = period
                if period == FAST.period:
                    self._due.clear()  # read everything as soon as it answers again
                self.lose(REASONS[error.code], t, tell)
                return {} if error.code == GPU_IS_LOST else readings
        self._found(due, t, tell)
        return readings

    def lose(self, reason: str, t: float, tell: Tell) -> None:
        """Say once that it is lost."""
        with self._lock:  # the channel and the event thread may find it at once
            known, self.lost = self.lost, self.lost or reason
        if known is None:
            log.error("nvml: %s is lost: %s", self.identity.id, reason)
            tell(self._news(t, reason))

    def _found(self, due: Sequence[float], t: float, tell: Tell) -> None:
        """It answered; believed only when what it failed to answer was among it."""
        if self.lost is not None and self._lost_in in (0.0, *due):
            reason, self.lost, self._lost_in = self.lost, None, 0.0
            log.warning("nvml: %s answers again (it was lost: %s)", self.identity.id, reason)
            tell(self._news(t, reason, cleared=True))

    def _news(self, t: float, reason: str, **more: bool) -> SourceEvent:
        data = {"reason": reason, "source": "nvml", "pci": self.identity.facts.get("pci", "")}
        return SourceEvent(kind=EventKind.GPU_LOST, t=t, device=self.identity.id, data={**data, **more})

    def _take_due(self, t: float) -> list[float]:
        """Periods whose time has come. The first sample reads everything; then each card has its own second."""
        due = [FAST.period]
        for period in (SLOW.period, MINUTE.period):
            at = self._due.get(period, -math.inf)
            if at - period <= t < at:  # a clock set back by more than a period counts as due
                continue
            due.append(period)
            phase = (self.identity.index % _SPREAD) * period / _SPREAD
            self._due[period] = (math.floor((t - phase) / period) + 1) * period + phase
        return due
