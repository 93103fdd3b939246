"""What may go wrong with snapshot memory.

    ArenaError(RuntimeError)
    ├── CorruptArenaError      header, layout, record or data fail their checksum; nothing of it is used
    ├── LayoutMismatchError    the arena holds other tensors than the ones asked for
    ├── SlotMissingError       no committed slot of that epoch (never written, or since overwritten)
    ├── TornSlotError          the slot changed while it was read; the bytes read are worthless
    ├── ShortMemoryError       the file system under the arenas cannot hold it; names the bytes
    └── FencedError            this writer's generation was revoked; it must stop

Each message names the file, rank, slot or epoch concerned.
"""

from __future__ import annotations


class ArenaError(RuntimeError):
    """Snapshot memory could not be used; the message names what and why."""


class CorruptArenaError(ArenaError):
    pass


class LayoutMismatchError(ArenaError):
    pass


class SlotMissingError(ArenaError):
    pass


class TornSlotError(ArenaError):
    pass


class ShortMemoryError(ArenaError):
    pass


class FencedError(ArenaError):
    pass
