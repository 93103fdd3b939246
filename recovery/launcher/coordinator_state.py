"""What a coordinator replicates so that another launcher can continue the job: the data on the wire, and its capture.

Ranks know their own state and their launchers what they said last (``ledger``); what only the coordinator knows stands
here. It is sent before every order that follows from it, on the same connection: who has the order has the legacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from mainstay.recovery.agent.messages import Group
from mainstay.recovery.calibration import PredictionAccuracy
from mainstay.recovery.node_warning import NodeWarnings
from mainstay.recovery.recovery_plan import RecoveryStrategyName

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator

CANDIDATES: Final = 16
"""Launchers with a copy of the state, in order of node rank: at 2,048 nodes it has 300 KB, and every recovery sends
it again. The others vote, and follow."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ElectionMember(_Record, frozen=True):
    """One launcher of the job."""

    node: str
    node_rank: int
    nproc: int
    spares: int
    pid: int
    election_endpoint: str
    """``host:port`` where other launchers reach it."""
    agent_endpoint: str
    domain: str
    excluded: int
    alive: bool
    """The coordinator has not lost it."""


class CoordinatorState(_Record, frozen=True):
    """The job as the coordinator of ``term`` knew it. Of two, the one with the higher (term, version) is newer."""

    term: int
    version: int
    generation: int
    electors: tuple[ElectionMember, ...]
    homes: tuple[int, ...]
    """Rank -> index of its node in ``electors``."""
    recoveries: int
    started_at: float
    formed_once: bool
    returns: tuple[tuple[int, int], ...]
    """See ``history``."""
    parameters_equal: bool
    replicated: bool | None
    groups: tuple[Group, ...]
    run: str
    """See ``disk_level``."""
    resumed: str | None
    """The run that this one continues from."""
    disk_every: int
    parity_every: int
    warnings: NodeWarnings = msgspec.field(default_factory=NodeWarnings)
    prices: dict[str, tuple[int, float]] = {}
    """What recoveries cost: see ``prices``."""
    accuracy: dict[RecoveryStrategyName, PredictionAccuracy] = {}
    """How accurate their predictions were: see ``mainstay.recovery.calibration``."""

    @property
    def age(self) -> tuple[int, int]:
        return self.term, self.version


def capture_state(c: Coordinator, version: int) -> CoordinatorState:
    """The coordinator state of ``c`` as it stands now."""
    nodes = sorted(c.members.nodes.values(), key=lambda node: node.hello.node_rank)
    index = {node.name: i for i, node in enumerate(nodes)}
    survey = c.executor.survey
    return CoordinatorState(
        term=c.term,
        version=version,
        generation=c.generation,
        electors=tuple(
            ElectionMember(
                node=node.name,
                node_rank=node.hello.node_rank,
                nproc=node.hello.nproc,
                spares=node.hello.spares,
                pid=node.hello.pid,
                election_endpoint=node.hello.election_endpoint,
                agent_endpoint=node.endpoint,
                domain=node.hello.domain,
                excluded=node.excluded,
                alive=node.alive,
            )
            for node in nodes
        ),
        homes=tuple(index[rank.node] for rank in c.members.ranks),
        recoveries=c.recoveries,
        started_at=c.started_at,
        formed_once=c.executor.formed_once,
        returns=survey.history.returns,
        parameters_equal=survey.parameters_equal,
        replicated=survey.replicated,
        groups=c.orders.groups,
        run=c.disk.run,
        resumed=None if c.disk.source is None else c.disk.source.manifest.run,
        disk_every=c.tuning.disk_every,
        parity_every=c.tuning.parity_every,
        warnings=msgspec.structs.replace(c.members.warnings),
        prices=survey.prices.observed,
        accuracy=c.executor.judge.calibration.strategies,
    )
