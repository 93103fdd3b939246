"""The directory of a recording: its files and their columns. ``docs/reference/recordings.md`` is its definition."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from mainstay.detectors.recording.model import FleetInfo
from mainstay.probes.signals import SignalSource, names

FLEET, SAMPLES, STEPS = "fleet.json", "samples.parquet", "steps.parquet"
PROGRESS, PAIRS, EVENTS = "progress.parquet", "pairs.parquet", "events.parquet"

_TEXT = pa.dictionary(pa.int32(), pa.string())
SAMPLE_SCHEMA = pa.schema(
    [("time", pa.float64()), ("node", _TEXT), ("device", _TEXT), ("signal", _TEXT), ("value", pa.float64())]
)
EVENT_SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "time": pa.float64(),
        "kind": pa.string(),
        "node": pa.string(),
        "device": pa.string(),
        "job": pa.string(),
        "rank": pa.int64(),
        "generation": pa.int64(),
        "data": pa.string(),
    }
)
_KEYS = {
    STEPS: {"job": _TEXT, "rank": pa.int32(), "step": pa.int64(), "time": pa.float64()},
    PROGRESS: {"job": _TEXT, "rank": pa.int32(), "time": pa.float64()},
    PAIRS: {"job": _TEXT, "source": pa.int32(), "target": pa.int32(), "step": pa.int64(), "time": pa.float64()},
}
NEEDED = {
    SAMPLES: SAMPLE_SCHEMA.names,
    **{name: tuple(keys) for name, keys in _KEYS.items()},
    EVENTS: ("id", "time", "kind"),
}
"""Columns without which a file is not one of a recording."""
COLUMNS = {
    STEPS: names(SignalSource.RANK, wide=False),
    PROGRESS: names(SignalSource.PROGRESS, wide=False) + names(SignalSource.PROGRESS, wide=True),
    PAIRS: names(SignalSource.PAIR, wide=False),
}

SCHEMAS = {
    SAMPLES: SAMPLE_SCHEMA,
    **{
        name: pa.schema([*keys.items(), *((column, pa.float64()) for column in COLUMNS[name])])
        for name, keys in _KEYS.items()
    },
    EVENTS: EVENT_SCHEMA,
}


def read_fleet(path: Path) -> FleetInfo:
    """``fleet.json``.

    Raises:
        ValueError: it is not one; the message names the field.
    """
    return msgspec.json.decode(path.read_bytes(), type=FleetInfo)


def write_fleet(path: Path, fleet: FleetInfo) -> None:
    """The same file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(fleet), indent=1) + b"\n")
