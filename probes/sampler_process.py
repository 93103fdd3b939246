"""The child that owns the driver: samples on an absolute schedule, writes rows to a pipe. It may hang; nothing waits.

Run as ``python -m probes.sampler_process`` by the daemon. Rows leave on the descriptor that was standard output;
whatever a library prints goes to standard error instead. Samples are taken at whole multiples of the interval on the
Unix clock: they never drift, and all nodes of a fleet sample in the same instant. A tick that was missed is skipped,
never made up.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from probes.samplers.base import DeviceIdentity, Readings, Sampler, registry
from probes.samplers.wire import Entering, Hello, Message, Row, pack
from probes.signals import SIGNALS, WIDE_MISSING, Catalogue, SignalSource, catalogue

log = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 60.0
"""How soon a driver that was loaded late is noticed."""


def ticks(interval: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[float]:
    """Whole multiples of ``interval``, each yielded when ``clock`` has reached it and never twice in a row."""
    tick = math.floor(clock() / interval) + 1
    while True:
        while (left := tick * interval - clock()) > 0:
            if left > 2 * interval:  # the clock was set back: follow it
                tick = math.floor(clock() / interval) + 1
                continue
            sleep(left)
        yield tick * interval
        tick = max(tick + 1, math.floor(clock() / interval) + 1)


class Board:
    """The samplers at work, and how their readings become one row."""

    def __init__(self, samplers: Sequence[Sampler], say: Callable[[Message], None]) -> None:
        self._waiting = list(samplers)
        self._say = say
        self._active: list[Sampler] = []
        self._missing: dict[str, str] = {}
        self._devices: tuple[DeviceIdentity, ...] = ()
        self._catalogue = Catalogue(())
        self._implausible: set[str] = set()
        self._ask_again = -math.inf

    def sample(self, t: float) -> None:
        """Read everything once and send the row; greet first when the hardware changed."""
        joined = self._ask(t)
        readings: dict[str, Readings] = {}
        for sampler in self._active:
            self._say(Entering(sampler.name))
            readings.update(sampler.sample(t))
        if joined or self._identify() != self._devices:
            self._greet()
        self._say(self._row(t, readings))

    def _ask(self, t: float) -> bool:
        """Let in the samplers that can work now; a driver may be loaded long after the daemon."""
        if t < self._ask_again:
            return False
        self._ask_again = t + _ASK_AGAIN_S
        waiting, self._waiting, self._missing = self._waiting, [], {}
        for sampler in waiting:
            self._say(Entering(sampler.name))
            support = sampler.supported()
            (self._active if support.ok else self._waiting).append(sampler)
            if not support.ok:
                self._missing[sampler.name] = support.reason
        return len(self._waiting) < len(waiting) or not self._devices

    def _identify(self) -> tuple[DeviceIdentity, ...]:
        return tuple(device for sampler in self._active for device in sampler.devices())

    def _greet(self) -> None:
        self._devices = self._identify()
        sources = {sampler.source for sampler in self._active}
        self._catalogue = catalogue(*(source for source in SignalSource if source in sources))
        self._say(Hello(self._devices, self._catalogue, self._missing))

    def _row(self, t: float, readings: Mapping[str, Readings]) -> Row:
        per_device = [readings.get(device.id, {}) for device in self._devices]
        narrow = [self._narrow(name, r.get(name)) for r in per_device for name in self._catalogue.narrow]
        wide = [self._wide(name, r.get(name)) for r in per_device for name in self._catalogue.wide]
        return Row(t, struct.pack(f"<{len(narrow)}f", *narrow), struct.pack(f"<{len(wide)}q", *wide))

    def _narrow(self, name: str, value: float | None) -> float:
        return float(value) if value is not None and self._plausible(name, value) else math.nan

    def _wide(self, name: str, value: float | None) -> int:
        return int(value) if value is not None and self._plausible(name, value) else WIDE_MISSING

    def _plausible(self, name: str, value: float) -> bool:
        """Whether ingest would take the value; one nonsense reading must not cost the whole frame."""
        signal_ = SIGNALS[name]
        limit = 2.0**63 if signal_.wide else 3e38
        good = signal_.low <= value <= signal_.high and -limit < value < limit
        if not good and name not in self._implausible:
            self._implausible.add(name)
            log.warning("%s reads %r, outside %r to %r: left out", name, value, signal_.low, signal_.high)
        return good


def _claim_stdout() -> int:
    """The pipe to the parent; standard output becomes standard error for whoever prints."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return pipe


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m probes.sampler_process")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--without", action="append", default=[], metavar="SAMPLER")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s sampler: %(message)s")
    arguments = _arguments(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    pipe = _claim_stdout()
    samplers = [config().build() for name, config in registry().items() if name not in arguments.without]
    board = Board(samplers, lambda message: _write(pipe, pack(message)))
    try:
        for t in ticks(arguments.interval, time.time, time.sleep):
            board.sample(t)
    except BrokenPipeError:  # the parent is gone
        return 0
    return 0


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
