"""A rank's own seconds in forward, backward and optimizer: time inside, less what was spent waiting for peers.

On a CPU that is time on the thread's own clock (wall time less run delay, see ``clocks``) less time inside collectives
and point-to-point calls. Processor time would miss a rank that sleeps, waits for a lock or for a device; wall time
would blame a rank for its neighbors.

On a GPU the host runs ahead, so both are taken between CUDA events in the stream: one pair a section, and one pair
around each wait. Nothing is synchronized: the events are read when the device has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch

from mainstay.recovery.sdk.call_tracker import CallTracker, StreamWait

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
SECTIONS: Final = (FORWARD, BACKWARD, OPTIMIZER)


class Sections:
    """Of one training thread. A section inside another one belongs to the outer one."""

    def __init__(self, traffic: CallTracker, device: DeviceSections | None = None) -> None:
        self._clock, self._traffic, self._device = traffic.clock, traffic, device
        self._seconds: dict[str, float] = {}
        self._name: str | None = None
        self._begun = self._waited = 0.0

    def begin_section(self, name: str) -> bool:
        """Whether ``name`` begins here; False inside another section. Then do not ``end`` it."""
        if self._name is not None:
            return False
        self._name = name
        if self._device is not None:
            self._device.begin_section(name)
        self._waited = self._traffic.waited_total
        self._begun = self._clock.own()
        return True

    def end(self) -> None:
        """The section under way ends. Without one, nothing happens: a step that was canceled leaves none."""
        if self._name is None:
            return
        own = self._clock.own() - self._begun - (self._traffic.waited_total - self._waited)
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + max(0.0, own)
        if self._device is not None:
            self._device.end()
        self._name = None

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        begun = self.begin_section(name)
        try:
            yield
        finally:
            if begun:
                self.end()

    def collect(self) -> dict[str, float]:
        """Seconds by section since the last call, as the host saw them."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def drop(self) -> None:
        """The step was canceled."""
        self._name, self._seconds = None, {}


class _Interval(NamedTuple):
    name: str
    """A section, or ``_STEP``."""
    kind: str | None
    waiting: bool
    begin: torch.cuda.Event
    end: torch.cuda.Event


_STEP: Final = "step"


class Passed(NamedTuple):
    """What a device did in one step."""

    sections: dict[str, float]
    waits: dict[str | None, float]
    compute: float


class DeviceSections:
    """The same on a device's stream. Events are used again when they have been read."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []
        self._intervals: list[_Interval] = []
        self._open: tuple[str, torch.cuda.Event] | None = None
        self._step: torch.cuda.Event | None = None

    def begin_step(self) -> None:
        self.drop()
        self._step = self._event()

    def begin_section(self, name: str) -> None:
        self._open = (name, self._event())

    def end(self) -> None:
        if self._open is not None:
            name, begun = self._open
            self._intervals.append(_Interval(name, None, False, begun, self._event()))
            self._open = None

    def wait(self, kind: str | None) -> Callable[[], StreamWait]:
        """Call before a wait, the result after it."""
        section = self._open[0] if self._open is not None else _STEP
        begun = self._event()

        def after() -> StreamWait:
            ended = self._event()
            self._intervals.append(_Interval(section, kind, True, begun, ended))
            return StreamWait(begun.query, ended.query)

        return after

    def end_step(self) -> list[_Interval]:
        """The step's intervals; ``read`` them when the device has passed a ``mark`` that came after."""
        if self._step is not None:
            self._intervals.append(_Interval(_STEP, None, False, self._step, self._event()))
        self._step = None
        intervals, self._intervals = self._intervals, []
        return intervals

    def mark(self) -> Callable[[], bool]:
        """Whether the device has come to here, to be asked later."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.query

    def synchronize(self) -> None:
        """Wait for all that the device was given."""
        torch.cuda.current_stream().synchronize()

    def drop(self) -> None:
        self._intervals, self._open, self._step = [], None, None

    def read(self, intervals: list[_Interval]) -> Passed:
        """Seconds of a step that the device has passed."""
        sections: dict[str, float] = {}
        waits: dict[str | None, float] = {}
        compute = 0.0
        for name, kind, waiting, begin, end in intervals:
            seconds = begin.elapsed_time(end) / 1000.0
            if waiting:
                waits[kind] = waits.get(kind, 0.0) + seconds
                compute -= seconds
            if name != _STEP:
                sections[name] = sections.get(name, 0.0) + (-seconds if waiting else seconds)
            elif not waiting:
                compute += seconds
            self._free += (begin, end)
        return Passed({n: max(0.0, s) for n, s in sections.items()}, waits, max(0.0, compute))

    def _event(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
