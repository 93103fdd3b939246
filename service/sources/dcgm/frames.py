"""The cards of a scrape as what a daemon of that node would send: one frame, and a report of its devices.

A scrape is one sample: values that the exporter does not report are missing, not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum, encode
from mainstay.probes.identity import default_cohort
from mainstay.probes.samplers.base import DeviceIdentity
from mainstay.probes.signals import WIDE_MISSING, SignalSource, catalog
from mainstay.service.fleet.schemas import CatalogReport, DeviceReport, NodeReportCreate
from mainstay.service.sources.dcgm.parser import ScrapedGpu

VERSION: Final = "dcgm-exporter"
"""Stands as a node's version: it is known through an exporter only and has no daemon of its own."""
_CATALOG: Final = catalog(SignalSource.GPU)


def frame(node: str, cards: Sequence[ScrapedGpu], *, stream: str, sequence: int, time: float) -> bytes:
    """One encoded frame of the node's cards, sampled at ``time`` (Unix seconds: exporters send none)."""
    narrow = np.full((len(cards), len(_CATALOG.narrow), 1), np.nan, "<f4")
    wide = np.full((len(cards), len(_CATALOG.wide), 1), WIDE_MISSING, "<i8")
    for place, card in enumerate(cards):
        for signal, value in card.values.items():
            if signal in _CATALOG.wide:
                wide[place, _CATALOG.wide.index(signal), 0] = int(value)
            else:
                narrow[place, _CATALOG.narrow.index(signal), 0] = value
    values, big = narrow.tobytes(), wide.tobytes()
    return encode(
        Frame(
            version=FRAME_VERSION,
            subject=node,
            axis=Axis.TIME,
            stream=stream,
            sequence=sequence,
            t0=time,
            dt=1.0,
            catalog=_CATALOG.digest,
            entities=device_ids(cards),
            samples=1,
            crc32=checksum(values, big),
            values=values,
            wide=big,
        )
    )


def device_ids(cards: Sequence[ScrapedGpu]) -> tuple[str, ...]:
    """``gpu0``… by the exporter's index, as a daemon names them; by place where an index is missing or stands twice."""
    indices = [card.index for card in cards]
    known = None not in indices and len(set(indices)) == len(indices)
    return tuple(f"gpu{card.index if known else place}" for place, card in enumerate(cards))


def report(cards: Sequence[ScrapedGpu], *, host: str, since: float) -> NodeReportCreate:
    """The node with its cards; what an exporter cannot know is empty.

    Args:
        cards: of one node.
        host: as the exporter's label says it.
        since: Unix seconds from which on it is scraped.
    """
    devices = [
        _device(card, name, place) for place, (card, name) in enumerate(zip(cards, device_ids(cards), strict=True))
    ]
    identities = tuple(
        DeviceIdentity(
            id=d.id, index=d.index, kind=d.kind, model=d.model, serial=None, uuid=d.uuid, memory_bytes=d.memory_bytes
        )
        for d in devices
    )
    return NodeReportCreate(
        hostname=host,
        os="",
        kernel="",
        version=VERSION,
        boot_id="",
        cohort=default_cohort(identities),
        cpu_count=0,
        memory_bytes=0,
        devices=devices,
        catalog=CatalogReport(narrow=list(_CATALOG.narrow), wide=list(_CATALOG.wide)),
        started_at=since,
    )


def _device(card: ScrapedGpu, name: str, place: int) -> DeviceReport:
    facts = {"pci": card.pci, "driver": card.driver}
    return DeviceReport(
        id=name,
        index=place if card.index is None else card.index,
        kind="gpu",
        model=card.model,
        serial=None,
        uuid=card.uuid,
        memory_bytes=card.memory_bytes,
        facts={key: value for key, value in facts.items() if value},
    )
