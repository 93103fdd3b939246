"""What the telemetry routes take and give."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mainstay.service.common.schemas import Lenient, Name, Output

SignalName = Annotated[str, Field(max_length=128)]


class SignalRead(Output):
    """One row of the signal table."""

    name: str
    unit: str
    kind: str
    source: str
    about: str


class SignalList(Output):
    items: list[SignalRead]


class CatalogWrite(Lenient):
    """Names in the order of a frame's middle axis."""

    narrow: list[SignalName] = Field(max_length=512)
    wide: list[SignalName] = Field(max_length=512)


class CatalogRead(Output):
    """Names in the order of a frame's middle axis."""

    narrow: list[str]
    wide: list[str]


class SeriesRead(Output):
    """One signal of one device, downsampled. Counters are rates per second. Null means unknown."""

    node: Name
    device: Name
    signal: str
    unit: str
    kind: str
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]


class QueryRead(Output):
    t: list[float]
    """Start of each bucket, Unix seconds."""
    series: list[SeriesRead]
