"""What an event's data hold, read with care: they come from other processes, and may be of any type."""

from __future__ import annotations

from typing import Any

from mainstay.probes.core_types import Event


def number(value: Any) -> float | None:
    """A number as float; None for anything else, truth values included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole_number(value: Any) -> int | None:
    """A whole number; None for anything else, truth values included."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    """Text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def boot_time(event: Event, known_boot_id: str | None) -> float | None:
    """When a node booted, if its start shows a boot that was not known.

    Args:
        event: the start of the node's daemon.
        known_boot_id: of the node's last start; None if it is not known.
    """
    boot_id, uptime = text(event.data.get("boot_id")), number(event.data.get("uptime"))
    if boot_id is not None and boot_id == known_boot_id:
        return None
    if uptime is not None and uptime >= 0:
        return event.time - uptime
    return event.time if boot_id is not None and known_boot_id is not None else None


def count_of(value: Any) -> int | None:
    """A whole number that can be a rank, a step, or a count."""
    count = whole_number(value)
    return count if count is not None and 0 <= count < 2**53 else None


def entries_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; what is none is left out."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
