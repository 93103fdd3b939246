"""NVML of the real driver, through the sampler that the node daemon uses."""

from __future__ import annotations

import statistics
import threading
import time
from typing import ClassVar

from mainstay.probes.samplers.base import DeviceIdentity
from mainstay.probes.samplers.nvml import NvmlConfig, NvmlSampler
from mainstay.probes.signals import SIGNALS, SignalSource
from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckFigure, CheckResult, CheckSettings, CheckStatus

_READS = 5
_FAST_SECONDS = 1.0
"""Signals with this period are read in every sample of the node daemon."""


class NvmlCheck(AcceptanceCheck):
    """Read every signal again and again, and report which of them the driver gives."""

    name: ClassVar[str] = "nvml"
    proves: ClassVar[str] = "the node daemon reads this driver"
    deadline_seconds: ClassVar[float] = 120.0

    def run(self, settings: CheckSettings) -> CheckResult:
        sampler = NvmlConfig().build()
        support = sampler.supported()
        if not support.ok and not settings.on_gpu:
            return CheckResult(name=self.name, status=CheckStatus.SKIPPED, evidence=support.reason)
        if not support.ok:
            return self.result([support.reason], "")
        devices = sampler.devices()
        given, seconds = _read(sampler, settings.seconds / _READS)
        sampler.close()
        silent = [f"GPU {one.index} gave no signal" for one in devices if not given.get(one.id)]
        if settings.on_gpu and len(devices) < settings.device.count:
            silent.append(f"NVML lists {len(devices)} GPUs, CUDA {settings.device.count}")
        everywhere = set.intersection(*(given.get(one.id, set()) for one in devices))
        declared = {name: one for name, one in SIGNALS.items() if one.source is SignalSource.GPU}
        fast = {name for name, one in declared.items() if one.period <= _FAST_SECONDS}
        return self.result(
            silent,
            f"{len(devices)} GPUs gave {len(fast & everywhere)} of {len(fast)} signals of the 1 s period and "
            f"{len(everywhere - fast)} of {len(declared) - len(fast)} slower ones in {len(seconds)} reads.",
            (
                CheckFigure("first read of all GPUs", seconds[0], "s"),
                CheckFigure("read of all GPUs, median", statistics.median(seconds[1:]), "s"),
                CheckFigure("read of all GPUs, longest", max(seconds[1:]), "s"),
                CheckFigure("signals given", len(everywhere), ""),
                CheckFigure("signals not given", len(declared) - len(everywhere), ""),
            ),
            {
                "driver": devices[0].facts.get("driver", ""),
                "names of signals given": ", ".join(sorted(everywhere)),
                "names of signals not given": ", ".join(sorted(declared.keys() - everywhere)),
                **{f"GPU {one.index}": _words(one, settings) for one in devices},
            },
        )


def _read(sampler: NvmlSampler, pause: float) -> tuple[dict[str, set[str]], list[float]]:
    """Device -> the signals that it ever gave, and seconds of each read; the first one reads all tiers."""
    given: dict[str, set[str]] = {}
    seconds = []
    for _ in range(_READS + 1):
        begun = time.perf_counter()
        readings = sampler.sample(time.time())
        seconds.append(time.perf_counter() - begun)
        for device, values in readings.items():
            given.setdefault(device, set()).update(values)
        threading.Event().wait(pause)
    return given, seconds


def _words(device: DeviceIdentity, settings: CheckSettings) -> str:
    parts = [device.model, f"{(device.memory_bytes or 0) / 2**30:.0f} GiB"]
    parts += [f"VBIOS {device.facts['vbios']}"] if "vbios" in device.facts else []
    parts += [f"UUID {device.uuid}, serial {device.serial}"] if settings.with_names else []
    return ", ".join(parts)
