"""Times and durations as text for people."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(seconds: float) -> str:
    """ISO 8601 in UTC, such as 2026-07-17T08:42:58.315Z."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """Such as 0.42 s, 17 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    for size, unit, small, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{seconds:.3g} s"
