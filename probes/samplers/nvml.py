"""NVIDIA GPUs through NVML (the module ``pynvml`` of the distribution nvidia-ml-py).

Signals are read in three tiers (``mainstay.probes.nvml.fields``), because every call takes the driver's lock, which
training threads take too: what is cheap or urgent every sample, the rest every 10 s and 60 s, each card in its own
second. A call that a card, a driver or a privilege does not allow is *not a fault*: its signal is left out and the call
is not made again. New names are called first and old ones where the driver lacks them. XIDs and other events come from
a thread of their own (``mainstay.probes.nvml.events``), within milliseconds.

Each card is a read channel: one that hangs blocks neither the others nor the events, as far as the driver itself does
not. A lost card answers nothing: all its signals are unknown, and ``gpu_lost`` is reported once, and once more when it
answers again. When the driver was replaced under us the library is opened again (``mainstay.probes.nvml.library``). A
card that hangs while the library is opened is left out for then; a driver that hangs there as a whole hangs the
sampler.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.probes.nvml.card import NvmlGpu
from mainstay.probes.nvml.errors import StaleError
from mainstay.probes.nvml.events import Listener
from mainstay.probes.nvml.library import IDENTIFY_S, SILENT, Library
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, SourceEvent, Support, Tell
from mainstay.probes.signals import SignalSource

log = logging.getLogger(__name__)

_RETRY_LOST_S: Final = (60.0, 960.0)
"""A card that was reset answers again only after the library was reopened: first and longest pause between tries.
Each costs the other cards a sample at most."""


def _import() -> Any:
    import pynvml  # noqa: PLC0415 - a host without GPUs need not load it

    return pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlConfig:
    """Nothing to set: the driver's library is found the way the loader finds it."""

    def build(self) -> NvmlSampler:
        return NvmlSampler(self)


class NvmlSampler:
    """Every GPU of the node, keyed by UUID. Channels may be read side by side, each by one thread at a time."""

    name = "nvml"
    source = SignalSource.GPU

    def __init__(self, config: NvmlConfig) -> None:
        self.config = config
        self._library = Library(_import)
        self._lock = threading.Lock()
        """Never held during a driver call."""
        self._tell: Tell = _ignore_event
        self._listener: Listener | None = None
        self._channels: tuple[tuple[NvmlGpu, ...], tuple[ReadChannel, ...]] = ((), ())
        self._unopened: dict[int, str] = {}
        self._retry_lost_at = math.inf
        self._retry_lost_s = _RETRY_LOST_S[0]

    def supported(self) -> Support:
        try:
            self._library.open()
        except ModuleNotFoundError:
            return Support(ok=False, reason="nvidia-ml-py is not installed")
        except OSError as error:
            return Support(ok=False, reason=f"the NVIDIA driver does not answer: {error}")
        if not self._library.cards:
            return Support(ok=False, reason="the NVIDIA driver sees no GPU")
        return Support(ok=True)

    def devices(self) -> tuple[DeviceIdentity, ...]:
        return tuple(card.identity for card in self._library.cards)

    def sample(self, t: float) -> dict[str, Readings]:
        self._library.retry()
        return {device: readings for channel in self.channels() for device, readings in channel.read(t).items()}

    def channels(self) -> tuple[ReadChannel, ...]:
        cards = self._library.cards
        if cards is not self._channels[0]:
            channels = (
                ReadChannel(f"{self.name}/{card.identity.id}", (card.identity.id,), partial(self._read, card))
                for card in cards
            )
            self._channels = (cards, tuple(channels))
        return self._channels[1]

    def listen(self, tell: Tell) -> None:
        self._tell = tell
        if self._listener is not None:
            self._listener.stop()
        self._listener = Listener(self._library, tell)
        self._listener.start()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
        self._library.close()

    def _read(self, card: NvmlGpu, t: float) -> Mapping[str, Readings]:
        """One channel: nothing when the card or the library does not answer."""
        device = card.identity.id
        with self._lock:
            self._mind_the_lost(t)
            if self._listener is not None:
                self._listener.start()
        self._library.retry_aside()
        with self._library.visit(device) as welcome:
            if not welcome:
                return {device: {}}
            try:
                return {device: card.sample(t, self._tell)}
            except StaleError as error:
                self._library.stale(str(error))
                return {device: {}}

    def _mind_the_lost(self, t: float) -> None:
        """Reopen the library now and then while a card is lost; log the cards that could not be opened at all."""
        unopened = self._library.unopened
        if unopened != self._unopened and all(card.reader is not None for card in self._library.cards):
            for index in unopened.keys() - self._unopened.keys():
                self._tell(_unnamed(t, index, unopened[index]))
        self._unopened = unopened
        if not unopened and not any(card.lost for card in self._library.cards):
            self._retry_lost_at, self._retry_lost_s = math.inf, _RETRY_LOST_S[0]
        elif self._retry_lost_at == math.inf or self._retry_lost_at > t + _RETRY_LOST_S[1]:
            self._retry_lost_at = t + self._retry_lost_s
        elif t >= self._retry_lost_at:
            self._retry_lost_s = min(2 * self._retry_lost_s, _RETRY_LOST_S[1])
            self._retry_lost_at = t + self._retry_lost_s
            self._library.request("a lost GPU may be back")


def _unnamed(t: float, index: int, reason: str) -> SourceEvent:
    """About a card that the driver lists and that did not answer even its UUID."""
    data: dict[str, Any] = {"reason": reason, "source": "nvml", "index": index}
    if reason != SILENT:
        return SourceEvent(kind=EventKind.GPU_LOST, t=t, data=data)
    about = {"sampler": "nvml", "channel": f"nvml/{index}", "reason": f"GPU {index} does not say who it is"}
    return SourceEvent(kind=EventKind.PROBE_UNRESPONSIVE, t=t, data={**data, **about, "seconds": IDENTIFY_S})


def _ignore_event(event: SourceEvent) -> None:
    log.debug("nvml: no listener for %s", event)


CONFIG = NvmlConfig
