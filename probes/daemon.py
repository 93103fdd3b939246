"""The node daemon's parent: rows in, frames out. It never touches a driver, so it never hangs.

Rows of the sampler child become frames of ``batch`` samples; a frame holds only samples that follow each other without
a gap and come from the same devices. Every frame and event is on disk before it may be sent, and stays until the
service has acknowledged it. Events come from the child, from the kernel log, and from the daemon's own life.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mainstay.probes import outage_log, sampler_supervisor, shutdown_reason
from mainstay.probes.core_types import EventKind
from mainstay.probes.event_builder import EventBuilder
from mainstay.probes.frame import Axis
from mainstay.probes.frame_route import FrameRoute
from mainstay.probes.identity import boot_id, describe_node
from mainstay.probes.kernel_log.reader import BootClock, KernelLog
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.outage_log import OutageLog
from mainstay.probes.outbox import EventOutbox
from mainstay.probes.sampler_supervisor import SamplerProcessConfig, SamplerSupervisor
from mainstay.probes.samplers.base import SourceEvent
from mainstay.probes.samplers.protocol import Message, SamplerHello, SampleRow
from mainstay.probes.shipper import FrameSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess

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
    rack: str = ""
    """Where the node stands: causes that a rack shares are judged together."""
    switches: tuple[str, ...] = ()
    """The network switches above it, nearest first: slow ways between ranks are blamed on what they share."""
    power_domain: str = ""
    """What feeds it and its neighbors: faults that nodes of one feed have alike are one incident."""
    kernel_log: str = "auto"
    """``auto``, ``off``, or the path of a file or pipe."""
    child: SamplerProcessConfig = field(default_factory=SamplerProcessConfig)

    def build(
        self, transport: Transport, *, enroll: Callable[[], str] | None = None, relay: Transport | None = None
    ) -> NodeDaemon:
        """The daemon that these settings describe; ``enroll`` gets it a token when it has none yet.

        Frames go through ``relay`` while it answers.

        Raises:
            SpoolError: another daemon uses the data directory.
        """
        return NodeDaemon(self, transport, enroll=enroll, relay=relay)


class Batcher:
    """Collects rows until a frame is full, the grid breaks, or the devices change."""

    def __init__(self, name: str, interval: float, batch: int, sender: FrameSender) -> None:
        self._name = name
        self._interval = interval
        self._batch = batch
        self._sender = sender
        self._devices: tuple[str, ...] = ()
        self._catalog = Catalog(())
        self._rows: list[SampleRow] = []

    def greet(self, hello: SamplerHello) -> None:
        self.flush()
        self._devices = tuple(device.id for device in hello.devices)
        self._catalog = hello.catalog

    def append_row(self, row: SampleRow) -> None:
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
                catalog=self._catalog,
                entities=self._devices,
                samples=len(rows),
                values=interleave([row.values for row in rows], 4),
                wide=interleave([row.wide for row in rows], 8),
            )
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
        validator: ValidationProcess | None = None,
        enroll: Callable[[], str] | None = None,
        relay: Transport | None = None,
    ) -> None:
        self.config = config
        self._transport = transport
        self._relay = relay
        self._stopping = threading.Event()
        directory = config.data_dir
        self._spools = [
            Spool(directory / "frames", config.spool_bytes),
            Spool(directory / "events", _EVENT_SPOOL_BYTES),
            Spool(directory / "results", _EVENT_SPOOL_BYTES),
        ]
        frames, events, results = self._spools
        self.sender = FrameSender(frames, FrameRoute(relay, transport) if relay else transport)
        self.outbox = EventOutbox(events, transport)
        self._results = ResultOutbox(results, transport)
        self._control = TaskLoop(config.name, transport, validator or ValidationProcess(), self._results, enroll=enroll)
        self._batcher = Batcher(config.name, config.child.interval, config.batch, self.sender)
        self.supervisor = SamplerSupervisor(config.child, self._silent)
        self._started_at = time.time()
        self._outages = OutageLog(directory / "outages.json")
        self.event_builder = EventBuilder(config.name, self.outbox.put, logged=lambda: self.kernel_log.reading)
        clock = BootClock(boot_id())
        self.kernel_log = KernelLog(config.kernel_log, self.event_builder.submit, directory / "kernel-log.json", clock)

    def run(self, *, until: Callable[[NodeDaemon], bool] = lambda _: False) -> bool:
        """Work until ``stop`` is called or ``until`` holds; True when everything was delivered."""
        self.sender.start()
        self.outbox.start()
        self._results.shipper.start()
        self._control.start()
        self.event_builder.start()
        self.event_builder.submit(
            SourceEvent(kind=EventKind.NODE_STARTED, t=self._started_at, data={"boot_id": boot_id()})
        )
        self.kernel_log.start()
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
        if isinstance(message, SampleRow):
            self._batcher.append_row(message)
            self._heard()
        elif isinstance(message, SourceEvent):
            if message.kind is not EventKind.PROBE_UNRESPONSIVE or self._is_news(message):
                self.event_builder.submit(message)
        elif isinstance(message, SamplerHello):
            self._greet(message)

    def _greet(self, hello: SamplerHello) -> None:
        self._batcher.greet(hello)
        self.event_builder.set_uptime_source(hello.devices)
        for name, reason in hello.missing.items():
            log.info("sampler %s is off: %s", name, reason)
        report = describe_node(
            hello.devices,
            hello.catalog,
            cohort=self.config.cohort,
            started_at=self._started_at,
            rack=self.config.rack,
            switches=self.config.switches,
            power_domain=self.config.power_domain,
        )
        self._control.report(report)

    def _is_news(self, happened: SourceEvent) -> bool:
        """Return whether a channel became unresponsive or answers again.

        A new child reports each channel that answers.
        """
        if happened.data.get("cleared"):
            return self._outages.end_outage(outage_log.subject_of(happened))
        self._outages.open_outage(outage_log.subject_of(happened))
        return True

    def _silent(self, silence: sampler_supervisor.SamplerTimeout) -> None:
        self._batcher.flush()
        self._outages.open_outage(outage_log.OutageSubject(None, silence.sampler))
        self._tell_silence(silence.as_data())

    def _heard(self) -> None:
        """End the outage of a child once every sampler answers again, not while one is left out because it hung."""
        now = self.supervisor.child
        if now is not None and not now.without:
            for silence in self._outages.outages_of_child():
                self._outages.end_outage(silence)
                self._tell_silence({"cleared": True, "sampler": silence.sampler, "pid": now.process.pid})

    def _tell_silence(self, data: dict[str, Any]) -> None:
        self.event_builder.submit(SourceEvent(kind=EventKind.PROBE_UNRESPONSIVE, t=time.time(), data=data))

    def _close(self) -> bool:
        why = shutdown_reason.shutdown_reason()  # asked first: systemd answers only while it still runs
        self.supervisor.close()
        self.kernel_log.stop()
        self.event_builder.stop(SourceEvent(kind=EventKind.NODE_STOPPING, t=time.time(), data={"reason": why}))
        self._batcher.flush()
        self._control.stop()
        deadline = time.monotonic() + _FLUSH_S
        shippers = (self.outbox.shipper, self._results.shipper, self.sender.shipper)
        delivered = [shipper.stop(max(0.0, deadline - time.monotonic())) for shipper in shippers]
        for spool in self._spools:
            spool.close()
        self._transport.close()
        if self._relay is not None:
            self._relay.close()
        return all(delivered)
