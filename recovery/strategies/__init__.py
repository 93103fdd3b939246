"""Ways back to a consistent step, one file each.

``STRATEGIES`` are those that a running job's coordinator can carry out; they say which rank restores what from where.
``WAYS`` are all: what-if, simulation and scenarios weigh them against one another.
"""

from __future__ import annotations

from recovery.plan import WayName
from recovery.strategies.base import Strategy
from recovery.strategies.borrow_workers import BorrowWorkers
from recovery.strategies.degrade import Degrade
from recovery.strategies.disk_restart import DiskRestart
from recovery.strategies.drop_and_heal import DropAndHeal
from recovery.strategies.in_process import InProcess
from recovery.strategies.just_in_time import JustInTime
from recovery.strategies.least_redundancy import LeastRedundancy
from recovery.strategies.local_slot import LocalSlot
from recovery.strategies.morph import Morph
from recovery.strategies.parity_rebuild import ParityRebuild
from recovery.strategies.peer_copy import PeerCopy
from recovery.strategies.pool_rebalance import PoolRebalance
from recovery.strategies.proactive import Proactive
from recovery.strategies.redundant_compute import RedundantCompute
from recovery.strategies.reinstantiate import Reinstantiate
from recovery.strategies.replan_resources import ReplanResources
from recovery.strategies.reroute import Reroute
from recovery.strategies.standby_swap import StandbySwap
from recovery.strategies.way import Way

STRATEGIES: tuple[Strategy, ...] = (LocalSlot(), PeerCopy(), ParityRebuild(), DiskRestart())
WAYS: tuple[Way, ...] = (
    LocalSlot(),
    PeerCopy(),
    ParityRebuild(),
    DiskRestart(),
    JustInTime(),
    InProcess(),
    StandbySwap(),
    DropAndHeal(),
    Reroute(WayName.REROUTE_COUPLED),
    Reroute(WayName.REROUTE_DECOUPLED),
    Reroute(WayName.REROUTE_STAGGERED),
    Reinstantiate(),
    RedundantCompute(),
    Proactive(),
    PoolRebalance(),
    Morph(),
    Degrade(),
    BorrowWorkers(),
    ReplanResources(),
    LeastRedundancy(),
)
