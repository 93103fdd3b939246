"""Every signal of every device, as last read. Silent devices and unknown values are absent, never zero.

A counter is the total that the node last read, as it is: it falls only where the source's own does (a driver that was
loaded again), which Prometheus takes for a reset. When it began is not known, so no ``_created`` is made up.

Series carry ``gpu_uuid`` (or ``node``, ``port``) alone. What else is known of a card stands in ``mainstay_gpu_info``,
and which job it works for in ``mainstay_job_gpu_info``: join with ``* on (gpu_uuid) group_left (…)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from mainstay.probes.core_types import NIC_PREFIX
from mainstay.probes.signals import SignalSource
from mainstay.service.common.db import AnySession
from mainstay.service.exposition import text
from mainstay.service.exposition.table import exposed, reaches
from mainstay.service.fleet.directory import Fleet, FleetDevice
from mainstay.service.jobs.repository import current
from mainstay.service.telemetry.ring import Column, LatestReadings, TelemetryRing

AHEAD_SECONDS: Final = 5
"""A node's clock may be this far ahead of ours before its newest values are missed here."""


def cards(fleet: Fleet) -> dict[Column, FleetDevice]:
    """(node, device) → the GPU that is there."""
    return {
        (node.name, device.id): device
        for node in fleet.nodes.values()
        for device in node.devices
        if device.kind == "gpu"
    }


def gpus(readings: LatestReadings, known: dict[Column, FleetDevice]) -> Iterator[str]:
    """The GPUs' signals, then who they are."""
    uuids = [_uuid(column, known) for column in readings.columns]
    # A card that was just moved may be in two places for some seconds: one line must not stand twice.
    once = sorted({uuid: place for place, uuid in reversed(list(enumerate(uuids)))}.values())
    columns = [readings.columns[place] for place in once]
    kept = LatestReadings(tuple(columns), readings.gauges[:, once], readings.counters[:, once])
    yield from _signals(SignalSource.GPU, kept, [text.labels({"gpu_uuid": uuids[place]}) for place in once])
    told = [(column, known[column]) for column in columns if column in known]
    sizes = [
        (text.labels({"gpu_uuid": _uuid(column, known)}), float(card.memory_bytes))
        for column, card in told
        if card.memory_bytes is not None
    ]
    yield text.family("mainstay_gpu_memory_bytes", "gauge", "framebuffer of the card", sizes)
    infos = [(_info(column, card, _uuid(column, known)), 1.0) for column, card in told]
    yield text.family("mainstay_gpu_info", "gauge", "who a GPU is and where it sits; always 1", infos)


def _uuid(column: Column, known: dict[Column, FleetDevice]) -> str:
    card = known.get(column)
    return (card and card.uuid) or "/".join(column)


def _info(column: Column, card: FleetDevice, uuid: str) -> str:
    node, device = column
    facts = {"model": card.model, "serial": card.serial or ""}
    facts |= {name: card.facts.get(name, "") for name in ("pci", "driver")}
    return text.labels({"gpu_uuid": uuid, "node": node, "device": device, **facts})


def jobs(session: AnySession, known: dict[Column, FleetDevice]) -> str:
    """Which running job has a rank on which GPU."""
    pairs = {
        (job.id, _uuid((place["node"], place["device"]), known))
        for job in current(session)
        for place in job.topology["ranks"]
        if (place["node"], place["device"]) in known
    }
    lines = [(text.labels({"job": job, "gpu_uuid": uuid}), 1.0) for job, uuid in sorted(pairs)]
    return text.family("mainstay_job_gpu_info", "gauge", "GPUs that running jobs have ranks on; always 1", lines)


def hosts(readings: LatestReadings) -> Iterator[str]:
    where = [text.labels({"node": node}) for node, _ in readings.columns]
    yield from _signals(SignalSource.HOST, readings, where)


def ports(readings: LatestReadings) -> Iterator[str]:
    where = [text.labels({"node": node, "port": device.removeprefix(NIC_PREFIX)}) for node, device in readings.columns]
    yield from _signals(SignalSource.NIC, readings, where)


def _signals(source: SignalSource, readings: LatestReadings, where: list[str]) -> Iterator[str]:
    for metric in exposed(source, wide=False):
        yield text.gauges(metric, where, readings.gauges[metric.row])
    for metric in exposed(source, wide=True):
        yield text.counters(metric, where, readings.counters[metric.row])


def reader(ring: TelemetryRing, now: float, stale_seconds: int) -> Callable[[SignalSource], LatestReadings]:
    """Reads the last values of a source out of the ring."""

    def read(source: SignalSource) -> LatestReadings:
        ahead = AHEAD_SECONDS
        seconds = np.array(reaches(source, stale_seconds), np.int64) + ahead
        return ring.readings(source, int(now) + ahead, seconds, max_age_seconds=stale_seconds + ahead)

    return read
