"""NVIDIA GPUs through NVML (the module ``pynvml`` of the distribution nvidia-ml-py).

A call that a card, a driver or a privilege does not allow is *not a fault*: its signal is left out and the call is not
made again, because every call takes the driver's lock, which training threads take too. New names are called first and
old ones where the driver lacks them. A lost card answers nothing: all its signals are unknown, the others go on. When
the driver was replaced under us the library is opened again at the next sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from probes.samplers.base import DeviceIdentity, Readings, Support
from probes.signals import SignalSource
from probes.words import check_name

log = logging.getLogger(__name__)

Read = Callable[[Any, Any], float]
"""(pynvml, handle) to a value in the signal's unit."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A value that the driver gives in the one batched call: NVML field name, and the factor to the signal's unit."""

    constant: str
    scale: float = 1.0


_FIELDS: Final = {
    "gpu_power_watts": _Field("NVML_FI_DEV_POWER_INSTANT", 1e-3),
    "gpu_memory_temperature_celsius": _Field("NVML_FI_DEV_MEMORY_TEMP"),
    "gpu_energy_millijoules_total": _Field("NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
    "gpu_ecc_corrected_total": _Field("NVML_FI_DEV_ECC_SBE_VOL_TOTAL"),
    "gpu_ecc_uncorrected_total": _Field("NVML_FI_DEV_ECC_DBE_VOL_TOTAL"),
    "gpu_pcie_replay_total": _Field("NVML_FI_DEV_PCIE_REPLAY_COUNTER"),
}

_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of an answer's union by its value type."""
_RETRY_LOST_S: Final = 60.0
"""A reset card answers again only after the library was opened anew."""

_CALLS: Final[dict[str, tuple[Read, ...]]] = {
    # Signal: how to read it, the preferred way first. Signals of the batch stand here with their way out only.
    "gpu_utilization_ratio": (lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu / 100,),
    "gpu_memory_used_bytes": (
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used,
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
    ),
    "gpu_temperature_celsius": (
        lambda n, h: n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU),
        lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    ),
    "gpu_sm_clock_hertz": (lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM) * 1e6,),
    "gpu_memory_clock_hertz": (lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM) * 1e6,),
    "gpu_throttle_reasons": (
        lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
        lambda n, h: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
    ),
    "gpu_power_watts": (lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000,),
    "gpu_energy_millijoules_total": (lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h),),
    "gpu_ecc_corrected_total": (lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 0, n.NVML_VOLATILE_ECC),),
    "gpu_ecc_uncorrected_total": (lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 1, n.NVML_VOLATILE_ECC),),
    "gpu_pcie_replay_total": (lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h),),
}


class _Reopen(Exception):  # noqa: N818 - an instruction to the sampler, not an error
    """The library has to be opened anew: the driver was unloaded or replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlConfig:
    """Nothing to set: the driver's library is found the way the loader finds it."""

    def build(self) -> NvmlSampler:
        return NvmlSampler(self)


class NvmlSampler:
    """Every GPU of the node, keyed by UUID."""

    name = "nvml"
    source = SignalSource.GPU

    def __init__(self, config: NvmlConfig) -> None:
        self.config = config
        self._nvml: Any = None
        self._cards: list[_Card] = []
        self._retry_at = 0.0

    def supported(self) -> Support:
        try:
            self._open()
        except ModuleNotFoundError:
            return Support(ok=False, reason="nvidia-ml-py is not installed")
        except OSError as error:
            return Support(ok=False, reason=f"the NVIDIA driver does not answer: {error}")
        if not self._cards:
            return Support(ok=False, reason="the NVIDIA driver sees no GPU")
        return Support(ok=True)

    def devices(self) -> tuple[DeviceIdentity, ...]:
        return tuple(card.identity for card in self._cards)

    def sample(self, t: float) -> dict[str, Readings]:
        if not any(card.lost for card in self._cards):
            self._retry_at = t + _RETRY_LOST_S
        elif t >= self._retry_at:
            self.close()
        try:
            self._open()
            return {card.identity.id: card.sample() for card in self._cards}
        except (_Reopen, OSError) as error:
            log.warning("nvml: %s; opening the library again at the next sample", error)
            known = self._cards
            self.close()
            return {card.identity.id: {} for card in known}

    def close(self) -> None:
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                log.info("nvml: shutdown: %s", error)
        self._nvml = None

    def _open(self) -> None:
        """Load the library and list the cards.

        Raises:
            OSError: the driver is missing or does not answer.
        """
        if self._nvml is not None:
            return
        import pynvml  # noqa: PLC0415 - a host without GPUs need not load it

        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._cards = list(_cards(pynvml))
        except pynvml.NVMLError as error:
            self.close()
            raise OSError(str(error)) from error


def _cards(nvml: Any) -> Iterator[_Card]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            yield _Card(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index)
        except nvml.NVMLError as error:
            log.warning("nvml: GPU %d cannot be opened: %s", index, error)


class _Card:
    """One GPU: its identity, read once, and the ways of reading each signal that are still worth trying."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._ways = {signal: list(ways) for signal, ways in _CALLS.items()}
        self._batch = {getattr(nvml, f.constant): (s, f.scale) for s, f in _FIELDS.items() if hasattr(nvml, f.constant)}
        self.lost = False
        uuid = self._fact(nvml.nvmlDeviceGetUUID)
        memory = self._fact(lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total)
        self.identity = DeviceIdentity(
            id=check_name(uuid or f"gpu-{index}", "GPU id"),
            index=index,
            kind="gpu",
            model=self._fact(nvml.nvmlDeviceGetName) or "GPU",
            serial=self._fact(nvml.nvmlDeviceGetSerial),
            uuid=uuid,
            memory_bytes=memory,
        )

    def sample(self) -> Readings:
        """What the card answers now; nothing at all when it is lost."""
        try:
            readings = self._read_batch()
            for signal in list(self._ways):
                if signal not in readings and (value := self._read(signal)) is not None:
                    readings[signal] = value
        except self._nvml.NVMLError_GpuIsLost as error:
            self._say_once(error)
            return {}
        self.lost = False
        return readings

    def _fact(self, read: Callable[[Any], Any]) -> Any:
        try:
            return read(self._handle)
        except self._nvml.NVMLError_GpuIsLost:
            raise
        except self._nvml.NVMLError as error:
            log.info("nvml: a fact of a GPU is not available: %s", error)
            return None

    def _read_batch(self) -> dict[str, float]:
        """Every field in one call, one lock of the driver. Fields that are not supported are not asked for again."""
        if not self._batch:
            return {}
        answers = self._query(lambda n, h: n.nvmlDeviceGetFieldValues(h, list(self._batch)), self._batch.clear)
        readings = {}
        for answer in answers or ():
            signal, scale = self._batch[answer.fieldId]
            if answer.nvmlReturn == self._nvml.NVML_SUCCESS:
                readings[signal] = getattr(answer.value, _MEMBERS[answer.valueType]) * scale
            elif answer.nvmlReturn in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_INVALID_ARGUMENT):
                del self._batch[answer.fieldId]
            elif answer.nvmlReturn == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise self._nvml.NVMLError(answer.nvmlReturn)
        return readings

    def _read(self, signal: str) -> float | None:
        ways = self._ways[signal]
        while ways:
            way, left = ways[0], len(ways)
            value = self._query(way, lambda: ways.pop(0))
            if value is not None or len(ways) == left:
                return None if value is None else float(value)
        del self._ways[signal]
        return None

    def _query(self, call: Callable[[Any, Any], Any], forget: Callable[[], Any]) -> Any:
        """Make one call. None when it did not answer; ``forget`` is called when it never will (or pynvml is too old).

        Raises:
            _Reopen: the library has to be opened again.
            NVMLError_GpuIsLost: the card fell off the bus.
        """
        n = self._nvml
        try:
            return call(n, self._handle)
        except (
            n.NVMLError_NotSupported,
            n.NVMLError_FunctionNotFound,
            n.NVMLError_NoPermission,
            n.NVMLError_InvalidArgument,
            n.NVMLError_ArgumentVersionMismatch,
            n.NVMLError_Deprecated,
            AttributeError,
        ):
            forget()
        except (n.NVMLError_LibRmVersionMismatch, n.NVMLError_DriverNotLoaded, n.NVMLError_Uninitialized) as error:
            raise _Reopen(str(error)) from error
        except n.NVMLError_GpuIsLost:
            raise
        except n.NVMLError as error:  # unknown, time-out, in use: may answer the next time
            log.debug("nvml: %s: %s", self.identity.id, error)
        return None

    def _say_once(self, error: Exception) -> None:
        if not self.lost:
            log.error("nvml: %s is lost: %s", self.identity.id, error)
        self.lost = True


CONFIG = NvmlConfig
