"""The contract of a sampler, on one page.

A sampler reads one source (a driver, a kernel interface) into signals of ``mainstay.probes.signals``. It owns a
``Config`` of plain data whose ``build()`` makes it; where it reads from is in the config and the time comes as an
argument, so tests need neither the hardware nor a clock. A new sampler costs two files: its module in this package,
ending in ``CONFIG = ItsConfig``, and its test. The conformance suite finds it automatically.

Rules that the suite checks:

* ``supported`` says why when it says no, and never raises: a machine without the driver is not a fault.
* ``devices`` are legal, distinct ids; ``sample`` speaks only of these devices and of declared signals of ``source``.
* A sampler *leaves out* an unreadable signal: it is unknown, which is never zero. One unreadable signal never costs the
  others.
* ``close`` may be called at any time, twice; afterwards ``sample`` opens the source again.

A source whose parts can hang one by one (a driver with eight cards) offers them as ``channels``: each is read in a
thread of its own with a deadline, so that what hangs there costs only the devices of that channel. A source that learns
of things between two samples (an XID) says them through the ``tell`` that ``listen`` gave it, from any thread.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, Protocol

import msgspec

from mainstay.probes.core_types import EventKind
from mainstay.probes.signals import SignalSource

Readings = Mapping[str, float]
"""Signal name to value, in the signal's unit. A signal that is missing was not readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device as it identifies itself. ``id`` stays with the hardware when it moves to another node."""

    id: str
    index: int
    kind: Literal["host", "gpu", "nic"]
    model: str
    serial: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    """What stays the same until the next boot, in plain words: ``pci``, ``driver``, ``vbios``, ``slot``, ``mig``..."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a sampler can work here; ``reason`` says why not, in words for the operator."""

    ok: bool
    reason: str = ""


class SourceEvent(msgspec.Struct, frozen=True, kw_only=True, tag="happened"):
    """Something a source learned between or within samples; the daemon makes an ``Event`` of it."""

    kind: EventKind
    t: float
    """Unix seconds."""
    device: str | None = None
    data: dict[str, Any] = {}


Tell = Callable[[SourceEvent], None]


@dataclass(frozen=True, slots=True)
class ReadChannel:
    """One way of reading that may hang without holding up the others."""

    name: str
    """``SAMPLER`` or ``SAMPLER/DEVICE``."""
    devices: tuple[str, ...]
    """Whose readings are missing while it hangs."""
    read: Callable[[float], Mapping[str, Readings]]
    """Like ``Sampler.sample``, of these devices only; called by one thread at a time."""


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

    def channels(self) -> tuple[ReadChannel, ...]:
        """Return the channels for parallel reads, all devices once; the same ones while the devices stay the same."""

    def listen(self, tell: Tell) -> None:
        """Say from now on through ``tell`` (thread-safe, never blocks) what happens; harmless when nothing does."""

    def close(self) -> None:
        """Close the source; what it started has ended, unless it hangs."""


class SamplerConfig(Protocol):
    """Plain data with defaults for a real machine."""

    def build(self) -> Sampler:
        """The sampler that these settings describe."""


@cache
def registry() -> dict[str, type[SamplerConfig]]:
    """Every sampler in this package by module name: each module that ends in ``CONFIG = …``."""
    package = import_module("mainstay.probes.samplers")
    modules = {
        info.name: import_module(f"mainstay.probes.samplers.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
    }
    return {name: module.CONFIG for name, module in sorted(modules.items()) if hasattr(module, "CONFIG")}
