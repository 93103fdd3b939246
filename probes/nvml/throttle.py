"""Under which field numbers a driver counts throttled time: NVIDIA has moved them.

Three counters (software thermal, hardware thermal, power brake) stand at 251-253 in drivers of R575 and R580 (580.65.06
asks for exactly these), and at 269-271 in the headers that came later; each uses the other's numbers for settings of
power smoothing. Reading a setting as a counter of nanoseconds would hide a power brake for ever, so a card is asked for
both, and the three that answer as 64-bit counters are taken. Where both do, or neither, these signals are left out.
"""

from __future__ import annotations

from typing import Any, Final

from mainstay.probes.nvml.batch import FieldBatch

_SIGNALS: Final = tuple(
    f"gpu_throttle_{cause}_nanoseconds_total" for cause in ("software_thermal", "hardware_thermal", "power_brake")
)
_NUMBERINGS: Final = ((251, 252, 253), (269, 270, 271))
_COUNTER: Final = 3
"""NVML's value type unsigned long long; settings are not told in it."""


def throttle_fields(nvml: Any, handle: Any) -> dict[int, tuple[str, float]] | None:
    """Field number to (signal, factor) for this card; None when it did not tell this time.

    Raises:
        StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
    """
    batch = FieldBatch(nvml, [(field, 0) for numbers in _NUMBERINGS for field in numbers])
    answers = batch.read(handle)
    if any((field, 0) not in answers for field, _ in batch.keys):
        return None  # not refused, yet not answered
    counting = [numbers for numbers in _NUMBERINGS if all(batch.kinds.get((field, 0)) == _COUNTER for field in numbers)]
    if len(counting) != 1:
        return {}
    return {field: (signal, 1.0) for field, signal in zip(counting[0], _SIGNALS, strict=True)}
