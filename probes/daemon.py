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
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes import outage_log, sampler_supervisor, shutdown_reason
from mainstay.probes.command_options import NodeOptions
from mainstay.probes.core_types import EventKind, validate_name
from mainstay.probes.event_builder import EventBuilder
from mainstay.probes.frame import Axis
from mainstay.probes.frame_route import FrameRoute
from mainstay.probes.identity import boot_id, describe_node, read_switches
from mainstay.probes.kernel_log.reader import BootClock, KernelLog
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.outage_log import OutageLog
from mainstay.probes.outbox import EventOutbox
from mainstay.probes.sampler_supervisor import SamplerProcessConfig, SamplerSupervisor
from mainstay.probes.samplers.base import SourceEvent
from mainstay.probes.samplers.protocol import Message, SamplerHello, SampleRow
from mainstay.probes.shipper import FrameSender, Shipper
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess

log = logging.getLogger(__name__)

_POLL_S: Final = 5.0
_FLUSH_S: Final = 3.0
"""How long an orderly stop tries to deliver; the rest stays in the spool."""
_FRAME_SPOOL_BYTES: Final = 256 * 1024 * 1024
"""About two weeks of a host without GPUs, a day of one with eight."""
_EVENT_SPOOL_BYTES: Final = 8 * 1024 * 1024


def check_options(options: NodeOptions) -> None:
    """Check what the command line and the environment say.

    Raises:
        ValueError: names the option and what is wrong.
    """
    if not 0.05 <= options.interval <= 3600:
        raise ValueError(f"--interval {options.interval} must be from 0.05 to 3600 s")
    if not 1 <= options.batch <= 3600:
        raise ValueError(f"--batch {options.batch} must be from 1 to 3600 samples")
    names = {"--name": options.name, "--cohort": options.cohort, "--rack": options.rack}
    for what, value in (names | {"--power-domain": options.power_domain}).items():
        if value:
            validate_name(value, what)
    read_switches(options.switches)


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
    """Measures, spools, sends, and takes orders until ``stop``. ``run`` is called once, from one thread.

    Args:
        options: what ``check_options`` accepts.
        name: of this node.
        directory: keeps spools and marks.
        transport: the service.
        enroll: gets a token when ``transport`` has none yet.
        relay: takes the frames while it answers.

    Raises:
        SpoolError: another daemon uses the data directory.
    """

    def __init__(
        self,
        options: NodeOptions,
        name: str,
        directory: Path,
        transport: Transport,
        *,
        enroll: Callable[[], str] | None = None,
        relay: Transport | None = None,
    ) -> None:
        self._options = options
        self._transport = transport
        self._relay = relay
        self._stopping = threading.Event()
        self._spools = [
            Spool(directory / "frames", _FRAME_SPOOL_BYTES),
            Spool(directory / "events", _EVENT_SPOOL_BYTES),
            Spool(directory / "results", _EVENT_SPOOL_BYTES),
        ]
        frames, events, results = self._spools
        self.sender = FrameSender(frames, FrameRoute(relay, transport) if relay else transport)
        self.outbox = EventOutbox(events, transport)
        self._results = ResultOutbox(results, transport)
        self._control = TaskLoop(name, transport, ValidationProcess(), self._results, enroll=enroll)
        self._batcher = Batcher(name, options.interval, options.batch, self.sender)
        self.supervisor = SamplerSupervisor(SamplerProcessConfig(interval=options.interval), self._silent)
        self._started_at = time.time()
        self._outages = OutageLog(directory / "outages.json")
        self.event_builder = EventBuilder(name, self.outbox.put, logged=lambda: self.kernel_log.reading)
        clock = BootClock(boot_id())
        self.kernel_log = KernelLog(options.kernel_log, self.event_builder.submit, directory / "kernel-log.json", clock)

    def run(self, *, until: Callable[[NodeDaemon], bool] = lambda _: False) -> bool:
        """Work until ``stop`` is called or ``until`` holds; True when everything was delivered."""
        self.sender.start()
        self.outbox.start()
        self._results.start()
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
        """Ask for an orderly stop, from any thread."""
        self._stopping.set()
        self.supervisor.wake()

    @property
    def delivered(self) -> int:
        """Frames that the service has acknowledged in this life of the daemon."""
        return self.sender.delivered

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
            cohort=self._options.cohort,
            started_at=self._started_at,
            rack=self._options.rack,
            switches=read_switches(self._options.switches),
            power_domain=self._options.power_domain,
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
        self._tell_silence(msgspec.to_builtins(silence))

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
        shippers: tuple[Shipper, ...] = (self.outbox, self._results, self.sender)
        delivered = [shipper.stop(max(0.0, deadline - time.monotonic())) for shipper in shippers]
        for spool in self._spools:
            spool.close()
        self._transport.close()
        if self._relay is not None:
            self._relay.close()
        return all(delivered)
