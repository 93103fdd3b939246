"""The samplers at work, and how what they read becomes one row a tick.

A row never waits for a source: what has not answered within the tick's budget is missing from it. Only the first row
waits a little longer, so that a node with eight cards is not first reported without any.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mainstay.probes.read_channels import CallFailure, ChannelSupervisor, MonitoredChannel
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, Sampler, SourceEvent, Support
from mainstay.probes.samplers.protocol import Message, SamplerHello, SampleRow, SourceEntered
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, Catalog, SignalSource, catalog

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 60.0
"""How soon a driver that was loaded late is noticed."""
LOOK_AGAIN_S: Final = 10.0
"""How soon changed hardware is noticed; asking what is there costs a source as much as reading it."""
OPENING_S: Final = 15.0
"""How long a source may take to open or to report its devices: a driver initializes cards one after another."""
DEADLINE_S: Final = 1.5
"""After how long a channel that does not answer is reported. Honest calls take milliseconds, so this proves a hang;
with one second until the next tick and the way to the service, an incident stands within three seconds of the fault."""
_FIRST_ROW_S: Final = 5.0
"""What the first row waits for sources that are still opening: a longer one is not worth being blind for."""
_BUDGET: Final = 0.6
"""The share of a tick that a row waits for its channels: the rest is for sending it before the next."""
_LEAST_BUDGET_S: Final = 0.25
"""At intervals that only tests use, a busy machine needs longer than a share of them to run nine threads."""


_UNASKED: Final = Support(ok=False, reason="has not answered yet")


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """What opening a source, or looking at it again, found."""

    support: Support
    devices: tuple[DeviceIdentity, ...] = ()
    channels: tuple[ReadChannel, ...] = ()


@dataclass(slots=True)
class SamplerHandle:
    """One sampler: whether it works here, what it has, and how that is read."""

    sampler: Sampler
    watched: MonitoredChannel
    active: bool = False
    look_at: float = -math.inf
    """When to ask it next what is there, in Unix seconds."""
    support: Support = _UNASKED
    devices: tuple[DeviceIdentity, ...] = ()
    channels: dict[str, tuple[ReadChannel, MonitoredChannel]] = field(default_factory=dict)


class _Place(NamedTuple):
    """Where a signal stands in a row."""

    wide: bool
    column: int


class SampleCollector:
    """Asks every channel once a tick and says the row. ``interval`` and ``deadline`` in seconds.

    ``say`` is called from the threads of sources too, for what they tell between two rows.
    """

    def __init__(
        self,
        samplers: Sequence[Sampler],
        say: Callable[[Message], None],
        *,
        interval: float = 1.0,
        deadline: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._budget = max(_BUDGET * interval, _LEAST_BUDGET_S)
        self._interval = interval
        self._deadline = deadline
        self._clock = clock
        self._channel_supervisor = ChannelSupervisor(self._tell, interval, clock)
        self._handles = [SamplerHandle(s, self._opener(s)) for s in samplers]
        self._devices: tuple[DeviceIdentity, ...] = ()
        self._missing: dict[str, str] | None = None
        self._catalog = Catalog(())
        self._places: dict[str, _Place] = {}
        self._implausible: set[str] = set()

    def sample(self, t: float) -> None:
        """Read everything once and send the row; greet first when the hardware changed."""
        started = self._clock()
        self._channel_supervisor.start_round()
        self._look(t)
        readings = self._read(t)
        if self._changed():
            self._greet()
        self._say(self._row(t, readings))
        self._channel_supervisor.close(0.9 * self._interval - (self._clock() - started))

    def _tell(self, happened: SourceEvent) -> None:
        self._say(happened)

    def _opener(self, sampler: Sampler) -> MonitoredChannel:
        return self._channel_supervisor.watch(f"{sampler.name}/open", sampler.name, (None,), OPENING_S, punctual=False)

    def _reader(self, channel: ReadChannel, sampler: Sampler) -> MonitoredChannel:
        return self._channel_supervisor.watch(
            channel.name, sampler.name, channel.devices, self._deadline, punctual=True
        )

    def _look(self, t: float) -> None:
        """Let in the samplers that can work now, and notice what changed at those that do."""
        asked = [handle for handle in self._handles if t >= handle.look_at]
        for handle in asked:
            self._say(SourceEntered(handle.sampler.name))
            handle.look_at = t + (LOOK_AGAIN_S if handle.active else ASK_AGAIN_S)
            self._channel_supervisor.start_call(handle.watched, lambda handle=handle: self._open(handle))  # type: ignore[misc]  # bound now
        first = self._missing is None
        self._channel_supervisor.collect(
            [handle.watched for handle in asked], _FIRST_ROW_S if first else self._budget / 2
        )
        for handle in self._handles:
            answer = handle.watched.fetch()
            if isinstance(answer, OpenedSource):
                self._enter(handle, answer, t)
            elif isinstance(answer, CallFailure):
                handle.support = Support(ok=False, reason=answer.reason)

    def _open(self, handle: SamplerHandle) -> OpenedSource:
        """Runs in the sampler handle's own thread: any of these calls may hang."""
        support = Support(ok=True) if handle.active else handle.sampler.supported()
        if not support.ok:
            return OpenedSource(support)
        opened = OpenedSource(support, handle.sampler.devices(), handle.sampler.channels())
        if not handle.active:
            handle.sampler.listen(self._tell)
        return opened

    def _enter(self, handle: SamplerHandle, opened: OpenedSource, t: float) -> None:
        handle.support, handle.devices = opened.support, opened.devices
        if not opened.support.ok:
            return
        if not handle.active:
            handle.active, handle.look_at = True, t + LOOK_AGAIN_S
        before, handle.channels = handle.channels, {}
        for channel in opened.channels:
            known = before.pop(channel.name, None)
            if known is None or known[0].devices != channel.devices:
                if known is not None:
                    self._channel_supervisor.forget(known[1])
                known = channel, self._reader(channel, handle.sampler)
            handle.channels[channel.name] = channel, known[1]
        for _, watched in before.values():
            self._channel_supervisor.forget(watched)

    def _read(self, t: float) -> dict[str, Readings]:
        asked = []
        for handle in self._handles:
            if handle.channels:
                self._say(SourceEntered(handle.sampler.name))
            for channel, watched in handle.channels.values():
                self._channel_supervisor.start_call(watched, lambda channel=channel: channel.read(t))  # type: ignore[misc]  # bound now
                asked.append((handle, watched))
        self._channel_supervisor.collect([watched for _, watched in asked], self._budget)
        readings: dict[str, Readings] = {}
        for handle, watched in asked:
            answer = watched.fetch()
            if answer is not None and not isinstance(answer, CallFailure):
                readings.update(answer)
                if not answer.keys() <= set(watched.devices):  # it speaks of something new: ask what that is
                    handle.look_at = -math.inf
        return readings

    def _identify(self) -> Iterator[DeviceIdentity]:
        for handle in self._handles:
            yield from handle.devices

    def _changed(self) -> bool:
        return tuple(self._identify()) != self._devices or self._why_missing() != self._missing

    def _why_missing(self) -> dict[str, str]:
        return {handle.sampler.name: handle.support.reason for handle in self._handles if not handle.support.ok}

    def _greet(self) -> None:
        self._devices = tuple(self._identify())
        self._missing = self._why_missing()
        sources = {handle.sampler.source for handle in self._handles if handle.active}
        self._catalog = catalog(*(source for source in SignalSource if source in sources))
        self._places = _places(self._catalog)
        self._say(SamplerHello(self._devices, self._catalog, self._missing))

    def _row(self, t: float, readings: Mapping[str, Readings]) -> SampleRow:
        narrow = array("f", [math.nan]) * (len(self._devices) * len(self._catalog.narrow))
        wide = array("q", [WIDE_MISSING]) * (len(self._devices) * len(self._catalog.wide))
        for k, device in enumerate(self._devices):
            for name, value in readings.get(device.id, {}).items():
                if (place := self._places.get(name)) is None or not self._plausible(name, value):
                    continue
                if place.wide:
                    wide[k * len(self._catalog.wide) + place.column] = int(value)
                else:
                    narrow[k * len(self._catalog.narrow) + place.column] = value
        return SampleRow(t, _little(narrow), _little(wide))

    def _plausible(self, name: str, value: float) -> bool:
        """Whether ingest would take the value; one nonsense reading must not cost the whole frame."""
        signal_ = SIGNALS[name]
        limit = 2.0**63 if signal_.wide else 3e38
        good = signal_.low <= value <= signal_.high and -limit < value < limit
        if not good and name not in self._implausible:
            self._implausible.add(name)
            log.warning("%s reads %r, outside %r to %r: left out", name, value, signal_.low, signal_.high)
        return good


def _places(catalog_: Catalog) -> dict[str, _Place]:
    places = {name: _Place(False, column) for column, name in enumerate(catalog_.narrow)}
    return places | {name: _Place(True, column) for column, name in enumerate(catalog_.wide)}


def _little(values: array[float] | array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
