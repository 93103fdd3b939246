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

from probes.lanes import Failure, Watched, Watchman
from probes.samplers.base import DeviceIdentity, Happened, Lane, Readings, Sampler, Support
from probes.samplers.wire import Entering, Hello, Message, Row
from probes.signals import SIGNALS, WIDE_MISSING, Catalogue, SignalSource, catalogue

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 60.0
"""How soon a driver that was loaded late is noticed."""
LOOK_AGAIN_S: Final = 10.0
"""How soon changed hardware is noticed; asking what is there costs a source as much as reading it."""
OPENING_S: Final = 15.0
"""How long a source may take to open or to say what it has: a driver initialises cards one after another."""
DEADLINE_S: Final = 1.5
"""After how long a lane that does not answer is reported. Honest calls take milliseconds, so this proves a hang; with
one second until the next tick and the way to the service, an incident stands within three seconds of the fault."""
_FIRST_ROW_S: Final = 5.0
"""What the first row waits for sources that are still opening: a longer one is not worth being blind for."""
_BUDGET: Final = 0.6
"""The share of a tick that a row waits for its lanes: the rest is for sending it before the next."""
_LEAST_BUDGET_S: Final = 0.25
"""At intervals that only tests use, a busy machine needs longer than a share of them to run nine threads."""


_UNASKED: Final = Support(ok=False, reason="has not answered yet")


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a source, or looking at it again, found."""

    support: Support
    devices: tuple[DeviceIdentity, ...] = ()
    lanes: tuple[Lane, ...] = ()


@dataclass(slots=True)
class Door:
    """One sampler: whether it works here, what it has, and how that is read."""

    sampler: Sampler
    watched: Watched
    active: bool = False
    look_at: float = -math.inf
    """When to ask it next what is there, in Unix seconds."""
    support: Support = _UNASKED
    devices: tuple[DeviceIdentity, ...] = ()
    lanes: dict[str, tuple[Lane, Watched]] = field(default_factory=dict)


class _Place(NamedTuple):
    """Where a signal stands in a row."""

    wide: bool
    column: int


class Board:
    """Asks every lane once a tick and says the row. ``interval`` and ``deadline`` in seconds.

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
        self._watchman = Watchman(self._tell, interval, clock)
        self._doors = [Door(s, self._opener(s)) for s in samplers]
        self._devices: tuple[DeviceIdentity, ...] = ()
        self._missing: dict[str, str] | None = None
        self._catalogue = Catalogue(())
        self._places: dict[str, _Place] = {}
        self._implausible: set[str] = set()

    def sample(self, t: float) -> None:
        """Read everything once and send the row; greet first when the hardware changed."""
        started = self._clock()
        self._watchman.begin()
        self._look(t)
        readings = self._read(t)
        if self._changed():
            self._greet()
        self._say(self._row(t, readings))
        self._watchman.close(0.9 * self._interval - (self._clock() - started))

    def close(self) -> None:
        """Let idle threads end, and the sources go."""
        for door in self._doors:
            for _, watched in door.lanes.values():
                self._watchman.forget(watched)
            self._watchman.forget(door.watched)
            if not door.watched.busy:
                door.sampler.close()

    def _tell(self, happened: Happened) -> None:
        self._say(happened)

    def _opener(self, sampler: Sampler) -> Watched:
        return self._watchman.watch(f"{sampler.name}/open", sampler.name, (None,), OPENING_S, punctual=False)

    def _reader(self, lane: Lane, sampler: Sampler) -> Watched:
        return self._watchman.watch(lane.name, sampler.name, lane.devices, self._deadline, punctual=True)

    def _look(self, t: float) -> None:
        """Let in the samplers that can work now, and notice what changed at those that do."""
        asked = [door for door in self._doors if t >= door.look_at]
        for door in asked:
            self._say(Entering(door.sampler.name))
            door.look_at = t + (LOOK_AGAIN_S if door.active else ASK_AGAIN_S)
            self._watchman.ask(door.watched, lambda door=door: self._open(door))  # type: ignore[misc]  # bound now
        first = self._missing is None
        self._watchman.collect([door.watched for door in asked], _FIRST_ROW_S if first else self._budget / 2)
        for door in self._doors:
            answer = door.watched.fetch()
            if isinstance(answer, Opened):
                self._enter(door, answer, t)
            elif isinstance(answer, Failure):
                door.support = Support(ok=False, reason=answer.reason)

    def _open(self, door: Door) -> Opened:
        """Runs in the door's own thread: any of these calls may hang."""
        support = Support(ok=True) if door.active else door.sampler.supported()
        if not support.ok:
            return Opened(support)
        opened = Opened(support, door.sampler.devices(), door.sampler.lanes())
        if not door.active:
            door.sampler.listen(self._tell)
        return opened

    def _enter(self, door: Door, opened: Opened, t: float) -> None:
        door.support, door.devices = opened.support, opened.devices
        if not opened.support.ok:
            return
        if not door.active:
            door.active, door.look_at = True, t + LOOK_AGAIN_S
        before, door.lanes = door.lanes, {}
        for lane in opened.lanes:
            known = before.pop(lane.name, None)
            if known is None or known[0].devices != lane.devices:
                if known is not None:
                    self._watchman.forget(known[1])
                known = lane, self._reader(lane, door.sampler)
            door.lanes[lane.name] = lane, known[1]
        for _, watched in before.values():
            self._watchman.forget(watched)

    def _read(self, t: float) -> dict[str, Readings]:
        asked = []
        for door in self._doors:
            if door.lanes:
                self._say(Entering(door.sampler.name))
            for lane, watched in door.lanes.values():
                self._watchman.ask(watched, lambda lane=lane: lane.read(t))  # type: ignore[misc]  # bound now
                asked.append((door, watched))
        self._watchman.collect([watched for _, watched in asked], self._budget)
        readings: dict[str, Readings] = {}
        for door, watched in asked:
            answer = watched.fetch()
            if answer is not None and not isinstance(answer, Failure):
                readings.update(answer)
                if not answer.keys() <= set(watched.devices):  # it speaks of something new: ask what that is
                    door.look_at = -math.inf
        return readings

    def _identify(self) -> Iterator[DeviceIdentity]:
        for door in self._doors:
            yield from door.devices

    def _changed(self) -> bool:
        return tuple(self._identify()) != self._devices or self._why_missing() != self._missing

    def _why_missing(self) -> dict[str, str]:
        return {door.sampler.name: door.support.reason for door in self._doors if not door.support.ok}

    def _greet(self) -> None:
        self._devices = tuple(self._identify())
        self._missing = self._why_missing()
        sources = {door.sampler.source for door in self._doors if door.active}
        self._catalogue = catalogue(*(source for source in SignalSource if source in sources))
        self._places = _places(self._catalogue)
        self._say(Hello(self._devices, self._catalogue, self._missing))

    def _row(self, t: float, readings: Mapping[str, Readings]) -> Row:
        narrow = array("f", [math.nan]) * (len(self._devices) * len(self._catalogue.narrow))
        wide = array("q", [WIDE_MISSING]) * (len(self._devices) * len(self._catalogue.wide))
        for k, device in enumerate(self._devices):
            for name, value in readings.get(device.id, {}).items():
                if (place := self._places.get(name)) is None or not self._plausible(name, value):
                    continue
                if place.wide:
                    wide[k * len(self._catalogue.wide) + place.column] = int(value)
                else:
                    narrow[k * len(self._catalogue.narrow) + place.column] = value
        return Row(t, _little(narrow), _little(wide))

    def _plausible(self, name: str, value: float) -> bool:
        """Whether ingest would take the value; one nonsense reading must not cost the whole frame."""
        signal_ = SIGNALS[name]
        limit = 2.0**63 if signal_.wide else 3e38
        good = signal_.low <= value <= signal_.high and -limit < value < limit
        if not good and name not in self._implausible:
            self._implausible.add(name)
            log.warning("%s reads %r, outside %r to %r: left out", name, value, signal_.low, signal_.high)
        return good


def _places(catalogue_: Catalogue) -> dict[str, _Place]:
    places = {name: _Place(False, column) for column, name in enumerate(catalogue_.narrow)}
    return places | {name: _Place(True, column) for column, name in enumerate(catalogue_.wide)}


def _little(values: array[float] | array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
