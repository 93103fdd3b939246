"""Recovery strategies to a consistent step, one file each.

``STRATEGIES`` are those that a running job's coordinator can carry out; they say which rank restores what from where.
``WAYS`` are all: what-if, simulation and scenarios weigh them against one another.
"""

from __future__ import annotations

from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.borrow_workers import BorrowWorkers
from mainstay.recovery.strategies.degrade import Degrade
from mainstay.recovery.strategies.disk_restart import DiskRestart
from mainstay.recovery.strategies.drop_and_heal import DropAndHeal
from mainstay.recovery.strategies.in_process import InProcess
from mainstay.recovery.strategies.just_in_time import JustInTime
from mainstay.recovery.strategies.least_redundancy import LeastRedundancy
from mainstay.recovery.strategies.local_slot import LocalSlot
from mainstay.recovery.strategies.morph import Morph
from mainstay.recovery.strategies.parity_rebuild import ParityRebuild
from mainstay.recovery.strategies.peer_copy import PeerCopy
from mainstay.recovery.strategies.pool_rebalance import PoolRebalance
from mainstay.recovery.strategies.proactive import Proactive
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy
from mainstay.recovery.strategies.redundant_compute import RedundantCompute
from mainstay.recovery.strategies.reinstantiate import Reinstantiate
from mainstay.recovery.strategies.replan_resources import ReplanResources
from mainstay.recovery.strategies.reroute import Reroute
from mainstay.recovery.strategies.restore_strategy import RestoreStrategy
from mainstay.recovery.strategies.standby_swap import StandbySwap

STRATEGIES: tuple[RestoreStrategy, ...] = (LocalSlot(), PeerCopy(), ParityRebuild(), DiskRestart())
WAYS: tuple[RecoveryStrategy, ...] = (
    *STRATEGIES,
    JustInTime(),
    InProcess(),
    StandbySwap(),
    DropAndHeal(),
    Reroute(RecoveryStrategyName.REROUTE_COUPLED),
    Reroute(RecoveryStrategyName.REROUTE_DECOUPLED),
    Reroute(RecoveryStrategyName.REROUTE_STAGGERED),
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
