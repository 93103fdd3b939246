"""Every signal of every device, as last read. Silent devices and unknown values are absent, never zero.

A counter is the total that the node last read, as it is: it falls only where the source's own does (a driver that was
loaded again), which Prometheus takes for a reset. When it began is not known, so no ``_created`` is made up.

Series carry ``gpu_uuid`` (or ``node``, ``port``) alone. What else is known of a card stands in ``mainstay_gpu_info``,
and which job it works for in ``mainstay_job_gpu_info``: join with ``* on (gpu_uuid) group_left (…)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import NIC_PREFIX
from mainstay.probes.signals import WIDE_MISSING, SignalSource
from mainstay.service.common.clock import Clock
from mainstay.service.common.db import AnySession
from mainstay.service.exposition import text
from mainstay.service.exposition.protobuf import Series
from mainstay.service.exposition.table import Exposed, exposed
from mainstay.service.fleet.directory import Fleet, FleetDevice
from mainstay.service.jobs.repository import current
from mainstay.service.telemetry.ring import Column, NewestValues, TelemetryRing

if TYPE_CHECKING:
    import pyarrow as pa

AHEAD_SECONDS: Final = 5
"""A node's clock may be this far ahead of ours before its newest values are missed here."""
Columns = Sequence[Column]
Form = ModuleType | Series
"""Writes labels and families: ``text``, or messages."""
_UNKNOWN: Final = FleetDevice("", "", 0, "gpu", "", None, None, None, present=False, previous_node=None, facts={})


@dataclass(frozen=True, slots=True)
class Latest:
    """The last values in the ring, as of when each is asked for."""

    ring: TelemetryRing
    clock: Clock
    stale_seconds: int
    at: int | None = None
    """An earlier Unix second to read the values of. Of a counter, only the newest total is known."""

    @property
    def since(self) -> int:
        """The Unix second after which a device must have been active."""
        return (int(self.clock.now()) if self.at is None else self.at) - self.stale_seconds

    def read(self, source: SignalSource, metric: Exposed) -> NewestValues[Any] | None:
        """In the unit of the signal; None where they are not known."""
        name, since = metric.signal.name, self.since
        if metric.signal.wide:
            return self.ring.totals(source, name, since) if self.at is None else None
        reach = metric.reach(self.stale_seconds) - self.stale_seconds
        stop = since + self.stale_seconds + (AHEAD_SECONDS if self.at is None else 1)
        return self.ring.newest(source, name, since - reach, stop, active_since=since)

    def active(self, source: SignalSource) -> NewestValues[np.bool_]:
        """Which devices sent anything of late."""
        newest = self.ring.newest_seconds(source)
        return NewestValues(newest.columns, newest.values >= self.since)


@dataclass(frozen=True, slots=True)
class Labels:
    """Of the ring's columns."""

    where: pa.StringArray
    same: Sequence[NDArray[np.intp]]
    """Columns that are one card: just moved, it may be in two places for some seconds, and no line may stand twice."""


@dataclass(frozen=True, slots=True)
class Cards(Labels):
    """What is written of GPUs but their signals."""

    infos: pa.StringArray
    is_known: NDArray[np.bool_]
    """Whether the fleet has the card."""
    memory_bytes: NDArray[np.float64]


def cards(columns: Columns, fleet: Fleet, form: Form = text) -> Cards:
    """The cards in the ring's columns. They change when ``fleet.layout`` or the columns do."""
    known = _known(fleet)
    found = [known.get(column, _UNKNOWN) for column in columns]
    uuids = [_uuid(column, card) for column, card in zip(columns, found, strict=True)]
    first, same = dict[str, int](), defaultdict[int, list[int]](list)
    for place, uuid in enumerate(uuids):
        if first.setdefault(uuid, place) != place:
            same[first[uuid]].append(place)
    facts = {name: [card.facts.get(name, "") for card in found] for name in ("pci", "driver")}
    infos = {
        "gpu_uuid": uuids, "node": [node for node, _ in columns], "device": [device for _, device in columns],
        "model": [card.model for card in found], "serial": [card.serial or "" for card in found], **facts,
    }  # fmt: skip
    return Cards(
        form.labels({"gpu_uuid": uuids}),
        [np.array([place, *others]) for place, others in same.items()],
        form.labels(infos),
        np.array([card is not _UNKNOWN for card in found], bool),
        np.array([np.nan if card.memory_bytes is None else card.memory_bytes for card in found], np.float64),
    )


def _known(fleet: Fleet) -> dict[Column, FleetDevice]:
    """(node, device) → the GPU that is there."""
    return {
        (node.name, device.id): device
        for node in fleet.nodes.values()
        for device in node.devices
        if device.kind == "gpu"
    }


def _uuid(column: Column, card: FleetDevice) -> str:
    return card.uuid or "/".join(column)


def gpus(latest: Latest, of: Callable[[Columns], Cards], form: Form = text) -> Iterator[bytes]:
    """The GPUs' signals, then who they are."""
    yield from signals(SignalSource.GPU, latest, of, form)
    active = latest.active(SignalSource.GPU)
    told = of(active.columns)
    sizes = np.where(active.values, told.memory_bytes, np.nan)
    ones = np.where(active.values & told.is_known, 1.0, np.nan)
    about = "who a GPU is and where it sits; always 1"
    yield form.family(
        "mainstay_gpu_memory_bytes", "gauge", "framebuffer of the card", told.where, sizes, same=told.same
    )
    yield form.family("mainstay_gpu_info", "gauge", about, told.infos, ones, same=told.same)


def jobs(session: AnySession, fleet: Fleet, form: Form = text) -> Any:
    """Which running job has a rank on which GPU."""
    known = _known(fleet)
    ranks = ((job.id, (rank["node"], rank["device"])) for job in current(session) for rank in job.topology["ranks"])
    pairs = dict.fromkeys((job, _uuid(place, known[place])) for job, place in ranks if place in known)
    where = form.labels({"job": [job for job, _ in pairs], "gpu_uuid": [uuid for _, uuid in pairs]})
    about = "GPUs that running jobs have ranks on; always 1"
    return form.family("mainstay_job_gpu_info", "gauge", about, where, np.ones(len(pairs)))


def host_labels(columns: Columns, form: Form = text) -> Labels:
    return Labels(form.labels({"node": [node for node, _ in columns]}), ())


def port_labels(columns: Columns, form: Form = text) -> Labels:
    ports = [device.removeprefix(NIC_PREFIX) for _, device in columns]
    return Labels(form.labels({"node": [node for node, _ in columns], "port": ports}), ())


def signals(
    source: SignalSource, latest: Latest, of: Callable[[Columns], Labels], form: Form = text
) -> Iterator[bytes]:
    """A family for each signal of a source; ``of`` gives the labels of the ring's columns."""
    for metric in (*exposed(source, wide=False), *exposed(source, wide=True)):
        newest = latest.read(source, metric)
        if newest is None:
            continue
        values, told = newest.values, of(newest.columns)
        if metric.divisor != 1:
            values = np.where(values == WIDE_MISSING, np.nan, values / metric.divisor)
        yield form.family(metric.name, metric.kind, metric.about, told.where, values, same=told.same)
