"""What sources say between two samples becomes events: at once, with the node's name, and never as a flood.

Any thread may ``submit``; one thread of its own makes the events, so that nothing which reads a log or a driver waits
for a disk, and each event that is held back for a moment (see ``mainstay.probes.event_rate_limit``) goes out when its
time has come.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Final

from mainstay.probes.core_types import NIC_PREFIX, Event, EventKind
from mainstay.probes.event_rate_limit import HOLD_S, DuplicateXidFilter, EventRateLimiter
from mainstay.probes.ids import uuid7
from mainstay.probes.pci import canonical
from mainstay.probes.samplers.base import DeviceIdentity, SourceEvent

log = logging.getLogger(__name__)

_IDLE_S: Final = 60.0
"""The thread wakes at least this often; it has nothing to do then."""
_KNOWN_LATER_S: Final = 10.0
"""How long a report about a PCI address waits for the first report of the devices; afterwards it goes without."""


def uptime(at: float) -> float:
    """Seconds between boot and ``at`` (Unix seconds), suspended time included."""
    return round(time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - at), 3)


class EventBuilder:
    """Makes events of the submitted reports. ``put`` receives them; it may raise ``OSError``, which costs that event.

    ``logged`` says whether the kernel log is read: then an XID of NVML waits a moment for the kernel's line about it.
    """

    def __init__(
        self,
        node: str,
        put: Callable[[Event], None],
        *,
        logged: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._put = put
        self._clock = clock
        self._logged = logged
        self._duplicates = DuplicateXidFilter(0.0)
        self._bursts = EventRateLimiter()
        self._queue: SimpleQueue[SourceEvent | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="event_builder", daemon=True)
        self._by_pci: dict[str, list[DeviceIdentity]] | None = None
        self._ids: frozenset[str] = frozenset()
        self._unplaced: list[SourceEvent] = []
        self._wait_until = clock() + _KNOWN_LATER_S

    def start(self) -> None:
        self._thread.start()

    def submit(self, happened: SourceEvent) -> None:
        """Say that something happened; thread-safe, never blocks."""
        self._queue.put(happened)

    def set_uptime_source(self, devices: Iterable[DeviceIdentity]) -> None:
        """These devices are here: reports that name a PCI address or a UUID are theirs. Thread-safe."""
        by_pci: dict[str, list[DeviceIdentity]] = {}
        devices = tuple(devices)
        for device in devices:
            if (address := canonical(device.facts.get("pci", ""))) is not None:
                by_pci.setdefault(address, []).append(device)
        self._ids = frozenset(device.id for device in devices)
        if any(device.kind != "host" for device in devices) or self._by_pci is not None:
            # A card that is gone keeps its address until another one stands there: its loss is reported by address.
            self._by_pci = (self._by_pci or {}) | by_pci

    def stop(self, *last: SourceEvent, timeout: float = 1.0) -> None:
        """Put everything that is still held back, then ``last``; afterwards nothing is taken."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._send(self._event(happened) for happened in last)

    def _run(self) -> None:
        going = True
        while going:
            try:
                going = self._once()
            except Exception:  # named boundary: one unexpected report must not stop all that follow
                log.exception("a report is lost")

    def _once(self) -> bool:
        """Take one report, or send what has waited; False at the end."""
        try:
            happened = self._queue.get(timeout=self._patience())
        except Empty:
            self._emit(self._clock())
            return True
        if happened is None:
            self._emit(math.inf)
            return False
        self._take(happened, self._clock())
        return True

    def _patience(self) -> float:
        waits = [at for at in (self._duplicates.next_due(), self._bursts.next_due()) if at is not None]
        if self._unplaced:
            waits.append(min(self._wait_until, self._clock() + 0.1))
        return min(_IDLE_S, max(0.0, min(waits, default=_IDLE_S + self._clock()) - self._clock()))

    def _take(self, happened: SourceEvent, now: float) -> None:
        placed = self._place(happened)
        if placed is None and self._by_pci is None and now < self._wait_until:
            self._unplaced.append(happened)
        else:
            self._pass_on(placed or happened, now)
        self._emit(now)

    def _emit(self, now: float) -> None:
        """Send the reports that have waited long enough."""
        if self._unplaced and (self._by_pci is not None or now >= self._wait_until):
            unplaced, self._unplaced = self._unplaced, []
            for happened in unplaced:
                self._pass_on(self._place(happened) or happened, now)
        for happened in self._duplicates.due(now):
            self._send(self._bursts.admit(self._event(happened), now))
        self._send(self._bursts.due(now))

    def _pass_on(self, happened: SourceEvent, now: float) -> None:
        if _watched_elsewhere(happened):
            return
        self._duplicates.hold = HOLD_S if self._logged() else 0.0
        for said in self._duplicates.admit(happened, now):
            self._send(self._bursts.admit(self._event(said), now))

    def _place(self, happened: SourceEvent) -> SourceEvent | None:
        """With the device that its PCI address or UUID names; None when that is not known."""
        if happened.device is not None or not (happened.data.get("pci") or happened.data.get("uuid")):
            return happened
        uuid = happened.data.get("uuid")
        address = canonical(str(happened.data.get("pci", "")))
        there = (self._by_pci or {}).get(address or "", [])
        interface = happened.data.get("interface")
        named = [device for device in there if interface and device.facts.get("interface") == interface]
        device = uuid if uuid in self._ids else (named or there)[0].id if there else None
        return (
            None if device is None else SourceEvent(kind=happened.kind, t=happened.t, device=device, data=happened.data)
        )

    def _event(self, happened: SourceEvent) -> Event:
        data: dict[str, Any] = {"uptime": uptime(happened.t)} | happened.data
        return Event(
            id=uuid7(),
            time=happened.t,
            kind=EventKind(happened.kind),
            node=self._node,
            device=happened.device,
            data=data,
        )

    def _send(self, events: Iterable[Event]) -> None:
        for event in events:
            try:
                self._put(event)
            except (OSError, ValueError, TypeError) as error:  # a full disk, or data that no event can carry
                log.warning("an event is lost: %s", error)


def _watched_elsewhere(happened: SourceEvent) -> bool:
    """A port of the nic sampler: that tells ups and downs itself, with hold times that a bare line knows nothing of."""
    from_log = happened.kind in (EventKind.LINK_DOWN, EventKind.LINK_UP) and happened.data.get("source") == "kernel"
    return from_log and (happened.device or "").startswith(NIC_PREFIX)
