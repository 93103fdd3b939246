"""Ways back to a consistent step, one file each. ``STRATEGIES`` is the table that the planner prices."""

from __future__ import annotations

from recovery.strategies.base import Strategy
from recovery.strategies.disk_restart import DiskRestart
from recovery.strategies.local_slot import LocalSlot
from recovery.strategies.parity_rebuild import ParityRebuild
from recovery.strategies.peer_copy import PeerCopy

STRATEGIES: tuple[Strategy, ...] = (LocalSlot(), PeerCopy(), ParityRebuild(), DiskRestart())
