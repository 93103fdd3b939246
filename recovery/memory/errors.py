"""What may go wrong with snapshot memory. Each message names the file, rank, slot or epoch concerned."""

from __future__ import annotations


class ArenaError(RuntimeError):
    """Snapshot memory could not be used; the message names what and why."""


class CorruptArenaError(ArenaError):
    """Header, layout, record or data fail their checksum; nothing of it is used."""


class LayoutMismatchError(ArenaError):
    """The arena holds other tensors than the ones asked for."""


class SlotMissingError(ArenaError):
    """No committed slot of that epoch (never written, or since overwritten)."""


class TornSlotError(ArenaError):
    """The slot changed while it was read; the bytes read are worthless."""


class ShortMemoryError(ArenaError):
    """The file system under the arenas cannot hold it; names the bytes."""


class FencedError(ArenaError):
    """This writer's generation was revoked; it must stop."""
