"""Frames of small nodes, as a relay gets them."""

from __future__ import annotations

import struct
from typing import Any

from mainstay.probes.frame import Axis, Frame, checksum
from mainstay.probes.signals import Catalog

CATALOG = Catalog(("load_1m",), ("context_switches_total",))


def frame(subject: str, sequence: int = 1, **changes: Any) -> Frame:
    """A frame of one sample of a host; ``changes`` to its fields keep the checksum right."""
    fields: dict[str, Any] = {
        "version": 1,
        "subject": subject,
        "axis": Axis.TIME,
        "stream": f"s-{subject}",
        "sequence": sequence,
        "t0": 1000.0,
        "dt": 1.0,
        "catalog": CATALOG.digest,
        "entities": ("host",),
        "samples": 1,
        "values": struct.pack("<f", sequence),
        "wide": struct.pack("<q", sequence),
    }
    fields |= changes
    return Frame(**fields, crc32=checksum(fields["values"], fields["wide"]))
