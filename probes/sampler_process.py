"""The child that owns the driver: samples on an absolute schedule, writes rows to a pipe. It may hang; nothing waits.

Run as ``python -m mainstay.probes.sampler_process`` by the daemon. Rows leave on the descriptor that was standard
output; output of libraries goes to standard error instead. Samples are taken at whole multiples of the interval on the
Unix clock: they never drift, and all nodes of a fleet sample in the same instant. A tick that was missed is skipped,
never made up. With ``--try CHANNEL`` it reads that channel once and ends: whether a fresh process succeeds where one
hangs.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from mainstay.probes.sample_collector import SampleCollector
from mainstay.probes.samplers.base import SourceEvent, registry
from mainstay.probes.samplers.protocol import Message, pack


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


class Pipe:
    """The way to the parent, from any thread: each message arrives in one piece."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send_message(self, message: Message) -> None:
        """Write a message.

        Raises:
            BrokenPipeError: the parent is gone; not in a source's thread, which cannot do anything about it.
        """
        data = memoryview(pack(message))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except BrokenPipeError:
                if not isinstance(message, SourceEvent):
                    raise


def _claim_stdout() -> int:
    """The pipe to the parent; standard output becomes standard error for whoever prints."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return pipe


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mainstay.probes.sampler_process")
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--without", action="append", default=[], metavar="SAMPLER")
    parser.add_argument("--try", dest="channel", metavar="CHANNEL")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s sampler: %(message)s")
    arguments = _arguments(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    pipe = Pipe(_claim_stdout())
    if arguments.channel is not None:
        return try_channel(arguments.channel)
    samplers = [config().build() for name, config in registry().items() if name not in arguments.without]
    board = SampleCollector(samplers, pipe.send_message, interval=arguments.interval)
    try:
        for t in ticks(arguments.interval, time.time, time.sleep):
            board.sample(t)
    except BrokenPipeError:  # the parent is gone
        return 0
    return 0


def try_channel(name: str) -> int:
    """Read one channel once: 0 when it answers. May hang, which is what is to be found out."""
    config = registry().get(name.partition("/")[0])
    if config is None:
        return 2
    sampler = config().build()
    channels = {channel.name: channel for channel in sampler.channels()} if sampler.supported().ok else {}
    if name.endswith("/open"):  # what hung was opening it
        return 0 if channels else 1
    if name not in channels:
        return 1
    channels[name].read(time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
