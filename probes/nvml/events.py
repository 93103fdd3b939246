"""One thread that waits for the driver's events and says them within milliseconds.

What happened before the registration, or between two registrations (the set is recreated when a card comes back or
the driver was replaced), the driver does not tell afterwards: XIDs of that time reach us through the kernel's log only,
and the recovery action, which is a state, through the 10 s tier. Events of single MIG instances need privilege.
Correctable errors are not registered for: a failing card raises thousands of them a second.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.probes.nvml.card import NvmlGpu
from mainstay.probes.nvml.errors import GPU_IS_LOST, STALE, SUCCESS, TIMEOUT
from mainstay.probes.nvml.library import Library
from mainstay.probes.samplers.base import SourceEvent, Tell

log = logging.getLogger(__name__)

XID: Final = 0x8
NOTICES: Final[dict[int, dict[str, Any]]] = {
    0x2: {"what": "ecc_double_bit"},
    0x200: {"what": "ecc_burst"},
    0x400: {"what": "dram_retirement"},
    0x800: {"what": "dram_retirement_failure"},
    0x1000: {"what": "poison", "fatal": False},
    0x2000: {"what": "poison", "fatal": True},
    0x4000: {"what": "gpu_unavailable"},
    0x8000: {"what": "recovery_action"},
}
"""Event bit to what a ``gpu_event`` says; ``value`` beside it is NVML's event data."""
WANTED: Final = XID | sum(NOTICES)
NO_INSTANCE: Final = 0xFFFFFFFF
WHO: Final = "events"

_WAIT_MS: Final = 1000
"""How soon the thread ends after a stop; events end the wait at once."""
_PAUSE_S: Final = 0.2
_AGAIN_S: Final = 1.0
"""Pause after a set that could not be made or waited for."""


class Listener:
    """The thread. ``start`` and ``stop`` may be called again and again."""

    def __init__(self, library: Library, tell: Tell) -> None:
        self._library = library
        self._tell = tell
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(self._stop,), name="nvml-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it; one that hangs in the driver is left behind."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None:
            thread.join(_WAIT_MS / 1000 + _PAUSE_S)

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._library.wait(_PAUSE_S)
            with self._library.visit(WHO) as welcome:
                nvml = self._library.nvml if welcome else None
                pause = 0.02 if nvml is None else self._listen(nvml, stop)
            stop.wait(pause)

    def _listen(self, nvml: Any, stop: threading.Event) -> float:
        """Make a set and wait on it until it must be recreated; return how long to pause before that."""
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            return self._failed(error.value)
        try:
            cards = self._register(nvml, events)
            return self._wait(nvml, events, cards, stop) if cards else 5 * _AGAIN_S
        except nvml.NVMLError as error:
            return self._failed(error.value)
        finally:
            try:
                nvml.nvmlEventSetFree(events)
            except nvml.NVMLError as error:
                log.debug("nvml: freeing an event set: %s", error)

    def _failed(self, code: int) -> float:
        if code in STALE:
            self._library.stale(f"NVML return code {code}")
            return _PAUSE_S
        log.debug("nvml: the event set gave NVML return code %d", code)
        return _AGAIN_S

    def _register(self, nvml: Any, events: Any) -> dict[int, NvmlGpu]:
        """The cards whose events will come, by address of their handle.

        Raises:
            NVMLError: the set is invalid and must be recreated.
        """
        cards = {}
        for card in self._library.cards:
            reader = card.reader
            if reader is None or card.lost:
                continue
            try:
                mask = nvml.nvmlDeviceGetSupportedEventTypes(reader.handle) & WANTED
                if mask:
                    nvml.nvmlDeviceRegisterEvents(reader.handle, mask, events)
                    cards[_address(reader.handle)] = card
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_GpuIsLost, nvml.NVMLError_NoPermission) as error:
                log.info("nvml: %s gives no events: %s", card.identity.id, error)
        return cards

    def _wait(self, nvml: Any, events: Any, cards: dict[int, NvmlGpu], stop: threading.Event) -> float:
        wait = nvml.nvmlLib.nvmlEventSetWait_v2
        while not stop.is_set() and self._library.nvml is not None and not self._library.wished:
            data = nvml.c_nvmlEventData_t()
            code = wait(events, ctypes.byref(data), ctypes.c_uint(_WAIT_MS))
            if code == SUCCESS:
                self._happened(data, cards.get(_address(data.device)) or self._by_uuid(nvml, data.device))
            elif code == GPU_IS_LOST:
                self._lost(cards.get(_address(data.device)))
                return _AGAIN_S
            elif code != TIMEOUT:
                return self._failed(code)
            if any(card.lost is None and card not in cards.values() for card in self._library.cards):
                return 0.0  # a card came back
        return _PAUSE_S

    def _happened(self, data: Any, card: NvmlGpu | None) -> None:
        """Say one event. A card that we do not know is not named."""
        kind, value = int(data.eventType), int(data.eventData)
        facts: dict[str, Any] = {"source": "nvml"}
        if card is not None:
            card.request_recovery_action()
            facts["pci"] = card.identity.facts.get("pci", "")
        for name, number in (("gpu_instance", data.gpuInstanceId), ("compute_instance", data.computeInstanceId)):
            if number != NO_INSTANCE:
                facts[name] = int(number)
        what = {"code": value} if kind == XID else {**NOTICES.get(kind, {"what": f"event {kind:#x}"}), "value": value}
        self._tell(
            SourceEvent(
                kind=EventKind.XID if kind == XID else EventKind.GPU_EVENT,
                t=time.time(),
                device=card.identity.id if card is not None else None,
                data=what | facts,
            )
        )

    def _by_uuid(self, nvml: Any, device: Any) -> NvmlGpu | None:
        """Whose handle it is that we did not register with: a driver may make several for one card."""
        try:
            uuid = nvml.nvmlDeviceGetUUID(device) if _address(device) else ""
        except nvml.NVMLError:
            return None
        return next((card for card in self._library.cards if card.identity.uuid == uuid), None)

    def _lost(self, card: NvmlGpu | None) -> None:
        """A wait that says "lost" may not name the card; its own channel says it then, within a sample."""
        if card is not None:
            card.lose("gpu_is_lost", time.time(), self._tell)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
