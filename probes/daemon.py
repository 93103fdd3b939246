"""The node daemon's parent: rows in, frames out. It never touches a driver, so it never hangs.

Rows of the sampler child become frames of ``batch`` samples; a frame holds only samples that follow each other without
a gap and come from the same devices. Every frame and event is on disk before it may be sent, and stays until the
service has acknowledged it.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from probes.child import ChildConfig, Silence, Supervisor
from probes.frame import Axis
from probes.identity import describe
from probes.ids import uuid7
from probes.orders import ControlLoop, ResultOutbox, Validator
from probes.outbox import EventOutbox
from probes.samplers.wire import Hello, Message, Row
from probes.shipper import FrameSender
from probes.signals import Catalogue
from probes.spool import Spool
from probes.transport import Transport
from probes.words import Event, EventKind

log = logging.getLogger(__name__)

_POLL_S: Final = 5.0
_FLUSH_S: Final = 3.0
"""How long an orderly stop tries to deliver; the rest stays in the spool."""
_EVENT_SPOOL_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """One node's settings. Times in seconds."""

    name: str
    data_dir: Path
    cohort: str | None = None
    batch: int = 2
    """Samples a frame: two halve the requests and cost a second of freshness."""
    spool_bytes: int = 256 * 1024 * 1024
    """About two weeks of a host without GPUs, a day of one with eight."""
    child: ChildConfig = field(default_factory=ChildConfig)

    def build(self, transport: Transport, *, enrol: Callable[[], str] | None = None) -> NodeDaemon:
        """The daemon that these settings describe; ``enrol`` gets it a token when it has none yet.

        Raises:
            SpoolError: another daemon uses the data directory.
        """
        return NodeDaemon(self, transport, enrol=enrol)


class Batcher:
    """Collects rows until a frame is full, the grid breaks, or the devices change."""

    def __init__(self, name: str, interval: float, batch: int, sender: FrameSender) -> None:
        self.framed = 0
        self._name = name
        self._interval = interval
        self._batch = batch
        self._sender = sender
        self._devices: tuple[str, ...] = ()
        self._catalogue = Catalogue(())
        self._rows: list[Row] = []

    def greet(self, hello: Hello) -> None:
        self.flush()
        self._devices = tuple(device.id for device in hello.devices)
        self._catalogue = hello.catalogue

    def add(self, row: Row) -> None:
        if not self._devices:
            return
        if self._rows and round((row.t - self._rows[0].t) / self._interval) != len(self._rows):
            self.flush()
        self._rows.append(row)
        if len(self._rows) >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Hand over what was collected, even if the frame is not full."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        try:
            self._sender.put(
                subject=self._name,
                axis=Axis.TIME,
                t0=rows[0].t,
                dt=self._interval,
                catalogue=self._catalogue,
                entities=self._devices,
                samples=len(rows),
                values=interleave([row.values for row in rows], 4),
                wide=interleave([row.wide for row in rows], 8),
            )
            self.framed += 1
        except OSError as error:  # a full disk costs this frame, not the daemon
            log.warning("a frame of %d samples is lost: %s", len(rows), error)


def interleave(rows: list[bytes], width: int) -> bytes:
    """Rows [cell] of ``width``-byte values to one block [cell, time], time running fastest."""
    out = array("I" if width == 4 else "Q", bytes(len(rows) * len(rows[0])))
    for k, row in enumerate(rows):
        out[k :: len(rows)] = array(out.typecode, row)
    return out.tobytes()


class NodeDaemon:
    """Measures, spools, sends, and takes orders until ``stop``. ``run`` is called once, from one thread."""

    def __init__(
        self,
        config: DaemonConfig,
        transport: Transport,
        *,
        validator: Validator | None = None,
        enrol: Callable[[], str] | None = None,
    ) -> None:
        self.config = config
        self._transport = transport
        self._stopping = threading.Event()
        directory = config.data_dir
        self._spools = [
            Spool(directory / "frames", config.spool_bytes),
            Spool(directory / "events", _EVENT_SPOOL_BYTES),
            Spool(directory / "results", _EVENT_SPOOL_BYTES),
        ]
        frames, events, results = self._spools
        self.sender = FrameSender(frames, transport)
        self.outbox = EventOutbox(events, transport)
        self._results = ResultOutbox(results, transport)
        self._control = ControlLoop(config.name, transport, validator or Validator(), self._results, enrol=enrol)
        self._batcher = Batcher(config.name, config.child.interval, config.batch, self.sender)
        self.supervisor = Supervisor(config.child, self._silent)
        self._started_at = time.time()
        self._muted = False
        """The service was told of a silence and not yet of its end."""

    def run(self, *, until: Callable[[NodeDaemon], bool] = lambda _: False) -> bool:
        """Work until ``stop`` is called or ``until`` holds; True when everything was delivered."""
        self.sender.start()
        self.outbox.start()
        self._results.shipper.start()
        self._control.start()
        try:
            while not self._stopping.is_set() and not until(self):
                for message in self.supervisor.poll(_POLL_S):
                    self._take(message)
        finally:
            delivered = self._close()
        return delivered

    def stop(self) -> None:
        """Ask for an orderly stop; safe in a signal handler and from any thread."""
        self._stopping.set()
        self.supervisor.wake()

    @property
    def delivered(self) -> int:
        """Frames that the service has acknowledged in this life of the daemon."""
        return self.sender.shipper.delivered

    @property
    def reported(self) -> bool:
        """Whether the service has this node's current report."""
        return self._control.reported.is_set()

    def _take(self, message: Message) -> None:
        if isinstance(message, Row):
            self._batcher.add(message)
            self._heard()
        elif isinstance(message, Hello):
            self._batcher.greet(message)
            for name, reason in message.missing.items():
                log.info("sampler %s is off: %s", name, reason)
            self._control.report(
                describe(message.devices, message.catalogue, cohort=self.config.cohort, started_at=self._started_at)
            )

    def _silent(self, silence: Silence) -> None:
        self._batcher.flush()
        self._muted = True
        self._tell(silence.as_data())

    def _heard(self) -> None:
        """A silence is over once every sampler speaks again, not while one is left out because it hung."""
        child = self.supervisor.child
        if self._muted and child is not None and not child.without:
            self._muted = False
            self._tell({"cleared": True, "pid": child.process.pid})

    def _tell(self, data: dict[str, object]) -> None:
        event = Event(id=uuid7(), time=time.time(), kind=EventKind.PROBE_SILENT, node=self.config.name, data=data)
        try:
            self.outbox.put(event)
        except OSError as error:
            log.warning("an event is lost: %s", error)

    def _close(self) -> bool:
        self.supervisor.close()
        self._batcher.flush()
        self._control.stop()
        deadline = time.monotonic() + _FLUSH_S
        shippers = (self.outbox.shipper, self._results.shipper, self.sender.shipper)
        delivered = [shipper.stop(max(0.0, deadline - time.monotonic())) for shipper in shippers]
        for spool in self._spools:
            spool.close()
        self._transport.close()
        return all(delivered)
