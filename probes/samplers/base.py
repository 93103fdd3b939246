"""The contract of a sampler, on one page.

A sampler reads one source (a driver, a kernel interface) into signals of ``probes.signals``. It owns a ``Config`` of
plain data whose ``build()`` makes it; where it reads from is in the config and the time comes as an argument, so
tests need neither the hardware nor a clock. A new sampler costs two files: its module in this package, ending in
``CONFIG = ItsConfig``, and its test. The conformance suite finds it by itself.

Rules that the suite checks:

* ``supported`` says why when it says no, and never raises: a machine without the driver is not a fault.
* ``devices`` are legal, distinct ids; ``sample`` speaks only of these devices and of declared signals of ``source``.
* What cannot be read is *left out*: unknown, which is never zero. One unreadable signal never costs the others.
* ``close`` may be called at any time, twice; afterwards ``sample`` opens the source again.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Literal, Protocol

from probes.signals import SignalSource

Readings = Mapping[str, float]
"""Signal name to value, in the signal's unit. A signal that is missing was not readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device as it identifies itself. ``id`` stays with the hardware when it moves to another node."""

    id: str
    index: int
    kind: Literal["host", "gpu"]
    model: str
    serial: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a sampler can work here; ``reason`` says why not, in words for the operator."""

    ok: bool
    reason: str = ""


class Sampler(Protocol):
    """Reads one source. Not thread-safe: it lives in the child that may hang in its stead."""

    name: str
    source: SignalSource

    def supported(self) -> Support:
        """Can this source be read on this machine? Cheap enough to ask again."""

    def devices(self) -> tuple[DeviceIdentity, ...]:
        """Everything that is measured, in index order; may change after the hardware did."""

    def sample(self, t: float) -> Mapping[str, Readings]:
        """Read every device once, at ``t`` Unix seconds: device id to what could be read of it."""

    def close(self) -> None:
        """Let go of the source."""


class SamplerConfig(Protocol):
    """Plain data with defaults for a real machine."""

    def build(self) -> Sampler:
        """The sampler that these settings describe."""


@cache
def registry() -> dict[str, type[SamplerConfig]]:
    """Every sampler in this package by module name: whatever module ends in ``CONFIG = …``."""
    package = import_module("probes.samplers")
    modules = {
        info.name: import_module(f"probes.samplers.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    }
    return {name: module.CONFIG for name, module in sorted(modules.items()) if hasattr(module, "CONFIG")}
