"""What a chart asks for, and what it is answered from."""

from __future__ import annotations

from dataclasses import dataclass

from mainstay.service.telemetry.envelope import Points

SeriesPart = tuple[str, str, Points]
"""(device, signal, points)."""


@dataclass(frozen=True, kw_only=True)
class SeriesQuery:
    """``signals`` of a node's ``device`` (or all) over ``[start, stop)`` Unix seconds."""

    node: str
    device: str | None
    signals: tuple[str, ...]
    start: float
    stop: float
    points: int
