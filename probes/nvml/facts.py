"""How a card identifies itself: read once at each opening of the library, because none of it changes before that."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from mainstay.probes.core_types import validate_name
from mainstay.probes.nvml.batch import FieldBatch
from mainstay.probes.nvml.errors import NeverError, call_driver
from mainstay.probes.pci import canonical
from mainstay.probes.samplers.base import DeviceIdentity

_ON: Final = {0: "off", 1: "on"}
_MARGINS: Final = {193: "shutdown_margin_celsius", 194: "slowdown_margin_celsius"}
"""Since Hopper the driver reports the limits as degrees relative to the card's own maximum."""


def identify(nvml: Any, handle: Any, index: int) -> DeviceIdentity:
    """The card behind ``handle``, which the driver numbers ``index``.

    Raises:
        StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
        ValueError: its UUID is no legal id, or was not told this time.
    """
    uuid = _uuid(nvml, handle)
    return DeviceIdentity(
        id=validate_name(uuid or f"gpu-{index}", "GPU id"),
        index=index,
        kind="gpu",
        model=_fact(nvml, lambda: nvml.nvmlDeviceGetName(handle)) or "GPU",
        serial=_fact(nvml, lambda: nvml.nvmlDeviceGetSerial(handle)),
        uuid=uuid,
        memory_bytes=_fact(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        facts=_facts(nvml, handle),
    )


def _uuid(nvml: Any, handle: Any) -> str | None:
    try:
        uuid = call_driver(nvml, lambda: nvml.nvmlDeviceGetUUID(handle))
    except NeverError:
        return None
    if not uuid:
        raise ValueError("it did not tell its UUID")  # a made-up id would make a second card of it
    return str(uuid)


def _fact(nvml: Any, read: Callable[[], Any]) -> Any:
    """None when this card, driver or privilege does not tell."""
    try:
        return call_driver(nvml, read)
    except (NeverError, ValueError, TypeError):  # ValueError: bytes that are no text
        return None


def _facts(nvml: Any, handle: Any) -> dict[str, str]:
    told = {
        "pci": _fact(nvml, lambda: canonical(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        "driver": _fact(nvml, nvml.nvmlSystemGetDriverVersion),
        "vbios": _fact(nvml, lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
        "inforom": _fact(nvml, lambda: nvml.nvmlDeviceGetInforomImageVersion(handle)),
        "ecc_mode": _fact(nvml, lambda: _ON[nvml.nvmlDeviceGetEccMode(handle)[0]]),
        "mig_mode": _fact(nvml, lambda: _ON[nvml.nvmlDeviceGetMigMode(handle)[0]]),
        "persistence": _fact(nvml, lambda: _ON[nvml.nvmlDeviceGetPersistenceMode(handle)]),
        "slowdown_celsius": _limit(nvml, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "shutdown_celsius": _limit(nvml, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        **_margins(nvml, handle),
        **(_fact(nvml, lambda: _place(nvml, handle)) or {}),
    }
    return {key: str(value) for key, value in told.items() if value not in (None, "")}


def _limit(nvml: Any, handle: Any, threshold: int) -> Any:
    return _fact(nvml, lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, threshold))


def _margins(nvml: Any, handle: Any) -> dict[str, float]:
    answers = FieldBatch(nvml, [(field, 0) for field in _MARGINS]).read(handle)
    return {_MARGINS[field]: value for (field, _), value in answers.items()}


def _place(nvml: Any, handle: Any) -> dict[str, str | int]:
    """Where the card sits in a rack-scale system."""
    info = nvml.c_nvmlPlatformInfo_v2_t()
    nvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
    return {"chassis": info.chassisSerialNumber, "slot": ord(info.slotNumber), "tray": ord(info.trayIndex)}
